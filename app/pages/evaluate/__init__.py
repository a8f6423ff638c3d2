"""Evaluate: the loss of pruning, measured here and reported in papers."""

from app.loaded import Loaded
from app.pages.evaluate.ask import ask_part
from app.pages.evaluate.benchmarks import benchmark_part
from app.pages.evaluate.own_results import own_part
from app.pages.evaluate.published import published_part
from app.pages.evaluate.text import text_part
from app.pages.evaluate.variance import hidden_states_part
from app.widgets.controls import view_switch
from app.widgets.job_panel import job_panel
from app.widgets.notes import cannot_run
from app.widgets.plan_bar import in_own_bits

_PARTS = {
    "own": own_part,
    "benchmarks": benchmark_part,
    "hidden": hidden_states_part,
    "ask": ask_part,
    "text": text_part,
}
# Asking and scoring a text are one kind of job.
_JOBS = {"text": "ask"}


def draw(loaded: Loaded) -> None:
    """The page."""
    source = view_switch(
        "Source",
        "results",
        {
            "own": "This model",
            "text": "Text lens",
            "benchmarks": "Benchmarks",
            "hidden": "Hidden states",
            "ask": "Ask both models",
            "papers": "The papers",
        },
    )
    if source == "papers":
        published_part()
    elif source == "benchmarks" or not cannot_run(loaded.model):  # results may come from elsewhere
        if source != "own":
            loaded = in_own_bits(loaded, "This part measures")
        _PARTS[source](loaded)
        job_panel(f"evaluate.{_JOBS.get(source, source)}")
