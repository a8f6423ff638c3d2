"""The command that compares two recipes: compare."""

from pathlib import Path

from analysis.ranking.compare import FATES
from app.cli import options
from app.cli.derive import command
from app.cli.files import write_csv
from app.cli.say import say_choice
from app.console import follow, out, show_facts
from pruning.planning.comparing import compare_request, compare_selections
from pruning.requests.pair import TwoRecipesRequest
from pruning.tasks.sweep import selection_for


@command(TwoRecipesRequest)
def compare(request: TwoRecipesRequest, *, out_file: options.Out = Path("comparison.csv")) -> None:
    """Compare two recipes: which experts both keep, only one, or neither; writes CSV."""
    recipes = request.recipes(request.criterion, request.with_criterion, request.sparsity)
    pair = compare_request(*recipes)
    sides = [follow(selection_for(each)) for each in (pair.a, pair.b)]
    comparison = compare_selections(*sides)
    write_csv(comparison.table(), out_file)
    show_facts(
        {
            "equal decisions": comparison.agreement,
            "jaccard of the pruned": comparison.jaccard,
            "kendall tau, mean of layers": comparison.kendall_tau,
            **{f"kept by {fate}": comparison.count(fate) for fate in FATES},
        }
    )
    for side, selection in zip("AB", sides, strict=True):
        out.print(f"{side}: {selection.criterion.label} at {selection.request.sparsity}")
        say_choice(selection.choice)
    out.print(f"{out_file}: {len(comparison.table())} experts; rank 0 is kept first")
