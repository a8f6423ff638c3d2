"""Requests to search: a recipe with the key search, and where it runs."""

from pathlib import Path

from pydantic import Field, field_validator

from pruning.recipe import Recipe
from pruning.recipe_file import recipe_from_yaml
from pruning.requests import options
from pruning.requests.base import command_line, option_words
from pruning.requests.recipe import Machine, machine_of


class SearchRequest(Machine):
    """A search for the allocation; `recipe` is the text of a recipe.

    `out` is the folder that gets plan, result and log; a log that is there is continued.
    """

    recipe: str = Field(min_length=1, max_length=1 << 20)
    out: options.SearchFolder

    @field_validator("recipe")
    @classmethod
    def _asks_for_a_search(cls, value: str) -> str:
        if recipe_from_yaml(value).search is None:
            raise ValueError("the recipe has no key search; it needs at least search: {corpus: C}")
        return value

    def parsed(self) -> Recipe:
        """The recipe."""
        return recipe_from_yaml(self.recipe)

    @property
    def machine(self) -> Machine:
        """Where it runs."""
        return machine_of(self.parsed(), self)

    def command(self, recipe: str = "recipe.yaml") -> str:
        """The equivalent command line; `recipe` names the file that holds the recipe."""
        return command_line("search", recipe, *option_words(self))


def search_of_file(path: Path, out: Path, machine: Machine) -> SearchRequest:
    """The search that a recipe in a file asks for."""
    return machine.into(SearchRequest, recipe=path.read_text(encoding="utf-8-sig"), out=out)
