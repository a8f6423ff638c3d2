"""The command on blends: blend."""

from typing import Annotated

import typer

from analysis.criteria import Criterion, get_criterion
from analysis.errors import StatsError
from analysis.model import MoEModel, load_model_index
from analysis.ranking.coverage import Blender, fair_blend
from analysis.stats.blend import Mixture, Part
from analysis.stats.choose import notes_on_others, parse_corpus_weight, routed_runs
from app.commands import options
from app.commands.rank import say_sources
from app.console import out, show_table
from app.settings import stats_store
from pruning.requests.base import validated
from pruning.requests.plan import PlanRequest
from pruning.schedules.uniform import uniform


def blend(
    model: options.Model,
    criterion: options.CriterionName,
    sparsity: options.Sparsity,
    corpus: options.Corpora = None,
    run: options.Runs = None,
    fair: Annotated[
        bool, typer.Option("--fair", help="Find the weights that cover the worst corpus best.")
    ] = False,
    gate: options.GateOption = options.DEFAULT_GATE,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
) -> None:
    """Mix calibrated corpora: how much of each corpus' saliency the kept experts hold."""
    request: PlanRequest = validated(
        PlanRequest,
        {
            "model": model,
            "criterion": criterion,
            "corpora": tuple(corpus or ()),
            "runs": tuple(run or ()),
            "gate": gate,
            "sparsity": sparsity,
            "revision": revision,
            "stats_dir": stats_dir,
        },
    )
    described = load_model_index(request.model, revision=request.revision)
    # Refuses a sparsity that no plan can have, and names what would work.
    uniform(described.layers, request.sparsity)
    chosen = get_criterion(request.criterion)
    parts, notes = _parts(request, described, chosen)
    names = [part.run.manifest.corpus for part in parts]
    blender = Blender(Mixture([part.run for part in parts]), chosen, request.gate, request.fraction)
    if fair:
        found = fair_blend(blender)
        weights, covered = list(found.weights), list(found.coverage)
    else:
        weights = [part.weight for part in parts]
        covered = blender.coverage(weights).tolist()
    total = sum(weights)
    shares = [weight / total for weight in weights]
    show_table(
        f"Coverage by {chosen.label} at sparsity {request.sparsity}",
        ("corpus", "share", "coverage"),
        list(zip(names, shares, covered, strict=True)),
    )
    mixed = " ".join(
        f"--corpus {name}:{share:.4g}"
        for name, share in zip(names, shares, strict=True)
        if share >= 5e-5
    )
    out.print(f"worst {min(covered):.4f}; use it with {mixed}", markup=False, soft_wrap=True)
    say_sources([part.run for part in parts], notes)


def _parts(
    request: PlanRequest, model: MoEModel, criterion: Criterion
) -> tuple[list[Part], tuple[str, ...]]:
    """The runs to mix, and notes on how they were chosen."""
    store = stats_store(request.stats_dir)
    wanted = [parse_corpus_weight(text) for text in request.corpora]
    if not wanted and not request.runs:
        raise StatsError("Name the corpora to mix with --corpus, or their runs with --run.")
    parts = routed_runs(store, model, wanted, request.runs, criterion)
    if len(parts) < 2:
        raise StatsError("A blend mixes at least two corpora; name them with --corpus or --run.")
    if request.runs:
        return parts, ()
    runs = store.of_model(model.identity, "routed")
    return parts, notes_on_others([part.run for part in parts], runs, criterion)
