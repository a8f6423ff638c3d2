"""The command that searches for the number of experts that each layer loses: search."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from analysis.errors import PlanError
from analysis.model import load_model_index
from app.commands import measuring, options
from app.commands.plan import say_plan
from app.console import follow, out, show_table
from app.tasks.search import search_run
from pruning.plan import load_plan
from pruning.recipe_file import load_recipe
from pruning.requests.base import validated
from pruning.requests.recipe import Machine, machine_of
from pruning.requests.search import SearchRequest
from pruning.search.result import PLAN_NAME, RESULT_NAME, SearchResult


def search(
    path: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="recipe.yaml with the key search.")
    ],
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder for plan, result and log; default: RECIPE's name.search."
        ),
    ] = None,
    device: measuring.DeviceOfRecipe = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples in one forward; default: the recipe's.")
    ] = None,
    trust_remote_code: measuring.Trust = False,
    stats_dir: options.StatsDir = None,
) -> None:
    """Search for the best allocation of a budget; interrupt it, and the best so far is kept."""
    recipe = load_recipe(path)
    if recipe.search is None:
        raise PlanError(
            f"The recipe {path} has no key search; it needs at least search: {{corpus: CORPUS}}."
        )
    folder = out_dir or search_folder(path)
    machine = machine_of(
        recipe,
        stats_dir,
        device=device,
        batch_size=batch_size,
        trust_remote_code=trust_remote_code,
    )
    result = run_search_of(path, folder, machine)
    model = load_model_index(recipe.model, revision=recipe.revision)
    say_plan(model, load_plan(folder / PLAN_NAME, model=model), folder / PLAN_NAME)
    say_search(result, folder)


def search_folder(recipe: Path) -> Path:
    """Where the search of a recipe goes unless another folder is given."""
    return recipe.with_name(f"{recipe.stem}.search")


def run_search_of(path: Path, folder: Path, machine: Machine) -> SearchResult:
    """The search that a recipe asks for, to its end."""
    text = path.read_text(encoding="utf-8-sig")
    return follow(
        search_run(validated(SearchRequest, {"recipe": text, "out": folder, **asdict(machine)}))
    )


def say_search(result: SearchResult, folder: Path) -> None:
    """Print how the best compares with the schedules that the search began with."""
    best, cost = result.best_entry, result.cost
    began = [each for each in result.entries if each.origin not in ("random", "mutation")]
    rows = [(each.origin, each.generation, each.fitness) for each in began]
    rows.append((f"best ({best.origin})", best.generation, best.fitness))
    measure = str(result.header["fitness"])
    show_table(f"{measure} on the search samples", ("allocation", "generation", measure), rows)
    out.print(
        f"{folder / RESULT_NAME}: {cost['candidates']:,} candidates in {cost['seconds']:,.0f} s, "
        f"{cost['whole_layers'] / max(1, cost['layers']):.2f}x fewer layers than whole forwards",
        markup=False,
    )
