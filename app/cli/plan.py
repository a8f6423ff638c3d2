"""The command that makes a plan: plan."""

from pathlib import Path

from analysis.model import load_model_index
from analysis.stats.store import stats_store
from app.cli import options
from app.cli.derive import command
from app.cli.say import say_choice, say_notes, say_plan, show_width_options
from app.console import follow
from pruning.planning.make import check_request, plan_from_stats
from pruning.requests.plan import PlanRequest


@command(PlanRequest)
def plan(request: PlanRequest, *, out_file: options.Out = Path("plan.json")) -> None:
    """Choose the experts that stay, or the neurons in them; writes plan.json."""
    model = load_model_index(request.model, revision=request.revision)
    check_request(request, model)
    made, ranking = follow(plan_from_stats(request, model, stats_store(request.stats_dir)))
    made.plan.save(out_file)
    say_plan(model, made.plan, out_file)
    say_notes(made.notes)
    if ranking:
        say_choice(ranking.choice)
    if request.is_atomic:
        routing = ranking.routing if ranking else None
        show_width_options(model, made.plan, request.width_multiple_of, routing)
