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
        return _missing_groups(context, criterion)
    if criterion.source == "weights" and data.weight_run(context.model) is None:
        return (
            f"{criterion.label} reads the weights of {literal(context.model.name)}, which have not "
            "been measured yet. Start that on the **Start** page: it takes seconds."
        )
    return None


def _missing_groups(context: Context, criterion: Criterion) -> str | None:
    """What to say of a text in use whose run lacks statistic groups that the criterion reads."""
    groups = groups_for(criterion.columns("applied"))
    for corpus, weight in context.weights.items():
        lacking = set(groups) - set(context.runs[corpus].manifest.groups)
        if weight > 0 and lacking:
            return (
                f"{criterion.label} reads what the statistics of {literal(corpus)} lack. Collect "
                f"it on the **Start** page or with `moeprune calibrate`, as `--groups "
                f"{','.join(groups)}` and with the same text."
            )
    return None
