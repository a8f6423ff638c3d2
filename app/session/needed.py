"""The statistics that a criterion needs, and how to collect missing ones."""

from analysis.criteria import Criterion
from analysis.stats.groups import groups_for
from app.charts.context import Context
from app.literal import literal
from app.session import data


def what_is_missing(context: Context, criterion: Criterion) -> str | None:
    """Missing statistics of a criterion and what to do; None if it can rank."""
    if criterion.source == "routed" and not context.runs:
        return (
            f"{criterion.label} ranks by routed tokens, but {literal(context.model.name)} has no "
            "calibration yet. Run one on the **Start** page, or choose AIMER or Magnitude, which "
            "need none."
        )
    if criterion.source == "routed":
        groups = groups_for(criterion.columns("applied"))
        for corpus, weight in context.weights.items():
            if weight > 0 and set(groups) - set(context.runs[corpus].manifest.groups):
                return (
                    f"{criterion.label} needs more than the statistics of {literal(corpus)} have. "
                    f"Collect it on the **Start** page or with `moeprune calibrate`, as `--groups "
                    f"{','.join(groups)}` on the same corpus."
                )
    if criterion.source == "weights" and data.weight_run(context.model) is None:
        return (
            f"{criterion.label} reads the weights of {literal(context.model.name)}, which are not "
            "measured yet. Measure them on the **Start** page; this takes seconds."
        )
    return None
