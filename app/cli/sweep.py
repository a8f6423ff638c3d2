"""The command of sweeps, which also draws: `pruning` knows no charts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from analysis.criteria.weight_based import RANDOM
from app.cli import options
from app.cli.action import end, perform, show, write
from app.cli.derive import command
from app.console import follow, say
from pruning.actions.action import Call
from pruning.actions.sweep import ACTION
from pruning.measures.result import MEASURES
from pruning.option import Option
from pruning.plan.variant_words import variant_words
from pruning.records.evaluation import evaluation_table
from pruning.records.plan_facts import VARIANT_COLUMNS
from pruning.records.quality import is_random
from pruning.requests.evaluation import SweepRequest

if TYPE_CHECKING:
    import pandas as pd

Against = Literal["removed", "bytes", "active_params", "expert_flops"]


@command(SweepRequest)
def sweep(
    request: SweepRequest,
    *,
    out_file: options.OutTable = Path(SweepRequest.writes),
    figure: Annotated[
        options.OutFigure | None, Option("Draw the first measure too: .html, .svg, .png, .pdf.")
    ] = None,
    against: Annotated[Against, Option("What --figure has below.")] = "removed",
    dry_run: options.Cost = False,
) -> None:
    """The action, and its figure."""
    call = Call(request, out=out_file)
    if dry_run:
        perform(ACTION, call, dry_run=True)
        return
    records = follow(ACTION.run(request))
    outcome = ACTION.tell(call, records)
    show(outcome.shown)
    write(outcome, call)
    if figure:
        _draw(evaluation_table(records), next(iter(records[0].metrics)), against, figure)
    end(outcome, call)


def _draw(table: "pd.DataFrame", measure: str, against: str, path: Path) -> None:
    """Write the figure of a measure, and say in a sentence what it shows."""
    from app.charts.evaluation_curves import curves_figure, describe
    from app.charts.evaluations import pool_draws
    from app.charts.files import write_figure

    names = [
        (RANDOM.name if is_random(row["criterion"]) else row["criterion"])
        + variant_words(*(row[name] for name in VARIANT_COLUMNS))
        for row in table.to_dict("records")
    ]
    rows = pool_draws(table.assign(series=names, way="")[table["measure"] == measure])
    definition = MEASURES[measure]
    write_figure(curves_figure(rows, label=definition.axis, against=against), path)
    text = describe(rows, label=definition.label, higher_is_better=definition.higher_is_better)
    say(f"{path}: {text}")
