"""Tasks: the long actions of command line and jobs, each a generator of progress.

A worker finds them by kind in `TASKS`. Heavy libraries are imported when a task starts, so that
listing the kinds stays light.
"""

from collections.abc import Callable, Mapping
from typing import Any

from app.tasks.benchmark import benchmark_task
from app.tasks.bins import bins_task
from app.tasks.calibration import calibrate_task, weights_task
from app.tasks.evaluation import evaluate_task, sweep_task
from app.tasks.export import Task, export_task
from app.tasks.probe import ask_task
from app.tasks.search import search_task
from app.tasks.variance import variance_task

TASKS: Mapping[str, Callable[[dict[str, Any]], Task]] = {
    "calibrate": calibrate_task,
    "weights": weights_task,
    "export": export_task,
    "evaluate": evaluate_task,
    "sweep": sweep_task,
    "search": search_task,
    "benchmark": benchmark_task,
    "bins": bins_task,
    "variance": variance_task,
    "ask": ask_task,
}
