"""Cost of statistics, and what each criterion reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.criteria import CRITERIA
from analysis.criteria.base import needs_of
from analysis.stats.manifest import COUNTS_ALONE, Run
from pruning.plan.layer_words import experts_text

SHOWN_COSTS = (
    "model",
    "statistics",
    "fits",
    "shape",
    "tokens",
    "seconds",
    "tokens/s",
    "peak MiB",
)
# Columns of `moeprune runs list`, with the names of its siblings.
LISTED_COSTS = (
    "run",
    *(name for name in SHOWN_COSTS if name not in ("model", "fits")),
    "groups",
    "answers",
    "source",
)
_NEEDS = {
    "data": "calibration corpus",
    "activations": "expert outputs",
    "gates": "gate weights",
    "weights": "expert weights",
}


def cost_rows(runs: Sequence[Run], identity: str) -> list[dict[str, Any]]:
    """One row per run with its cost; runs of the model with this identity first.

    Seconds, tokens per second and peak memory are of the machine that made the run; None if
    unknown. `answers` are given by the documents, the model's own, or served, of traffic; `source`
    is `shipped` or `own`.
    """
    rows = []
    for run in runs:
        model, corpora = run.manifest.model, run.manifest.corpora
        answers = "own" if any("answers" in corpus.prepared for corpus in corpora) else "given"
        if run.manifest.kind == COUNTS_ALONE:
            answers = "served"
        cost = _cost(run.manifest.made)
        rows.append(
            {
                "model": model.name,
                "statistics": run.manifest.corpus or "weights",
                "fits": "this model" if model.identity == identity else "another model",
                "shape": f"{len(model.layers)} x {experts_text(model.layers)}",
                "tokens": run.manifest.num_tokens or None,
                "seconds": cost["seconds"],
                "tokens/s": _number(run.manifest.made, "tokens_per_second"),
                "peak MiB": cost["peak MiB"],
                "top-k": model.layers[0].top_k,
                "made": str(run.manifest.made.get("created_at", ""))[:10],
                "run": run.manifest.run_id,
                "groups": ",".join(run.manifest.groups) or None,
                "answers": answers if corpora else None,
                "source": "shipped" if run.is_shipped else "own",
            }
        )
    own_first = sorted(rows, key=lambda row: (row["model"], row["statistics"]))
    return sorted(own_first, key=lambda row: row["fits"], reverse=True)


def needs_and_costs(routed: Run | None, weights: Run | None) -> list[dict[str, Any]]:
    """What each criterion reads ("yes" or ""), with `seconds` and `peak MiB` on this model.

    As arXiv:2603.18492, Tables 1 and 4. The cost is that of the run, which serves all criteria of
    its kind; None if there is none.
    """
    costs = {
        "routed": routed.manifest.made if routed else {},
        "weights": weights.manifest.made if weights else {},
        "none": {"seconds": 0.0, "peak_memory_bytes": 0},
    }
    return [
        {
            "criterion": criterion.label,
            **{
                words: "yes" if getattr(needs_of(criterion), name) else ""
                for name, words in _NEEDS.items()
            },
            **_cost(costs.get(criterion.source, {})),
        }
        for criterion in CRITERIA.values()
    ]


def _cost(measurements: Mapping[str, Any]) -> dict[str, float | None]:
    size = _number(measurements, "peak_memory_bytes")
    mib = None if size is None else float(round(size / 2**20))
    return {"seconds": _number(measurements, "seconds"), "peak MiB": mib}


def _number(measurements: Mapping[str, Any], name: str) -> float | None:
    value = measurements.get(name)
    return float(value) if isinstance(value, int | float) else None
