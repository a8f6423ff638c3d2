"""How fast this machine does each kind of work, by the last runs of its user, else by a probe."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from filelock import FileLock

from analysis.files.content import read_whole
from analysis.files.durable import PARTIAL, make_folder, write_durably
from analysis.files.naming import digest_of
from analysis.machine.hardware import hardware
from analysis.progress import RATES, Whole, rate_of
from analysis.stats.places import cache_folder

_PROBED: Final = "probed"  # the key of rates that no run has measured
_DIGITS = 8  # of the digest in the name of the file
_MOST = 1e6  # of a rate: none is so far from the machine on which costs were stated


def rates_file() -> Path:
    """Where the rates are kept: those of other units of cost say nothing of these.

    Nor do those of other hardware: machines of a cluster share the home of a user.
    """
    digest = digest_of({"rates": RATES, "hardware": hardware()})
    return cache_folder() / f"rates-{digest[:_DIGITS]}.json"


def known_rates() -> dict[str, float]:
    """Seconds of this machine for a unit of cost, by kind of work, see `analysis.progress.RATES`.

    Those of runs; of kinds that no run has had, those of a probe. Empty before either, and where
    the file is none that this wrote.
    """
    raw = _kept()
    return _rates(raw.get(_PROBED)) | _rates(raw)


def run_rates() -> dict[str, float]:
    """The known rates that runs have measured."""
    return _rates(_kept())


def _kept() -> Mapping[str, Any]:
    try:
        raw = json.loads(read_whole(rates_file()))
    except (OSError, ValueError):  # it can be measured again
        return {}
    return raw if isinstance(raw, dict) else {}


def _rates(raw: object) -> dict[str, float]:
    pairs = raw.items() if isinstance(raw, dict) else ()
    return {
        kind: rate for kind, rate in pairs if isinstance(rate, float) and 1 / _MOST < rate < _MOST
    }


def expected_seconds(whole: Whole) -> float:
    """Seconds that the rest of a whole task takes here, by the rates known."""
    known = known_rates()
    return sum(amount * rate_of(kind, known) for kind, amount in whole.left.items())


def keep_rates(rates: Mapping[str, float]) -> None:
    """Keep what a run has measured, in the place of what earlier ones had of these kinds.

    Raises:
        OSError: the user's cache takes no file.
    """
    _keep(rates, {})


def keep_probed(rates: Mapping[str, float]) -> None:
    """Keep what a probe has measured; `keep_rates` raises alike."""
    _keep({}, rates)


def _keep(of_runs: Mapping[str, float], probed: Mapping[str, float]) -> None:
    if not of_runs and not probed:
        return
    path = rates_file()
    make_folder(path.parent)
    # Several commands may keep theirs at once.
    with FileLock(path.with_name(f".{path.name}{PARTIAL}.lock")):
        raw = _kept()
        rates: dict[str, object] = {**_rates(raw), **of_runs}
        if all_probed := {**_rates(raw.get(_PROBED)), **probed}:
            rates[_PROBED] = all_probed
        write_durably(path, json.dumps(rates).encode())
