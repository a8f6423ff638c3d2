"""The command that puts two recipes side by side: compare."""

from pathlib import Path
from typing import Annotated

import typer

from analysis.ranking.compare import FATES
from app.commands import options
from app.commands.files import write_csv
from app.commands.rank import say_runs, selection_for
from app.console import out, show_facts
from pruning.planning.comparing import compare_request, compare_selections
from pruning.planning.ranking import Selection


def compare(
    model: options.Model,
    criterion: options.CriterionName,
    sparsity: options.Sparsity,
    with_criterion: Annotated[
        str, typer.Option(help="Criterion of the second recipe: a name, or b,alpha,beta.")
    ],
    corpus: options.Corpora = None,
    gate: options.GateOption = options.DEFAULT_GATE,
    with_corpus: options.WithCorpora = None,
    with_gate: options.WithGate = None,
    with_sparsity: options.WithSparsity = None,
    out_file: options.Out = Path("comparison.csv"),
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
) -> None:
    """Compare two recipes: which experts both keep, only one, or neither; writes CSV."""
    request = compare_request(
        {
            "model": model,
            "criterion": criterion,
            "corpora": tuple(corpus or ()),
            "gate": gate,
            "sparsity": sparsity,
            "revision": revision,
            "stats_dir": stats_dir,
        },
        {
            "criterion": with_criterion,
            "corpora": tuple(with_corpus) if with_corpus else None,
            "gate": with_gate,
            "sparsity": with_sparsity,
        },
    )
    _show(selection_for(request.a), selection_for(request.b), out_file)


def _show(first: Selection, second: Selection, path: Path) -> None:
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
