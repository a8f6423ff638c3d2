"""Commands on recipes: init."""

from pathlib import Path
from typing import Annotated

from analysis.files.durable import write_durably
from app.cli import options
from app.cli.derive import command
from app.cli.help import Commands
from app.cli.inspect import headers_or_outline
from app.console import finish
from pruning.option import Option
from pruning.planning.recipes import recipe_template
from pruning.requests.following import folder_of, pruned_name
from pruning.requests.model import ModelRequest
from pruning.requests.recipe_file import recipe_from_yaml
from pruning.spec.base import command_line
from pruning.spec.options import ConfigOnly, Corpus

recipe = Commands("Recipes: init writes one.")


@recipe.callback()
def _recipes() -> None:
    """Keep `init` a command of the group, which has no other."""


@recipe.command()
@command(ModelRequest)
def init(
    request: ModelRequest,
    *,
    out_file: options.Out = Path("recipe.yaml"),
    config_only: ConfigOnly = False,
    corpora: tuple[
        Annotated[Corpus, Option("Corpus that ranks the experts; repeatable.")], ...
    ] = (),
) -> None:
    """Write a commented recipe for a model; `moeprune prune` takes it as it is.

    It evaluates on documents of --corpus that calibration does not read. Without --corpus it names
    c4 and wikitext2, which the hub has.

    Example: moeprune recipe init demo
    """
    model = headers_or_outline(request, config_only=config_only)
    folder = folder_of(request.model)
    text = recipe_template(model, folder, pruned_name(folder), corpora)
    if request.revision:
        text = text.replace("\n\n", f"\nrevision: {request.revision}\n\n", 1)
    draft = recipe_from_yaml(text, name=str(out_file))
    write_durably(out_file, text.encode())
    following = command_line("prune", str(out_file))
    finish(
        f"{out_file}: recipe {draft.digest[:8]} for {model.name}",
        {"file": str(out_file)},
        following,
    )
