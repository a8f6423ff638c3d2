"""The statistics that a criterion reads, or what is missing and how to get it."""

from analysis.criteria import Criterion
from analysis.stats.groups import groups_for
from app.charts.context import Context
from app.literal import literal
from app.session import data


def what_is_missing(context: Context, criterion: Criterion) -> str | None:
    """What a criterion would read and the model lacks, and what to do; None if it can rank."""
    if criterion.source == "routed" and not context.runs:
        return (
            f"{criterion.label} ranks by routed tokens, and {literal(context.model.name)} has not "
            "been calibrated yet. Start a calibration on the **Start** page, or choose AIMER or "
            "Magnitude, which need none."
        )
    if criterion.source == "routed":
        groups = groups_for(criterion.columns("applied"))
        for corpus, weight in context.weights.items():
            if weight > 0 and set(groups) - set(context.runs[corpus].manifest.groups):
                return (
                    f"{criterion.label} reads what the statistics of {literal(corpus)} lack. "
                    "Collect it on the **Start** page or with `moeprune calibrate`, as `--groups "
                    f"{','.join(groups)}` and with the same text."
                )
    if criterion.source == "weights" and data.weight_run(context.model) is None:
        return (
            f"{criterion.label} reads the weights of {literal(context.model.name)}, which have not "
            "been measured yet. Start that on the **Start** page: it takes seconds."
        )
    return None
