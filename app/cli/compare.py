"""The command that compares two recipes: compare."""

from pathlib import Path
from typing import TYPE_CHECKING

from app.cli import options
from app.cli.derive import command
from app.cli.files import write_csv
from app.cli.say import say_runs
from app.console import follow, out, show_facts
from pruning.requests.pair import TwoRecipesRequest

if TYPE_CHECKING:
    from pruning.planning.ranking import Selection


@command(TwoRecipesRequest)
def compare(request: TwoRecipesRequest, *, out_file: options.Out = Path("comparison.csv")) -> None:
    """Compare two recipes: which experts both keep, only one, or neither; writes CSV."""
    from pruning.planning.comparing import compare_request
    from pruning.tasks.selection import selection_for

    recipes = request.recipes(request.criterion, request.with_criterion, request.sparsity)
    pair = compare_request(*recipes)
    _show(follow(selection_for(pair.a)), follow(selection_for(pair.b)), out_file)


def _show(first: "Selection", second: "Selection", path: Path) -> None:
    from analysis.ranking.compare import FATES
    from pruning.planning.comparing import compare_selections

    comparison = compare_selections(first, second)
    write_csv(comparison.table(), path)
    show_facts(
        {
            "equal decisions": comparison.agreement,
            "jaccard of the pruned": comparison.jaccard,
            "kendall tau, mean of layers": comparison.kendall_tau,
            **{f"kept by {fate}": comparison.count(fate) for fate in FATES},
        }
    )
    for side, selection in (("A", first), ("B", second)):
        request = selection.request
        out.print(f"{side}: {selection.criterion.label} at {request.sparsity}", markup=False)
        say_runs(selection)
    out.print(f"{path}: {len(comparison.table())} experts; rank 0 is kept first", markup=False)
