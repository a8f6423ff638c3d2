"""The command that searches for the number of experts that each layer loses: search."""

from analysis.errors import PlanError
from analysis.model import load_model_index
from app.cli.derive import command
from app.cli.options import Recipe
from app.cli.say import say_plan, say_search
from app.console import follow
from pruning.plan import load_plan
from pruning.recipe_file import load_recipe
from pruning.requests.options import SearchFolder
from pruning.requests.recipe import Machine
from pruning.requests.search import search_of_file
from pruning.search.result import PLAN_NAME
from pruning.tasks.search import search_folder, search_run


@command(Machine)
def search(request: Machine, *, path: Recipe, out_dir: SearchFolder | None = None) -> None:
    """Search for the best allocation of a budget; interrupt it, and the best so far is kept."""
    recipe = load_recipe(path)
    if recipe.search is None:
        raise PlanError(
            f"The recipe {path} has no key search; it needs at least search: {{corpus: CORPUS}}."
        )
    folder = out_dir or search_folder(path)
    result = follow(search_run(search_of_file(path, folder, request)))
    model = load_model_index(recipe.model, revision=recipe.revision)
    say_plan(model, load_plan(folder / PLAN_NAME, model=model), folder / PLAN_NAME)
    say_search(result, folder)
