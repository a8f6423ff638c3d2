"""`python -m tools.end_to_end RECIPE`: from weights to an export to serve, with a report.

Runs a recipe, plans by Random with the counts of its plan, measures all of them on the recipe's
held-out corpus, and writes one page: sizes, losses, what was verified, times, and the commands that
serve the export. It only starts commands of `moeprune`, which the page lists; run it again to
resume.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.errors import UserError
from analysis.files.durable import write_durably
from analysis.files.naming import now
from analysis.files.shipped import tool_version
from analysis.model.opening import load_model_index
from pruning.plan.plan import PruningPlan
from pruning.plan.plan_file import load_plan
from pruning.plan.sizes import format_bytes, size_report
from pruning.requests.machine import Machine
from pruning.requests.recipe import Recipe
from pruning.requests.recipe_file import load_recipe
from pruning.requests.recipe_steps import evaluate_request
from pruning.serving.commands import serve_commands, served_by
from pruning.serving.engines import contents_of, verdicts
from pruning.spec.base import command_line, option_words


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and what it said with --json."""

    command: str
    seconds: float
    spoken: dict[str, Any]


Run = Callable[[Sequence[str]], Step]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The plans that are compared: of the recipe, repaired if it asks for that, and Random."""

    plan: Path
    repaired: Path | None
    random: tuple[Path, ...]

    @property
    def names(self) -> list[str]:
        """Their files."""
        return [str(path) for path in (self.plan, self.repaired, *self.random) if path]


def candidates_of(recipe: Recipe, path: Path, draws: int) -> Candidates:
    """The files of a recipe's plans, where `moeprune prune` writes them, and of draws of Random."""
    names = ("random", *(f"random-{number}" for number in range(1, draws)))
    return Candidates(
        path.with_name(f"{path.stem}.plan.json"),
        path.with_name(f"{path.stem}.repaired.json") if recipe.repair else None,
        tuple(path.with_name(f"{path.stem}.{name}.json") for name in names),
    )


def comparison_of(path: Path) -> Path:
    """The file of the evaluations of all plans of a recipe."""
    return path.with_name(f"{path.stem}.compared.json")


def run_step(words: Sequence[str]) -> Step:
    """Run a command of `moeprune`; a UserError with its message if it fails."""
    command = command_line(*words)
    typer.echo(f"$ {command}", err=True)
    started = time.monotonic()
    done = subprocess.run(  # noqa: S603  (a list, no shell)
        [sys.executable, "-m", "app.cli", *words, "--json"], stdout=subprocess.PIPE, check=False
    )
    spoken: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    if done.returncode:
        raise UserError(f"`{command}` failed: {spoken.get('error', 'see above')}")
    return Step(command, time.monotonic() - started, spoken)


def run_all(
    recipe: Recipe, path: Path, machine: Machine, draws: int, run: Run = run_step
) -> tuple[list[Step], Path]:
    """Run everything; the steps, and the plan that was exported."""
    if recipe.search or recipe.plan.by_neuron:
        raise UserError(f"{path} makes no plan of experts; Random is compared with such only.")
    if recipe.evaluate is None:
        raise UserError(f"{path} has no key evaluate, so nothing can be compared; add one.")
    candidates = candidates_of(recipe, path, draws)
    place = list(option_words(machine))
    steps = [run(["prune", str(path), *place])]
    shared = [
        *option_words(recipe, only=("revision",)),
        *option_words(machine, only=("stats_dir",)),
    ]
    for number, file in enumerate(candidates.random):
        criterion = f"random:{number}" if number else "random"
        words = [
            "plan",
            recipe.model,
            "--criterion",
            criterion,
            "--schedule-file",
            str(candidates.plan),
        ]
        steps.append(run([*words, *shared, "-o", str(file), "--force"]))
    plans: list[PruningPlan] = [load_plan(Path(name)) for name in candidates.names]
    request = evaluate_request(recipe, machine, plans)
    if request is None:
        raise ValueError("the recipe measures nothing")
    result = str(comparison_of(path))
    steps.append(run([*shlex.split(request.command(candidates.names, result))[1:], "--force"]))
    return steps, candidates.repaired or candidates.plan


def report_of(recipe: Recipe, path: Path, steps: Sequence[Step], exported: Path) -> str:
    """The page, in Markdown."""
    ran, compared = steps[0].spoken, steps[-1].spoken
    result, table = ran["result"], compared["tables"][0]
    model = load_model_index(recipe.model, revision=recipe.revision)
    plan = load_plan(exported, model=model)
    served, sizes = verdicts(contents_of(model, plan)), size_report(model, plan)
    made = json.loads(comparison_of(path).read_text())["evaluations"][0]["made"]
    versions = ", ".join(f"{name} {number}" for name, number in made["versions"].items())
    folder = str(recipe.export.out) if recipe.export else ""
    serving = serve_commands(served_by(served, folder, model.dtype)) if folder else []
    before, after = sizes.bytes_before, sizes.bytes_after
    seconds = [(f"`{step.command}`", f"{step.seconds / 60:.1f}") for step in steps]
    checks = f"{result['level']}, {result['checks']} checks" if result.get("verified") else "no"
    facts = {
        "Model": f"{model.name}, identity {model.identity[:16]}",
        "Recipe": f"{path.name}, {recipe.digest[:8]}",
        "Experts": f"{sizes.experts_before:,} -> {sizes.experts_after:,}",
        "Weights": f"{format_bytes(before)} -> {format_bytes(after)} ({after / before - 1:+.1%})",
        "Parameters per token": f"{sizes.active_before:,} -> {sizes.active_after:,}",
        "Verified": checks,
        "Machine": f"{made['system']}, {os.cpu_count()} cores, {made['device']}, {versions}",
        "Made": f"{now()[:10]} by version {tool_version()}",
    }
    parts = [
        f"# {model.name}, pruned from end to end",
        _table(("what", "value"), facts.items()),
        "## Losses\n\nOn text that ranked and repaired nothing; Random keeps as many experts.",
        _table(table["columns"], table["rows"]),
        "## Notes",
        "\n".join(f"- {note}" for note in ran["notes"] if note not in serving),
        "## Serve",
        "\n".join(("```bash", *serving, "```")) if folder else "No export.",
        "## Time",
        _table(("command", "minutes"), seconds),
    ]
    return "\n\n".join(parts) + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


app = typer.Typer(add_completion=False)


@app.command()
def main(
    path: Annotated[Path, typer.Argument(metavar="RECIPE", help="recipe.yaml with evaluate.")],
    draws: Annotated[int, typer.Option(min=1, max=10, help="Plans by Random.")] = 3,
    device: Annotated[str | None, typer.Option(help="Default: the recipe's.")] = None,
    stats_dir: Annotated[Path | None, typer.Option(help="Folder of statistics.")] = None,
    output: Annotated[Path | None, typer.Option("-o", help="Default: RECIPE.report.md.")] = None,
) -> None:
    """Run a recipe to its end, beside Random, and write a report."""
    try:
        recipe, machine = load_recipe(path), Machine(device=device, stats_dir=stats_dir)
        page = report_of(recipe, path, *run_all(recipe, path, machine, draws))
    except UserError as error:
        raise typer.BadParameter(str(error)) from error
    target = output or path.with_name(f"{path.stem}.report.md")
    write_durably(target, page.encode())
    typer.echo(page)
    typer.echo(f"{target}", err=True)


if __name__ == "__main__":
    app()
