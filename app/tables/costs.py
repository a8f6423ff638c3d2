"""Tables of what statistics cost, and what each criterion has to read."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.criteria import CRITERIA, Criterion
from analysis.criteria.base import needs_of
from analysis.stats.store import Run
from app.tables.shapes import experts_text

_MIB = 2**20
SHOWN_COSTS = (
    *("model", "statistics", "fits", "shape"),
    *("tokens", "seconds", "tokens/s", "peak MiB"),
)
# What `moeprune runs list` prints of the same table, with the name that its siblings take.
LISTED_COSTS = (
    "run",
    *(name for name in SHOWN_COSTS if name not in ("model", "fits")),
    *("groups", "answers"),
)
_COST_COLUMNS = [*SHOWN_COSTS, "top-k", "made", "run", "groups", "answers"]
_NEEDS = {
    "data": "calibration text",
    "activations": "expert outputs",
    "gates": "gate weights",
    "weights": "expert weights",
}


def cost_table(runs: Sequence[Run], identity: str) -> pd.DataFrame:
    """Table of runs: model, statistics, whether they fit, tokens, cost, sizes, date, run id.

    Seconds, tokens a second and peak memory are those of the machine that made the run; empty
    where it did not say. `answers` says whose the documents have: those that were given, or the
    model's own. Runs of the model of this identity come first.
    """
    rows = []
    for run in runs:
        model, made = run.manifest.model, run.manifest.made
        rows.append(
            {
                "model": model.name,
                "statistics": run.manifest.corpus or "weights",
                "shape": f"{len(model.layers)} x {experts_text(model.layers)}",
                "top-k": model.layers[0].top_k,
                "tokens": run.manifest.num_tokens or None,
                "seconds": _number(made, "seconds"),
                "tokens/s": _number(made, "tokens_per_second"),
                "peak MiB": _mib(made),
                "made": str(made.get("created_at", ""))[:10],
                "run": run.manifest.run_id,
                "groups": ",".join(run.manifest.groups) or None,
                "answers": _answers(run),
                "fits": "this model" if model.identity == identity else "another model",
            }
        )
    table = pd.DataFrame(rows, columns=_COST_COLUMNS)
    order = ["fits", "model", "statistics"]
    return table.sort_values(order, ascending=[False, True, True], ignore_index=True)


def _answers(run: Run) -> str | None:
    corpora = run.manifest.corpora
    if not corpora:
        return None
    return "own" if any("answers" in corpus.prepared for corpus in corpora) else "given"


def needs_and_costs(routed: Run | None, weights: Run | None) -> pd.DataFrame:
    """Table `criterion`, what it reads as "yes" or "", `seconds`, `peak MiB` on this model.

    arXiv:2603.18492, Tables 1 and 4. The cost is that of the run whose statistics it reads: one run
    serves all criteria of its kind. Empty where there is no such run; nothing is read at no cost.
    """
    return pd.DataFrame([_needs_row(each, routed, weights) for each in CRITERIA.values()])


def _needs_row(criterion: Criterion, routed: Run | None, weights: Run | None) -> dict[str, Any]:
    needs = needs_of(criterion)
    run = {"routed": routed, "weights": weights}.get(criterion.source)
    made = run.manifest.made if run else {}
    if criterion.source == "none":
        made = {"seconds": 0.0, "peak_memory_bytes": 0}
    return {
        "criterion": criterion.label,
        **{words: "yes" if getattr(needs, name) else "" for name, words in _NEEDS.items()},
        "seconds": _number(made, "seconds"),
        "peak MiB": _mib(made),
    }


def _number(made: Mapping[str, Any], name: str) -> float | None:
    value = made.get(name)
    return float(value) if isinstance(value, int | float) else None


def _mib(made: Mapping[str, Any]) -> float | None:
    size = _number(made, "peak_memory_bytes")
    return None if size is None else round(size / _MIB)
