"""How fast this machine does each kind of work, by the last runs of its user, for estimates."""

import json
from collections.abc import Mapping
from pathlib import Path

from analysis.files.content import read_whole
from analysis.files.durable import make_folder, write_durably
from analysis.progress import Whole, rate_of
from analysis.stats.places import cache_folder

_MOST = 1e6  # of a rate: none is so far from the machine on which costs were stated


def rates_file() -> Path:
    """Where the rates are kept."""
    return cache_folder() / "rates.json"


def known_rates() -> dict[str, float]:
    """Seconds of this machine for a unit of cost, by kind of work, see `analysis.progress.RATES`.

    Empty before the first run that took a while, and where the file is none that this wrote.
    """
    try:
        raw = json.loads(read_whole(rates_file()))
    except (OSError, ValueError):  # it can be measured again
        return {}
    pairs = raw.items() if isinstance(raw, dict) else ()
    return {
        kind: rate for kind, rate in pairs if isinstance(rate, float) and 1 / _MOST < rate < _MOST
    }


def expected_seconds(whole: Whole) -> float:
    """Seconds that the rest of a whole task takes here, by the rates of the last runs."""
    known = known_rates()
    return sum(amount * rate_of(kind, known) for kind, amount in whole.left.items())


def keep_rates(rates: Mapping[str, float]) -> None:
    """Keep what a run has measured, in the place of what earlier ones had of these kinds.

    Raises:
        OSError: the user's cache takes no file.
    """
    if rates:
        path = rates_file()
        make_folder(path.parent)
        write_durably(path, json.dumps(known_rates() | dict(rates)).encode())
