"""Plans that remove neurons inside experts: from statistics, from weights, or from a file."""

from pathlib import Path

from analysis.model import MoEModel, load_model_index
from app.commands.rank import say_run
from app.commands.widths import show_width_options
from app.console import follow, out
from app.settings import stats_store
from pruning.atoms.kept import count_atoms
from pruning.plan import PruningPlan, save_plan
from pruning.planning.make import check_request, plan_from_stats
from pruning.requests.plan import PlanRequest


def write_atomic_plan(request: PlanRequest, path: Path) -> None:
    """Write the plan that was asked for, and print what it saves in each width mode.

    Raises:
        UserError: it cannot be made.
    """
    model = load_model_index(request.model, revision=request.revision)
    check_request(request, model)
    made, ranking = follow(plan_from_stats(request, model, stats_store(request.stats_dir)))
    for run in ranking.choice.runs if ranking else ():
        say_run(run)
    save_plan(made.plan, path)
    say_neurons(model, made.plan, path)
    for note in made.notes:
        out.print(note, markup=False)
    routing = ranking.routing if ranking else None
    show_width_options(model, made.plan, request.width_multiple_of, routing)


def say_neurons(model: MoEModel, plan: PruningPlan, path: Path) -> None:
    """Print what a plan of neurons keeps, in one line."""
    kept, of = count_atoms(plan.kept_atoms, plan.kept, model)
    out.print(
        f"{path}: keeps {kept} of {of} neurons ({1 - kept / of:.2%} removed), "
        f"digest {plan.digest[:8]}",
        markup=False,
    )
