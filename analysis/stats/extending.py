"""Runs that gain statistic groups: what another run of the same tokens measured beyond."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from analysis.errors import StatsError
from analysis.stats.groups import Group, ordered
from analysis.stats.store import (
    COACTIVATION,
    ROUTER,
    SAMPLES,
    TRANSITIONS,
    Run,
    StatsStore,
    add_files,
    load_expert_stats,
    now,
)
from analysis.stats.tables import MOMENT_COLUMNS

# Groups whose tables stand alone; the others are columns of tables that a run has already.
_TABLES: Final[Mapping[Group, tuple[str, ...]]] = {
    "router": (ROUTER, COACTIVATION),
    "dense": (SAMPLES, TRANSITIONS),
}
# Rounding: another batch size, device or library adds the same terms in another order.
_TOLERANCE = 1e-5


def extend_run(run: Run, other: Run) -> Run:
    """Add to a run the groups `router` and `dense` that another run of the same tokens has beyond.

    Its id, its digest and its other files stay as they are, so that what names it goes on naming
    it. The other run is left alone.
    """
    new = set(other.manifest.groups) - set(run.manifest.groups)
    gained = [group for group in _TABLES if group in new]
    _check_same(run, other)
    if not gained:
        raise StatsError(
            f"{other.manifest.run_id} has nothing to add to {run.manifest.run_id}: the groups "
            "router and dense are added where the other run has them and this one lacks them."
        )
    StatsStore(other.path.parent).verify(other)
    names = [name for group in gained for name in _TABLES[group]]
    made = run.manifest.made
    added = {
        "groups": gained,
        "run": other.manifest.run_id,
        "made": dict(other.manifest.made),
        "added_at": now(),
    }
    manifest = replace(
        run.manifest,
        groups=ordered([*run.manifest.groups, *gained]),
        files={**run.manifest.files, **{name: other.manifest.files[name] for name in names}},
        made={**made, "added": [*made.get("added", ()), added]},
    )
    return add_files(run, [other.path / name for name in names], manifest)


def _check_same(run: Run, other: Run) -> None:
    mine, theirs = run.manifest, other.manifest
    facts = {
        "kind": (mine.kind, theirs.kind),
        "model": (mine.model.identity, theirs.model.identity),
        "corpus": tuple([each.digest for each in side.corpora] for side in (mine, theirs)),
        "settings": (dict(mine.settings), dict(theirs.settings)),
    }
    for name, (one, another) in facts.items():
        if one != another:
            raise StatsError(
                f"{theirs.run_id} is of another {name} than {mine.run_id}; calibrate with the same "
                "model, corpus and settings."
            )
    sums, others = (load_expert_stats(each).table[list(MOMENT_COLUMNS)] for each in (run, other))
    if not np.allclose(sums, others, rtol=_TOLERANCE, atol=0.0):
        raise StatsError(
            f"{theirs.run_id} has other routed sums than {mine.run_id}, though of the same tokens; "
            "calibrate all groups together instead."
        )
