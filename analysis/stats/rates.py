"""How fast this machine does each kind of work, by the last runs of its user, for estimates."""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path

from analysis.files.content import read_whole
from analysis.files.durable import make_folder, write_durably
from analysis.progress import RATES, Whole
from analysis.stats.places import cache_folder

_MOST = 1e6  # of a rate: none is so far from the machine on which costs were stated
# Kinds that say nothing of others: their speed depends on the sizes of matrices.
_APART = frozenset({"fit"})


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
    """Seconds that the rest of a whole task takes here, by the rates of the last runs.

    A kind of work that they lack is as much slower here as the median of those with a rate of
    their own in `RATES`, without a repair's: one kind that is much slower is not all of them.
    """
    rates = known_rates()
    alike = [rate for kind, rate in rates.items() if kind in RATES.keys() - _APART]
    usual = statistics.median(alike) if alike else 1.0
    return sum(amount * rates.get(kind, usual) for kind, amount in whole.left.items())


def keep_rates(rates: Mapping[str, float]) -> None:
    """Keep what a run has measured, in the place of what earlier ones had of these kinds.

    Raises:
        OSError: the user's cache takes no file.
    """
    if rates:
        path = rates_file()
        make_folder(path.parent)
        write_durably(path, json.dumps(known_rates() | dict(rates)).encode())
