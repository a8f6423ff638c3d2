"""What is wrong with a source that an export would hand on: parts left behind, parts that lack.

A prediction head in a file that no index lists is read as part of the model, but readers differ on
it: whoever exports says whether it stays, and then the export lists it. No other part of a model
may be in such a file. An expert that lacks a scale which others have makes engines compute NaN.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from analysis.checkpoint.companions import missing_code
from analysis.checkpoint.index import INDEX_NAME, SINGLE_NAME
from analysis.errors import ExportError
from analysis.model.expert_parts import Lack, lacking_parts
from analysis.model.moe_model import MoEModel
from analysis.model.other_files import MODEL_PARTS, OtherFile, other_files
from analysis.model.outline import without_weights
from analysis.nonuniform.modeling_file import MODELING_NAME
from pruning.plan.heads import HeadChoice
from pruning.plan.layer_words import ranges

_SHOWN = 3


def check_source(
    model: MoEModel, kept: Mapping[int, Collection[int]], choice: HeadChoice | None
) -> None:
    """Refuse an export that leaves a part of the model behind without a word, or hands on a lack.

    `kept` are the experts of each layer that stay, `choice` is what was asked for its heads.
    """
    _check_other_files(model, choice)
    if lacks := _lacks_of(model, kept):
        raise ExportError(f"{_listed(lacks)}; {_remedy(lacks)}.")


def _check_other_files(model: MoEModel, choice: HeadChoice | None) -> None:
    for file in other_files(model):
        if file.is_read and choice is None:
            raise ExportError(
                f"{file.name} holds {file.words}, and {_index(model)} does not list it, so readers "
                "differ on whether it belongs to the model; say what to do with it: --mtp keep or "
                "prune, which list it in the export, or --mtp drop."
            )
        if not file.is_read and MODEL_PARTS.intersection(file.holdings):
            raise ExportError(
                f"{file.name} holds {file.words}, and {_index(model)} does not list it; fetch the "
                "index again, or move the file out of the folder if it is no part of the model."
            )


def source_notes(model: MoEModel, kept: Mapping[int, Collection[int]] | None = None) -> list[str]:
    """What is wrong with a source, a sentence each, for people.

    With `kept`, layer -> experts of a plan, only these are asked for their parts.
    """
    notes = [f"{problem}." for problem in missing_files(model)]
    notes += [
        f"{file.name} is not in {_index(model)}: it holds {file.words}; {_outcome(file)}."
        for file in other_files(model)
    ]
    if lacks := _lacks_of(model, kept):
        notes.append(f"{_listed(lacks)}; export refuses to keep them: {_remedy(lacks)}.")
    return notes


def left_behind(model: MoEModel) -> list[str]:
    """The files that an export leaves out whatever it is asked for, and what they hold."""
    return [f"{file.name}: {file.words}" for file in other_files(model) if not file.is_read]


def missing_files(model: MoEModel) -> list[str]:
    """Code that the source names and lacks, and so its export; readers that run it fail."""
    if without_weights(model):  # nor is its code here
        return []
    absent = missing_code(model.checkpoint.path, (MODELING_NAME,))
    return [f"{name} is missing, so verify will fail; fetch it" for name in absent]


def part_problems(model: MoEModel) -> Iterator[str]:
    """What experts of a checkpoint lack, for a check of it."""
    yield from map(_words, lacking_parts(model))


def _lacks_of(model: MoEModel, kept: Mapping[int, Collection[int]] | None) -> list[Lack]:
    """What the kept experts lack; None: all of them. Layers without an entry stay whole."""
    found = []
    for lack in lacking_parts(model):
        stays = lack.experts if kept is None else kept.get(lack.layer, lack.experts)
        if experts := tuple(expert for expert in lack.experts if expert in stays):
            found.append(Lack(lack.layer, lack.projection, lack.part, experts, lack.others))
    return found


def _words(lack: Lack) -> str:
    several = len(lack.experts) > 1
    return (
        f"expert{'s' * several} {ranges(lack.experts)} of layer {lack.layer} "
        f"lack{'s' * (not several)} {lack.part} of {lack.projection}, which {lack.others} "
        f"other{'s have' if lack.others > 1 else ' has'}"
    )


def _listed(lacks: Sequence[Lack]) -> str:
    more = f"; and {len(lacks) - _SHOWN} more such parts" if len(lacks) > _SHOWN else ""
    text = "; ".join(map(_words, lacks[:_SHOWN])) + more
    return text[0].upper() + text[1:]


def _remedy(lacks: Sequence[Lack]) -> str:
    """How a plan removes these experts."""
    experts: defaultdict[int, set[int]] = defaultdict(set)
    for lack in lacks:
        experts[lack.layer].update(lack.experts)
    words = " ".join(f"--drop {layer}:{ranges(ids)}" for layer, ids in sorted(experts.items()))
    return (
        "engines compute NaN or wrong values for tokens that reach one; plan with "
        f"{words}, or complete the checkpoint"
    )


def _outcome(file: OtherFile) -> str:
    if file.is_read:
        return "read as part of the model, and export asks what to do with it (--mtp)"
    if MODEL_PARTS.intersection(file.holdings):
        return "not read, and export refuses to leave it behind"
    return "not read, and export leaves it out"


def _index(model: MoEModel) -> str:
    has_single = any(shard.name == SINGLE_NAME for shard in model.checkpoint.shards)
    return SINGLE_NAME if has_single else INDEX_NAME
