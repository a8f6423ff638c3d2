"""Evaluate: the loss of pruning, measured here and reported in papers."""

from app.charts.context import Context
from app.frame.controls import switch
from app.frame.job_panel import job_panel
from app.frame.notes import cannot_run
from app.parts.context import draw_page
from app.parts.evaluate.ask import ask_part
from app.parts.evaluate.benchmarks import benchmark_part
from app.parts.evaluate.own_results import own_part
from app.parts.evaluate.published import published_part
from app.parts.evaluate.variance import hidden_states_part

_PARTS = {
    "own": own_part,
    "benchmarks": benchmark_part,
    "hidden": hidden_states_part,
    "ask": ask_part,
}


def evaluate_page(context: Context) -> Context:
    """The page."""
    source = switch(
        "Source",
        "results",
        {
            "own": "This model",
            "benchmarks": "Benchmarks",
            "hidden": "Hidden states",
            "ask": "Ask both models",
            "papers": "The papers",
        },
    )
    if source == "papers":
        published_part()
    elif source == "benchmarks" or not cannot_run(context.model):  # results may come from elsewhere
        _PARTS[source](context)
        job_panel(f"evaluate.{source}")
    return context


draw_page(evaluate_page)
