"""Which programs read a checkpoint, and why: for `inspect`, the model card and the export page.

A verdict on a program that the tests do not run says so. Nothing is loaded.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from analysis.checkpoint import Config
from analysis.families.base import WIDTHS_KEY
from analysis.families.native import is_registered_here
from analysis.model import MoEModel
from pruning.atoms.widths import WidthPlan, widths_config
from pruning.plan import PruningPlan

NOT_TRIED = "not tried here"
DEFAULT_ROPE_BASE = 10_000  # of readers, if the configuration gives none


class Reads(StrEnum):
    """Whether a program reads a checkpoint."""

    YES = "yes"
    EXPECTED = "expected to"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one program reads a checkpoint."""

    engine: str  # the program and its options
    reads: Reads
    reason: str  # why, in one line; says so where it was not tried


@dataclass(frozen=True, slots=True)
class Contents:
    """What decides who reads a checkpoint."""

    counts: tuple[int, ...]  # routed experts of each sparse layer
    model_type: str  # of its configuration
    in_transformers: bool = True  # transformers has classes for this model type
    quantisation: str = ""  # transformers' name of the method; empty for none
    unloadable: str = ""  # why quantised weights cannot be loaded here; empty if they can
    has_own_widths: bool = False  # some experts are narrower than the configuration's width
    is_discovered: bool = False  # the architecture is not in the table of families: untested
    # The head is tied to the embedding, but the family's engines need a separate one.
    lacks_head: bool = False
    # The rotary base is only in `rope_parameters`, which readers older than transformers 5 ignore,
    # and differs from the 10,000 that they assume.
    hides_rope: bool = False

    @property
    def is_uniform(self) -> bool:
        """Whether every sparse layer has as many experts of the same width."""
        return len(set(self.counts)) == 1 and not self.has_own_widths


def contents_of(
    model: MoEModel, plan: PruningPlan | None = None, widths: WidthPlan | None = None
) -> Contents:
    """The contents of a checkpoint, or of its export by a complete plan, see `fit_plan`."""
    said = {WIDTHS_KEY: model.config.get(WIDTHS_KEY)}
    said |= widths_config(widths, model) if widths else {}
    counts = (len(plan.kept[each.index]) if plan else each.num_experts for each in model.layers)
    return Contents(
        counts=tuple(counts),
        model_type=model.family.model_type,
        in_transformers=not is_registered_here(model.family.model_type),
        quantisation=model.quantisation,
        unloadable=model.unloadable,
        has_own_widths=bool(said[WIDTHS_KEY]),
        is_discovered=model.family.discovered,
        hides_rope=_hides_rope(model.config),
        lacks_head=plan is None and model.tied_embedding is not None,
    )


def _hides_rope(config: Config) -> bool:
    inner = config.get("rope_parameters")
    base = inner.get("rope_theta") if isinstance(inner, dict) else None
    return config.get("rope_theta") is None and base not in (None, DEFAULT_ROPE_BASE)


# Program -> why it cannot have layers of different sizes.
_ONE_COUNT = {
    "vLLM": "its classes read one number of experts for all layers",
    "SGLang": "its classes read one number of experts for all layers",
    "llama.cpp": "its file format holds one number of experts for all layers",
}


# Program -> what it does with a tied head of a family that `needs_own_head`.
_TIED = {
    "vLLM": "it ignores tie_word_embeddings here and repeats one token",
    "llama.cpp": "it stops, as output.weight is missing",
}


# Server or converter -> its command line for a checkpoint folder.
_SERVES: Final[Mapping[str, str]] = {
    "vLLM": "vllm serve {}",
    "SGLang": "python -m sglang.launch_server --model-path {}",
    "llama.cpp": "python convert_hf_to_gguf.py {} --outfile model.gguf",
}


def serve_commands(found: Iterable[Verdict], path: str) -> dict[str, str]:
    """Program -> the command that serves or converts the folder, if it should read it."""
    known = [each.engine for each in found if each.reads is not Reads.NO]
    place = shlex.quote(path)
    return {engine: _SERVES[engine].format(place) for engine in known if engine in _SERVES}


def load_code(model: MoEModel, contents: Contents, name: str) -> str:
    """Python that loads a checkpoint and its tokenizer; `name` is the right side of `name = `."""
    auto_class = model.family.auto_class
    imports = f"from transformers import {auto_class}, AutoTokenizer"
    # A reader without the flag stops with an error.
    flag = "" if contents.is_uniform else ", trust_remote_code=True"
    load = f"{auto_class}.from_pretrained(name{flag})"
    if not contents.in_transformers:
        imports = "from pruning import load_pruned  # MoE Prune Studio\n"
        imports += "from transformers import AutoTokenizer"
        load = "load_pruned(name)"
    return (
        f"{imports}\n\nname = {name}\nmodel = {load}\n"
        "tokenizer = AutoTokenizer.from_pretrained(name)"
    )


def verdicts(contents: Contents) -> tuple[Verdict, ...]:
    """A verdict on each program, the best known first."""
    own, reads, reason = "number", Reads.NO, ""
    if contents.has_own_widths:
        own, reason = "number and width", "one width for all experts is expected"
    if contents.is_uniform:
        reads, reason = Reads.EXPECTED, "same layout and keys as the original"
    hidden = "; rope_theta is only in rope_parameters, which older ones miss"
    rope = hidden if contents.hides_rope else ""
    return (
        *_transformers(contents),
        _load_pruned(contents, own),
        *(
            Verdict(engine, Reads.NO, f"{_TIED[engine]}; an export has a head of its own")
            if contents.lacks_head and engine in _TIED
            else Verdict(engine, reads, f"{reason or one_count}; {NOT_TRIED}{rope}")
            for engine, one_count in _ONE_COUNT.items()
        ),
    )


def _load_pruned(contents: Contents, own: str) -> Verdict:
    engine = "moeprune, load_pruned"
    builds = f"builds each layer with its own {own} of experts; runs no remote code"
    if contents.unloadable:
        return Verdict(engine, Reads.NO, contents.unloadable)
    if contents.quantisation:
        builds += f"; quantised experts are dequantised on a CPU, on a GPU {NOT_TRIED}"
    if contents.is_discovered:
        reason = f"if transformers has a class for {contents.model_type!r}: {builds}"
        return Verdict(engine, Reads.EXPECTED, reason)
    return Verdict(engine, Reads.YES, builds)


def _transformers(contents: Contents) -> Sequence[Verdict]:
    plain, kind = "transformers", repr(contents.model_type)
    if not contents.in_transformers:
        reason = f"transformers 5 has no class for {kind}; use load_pruned"
        return (Verdict(plain, Reads.NO, reason),)
    if contents.is_uniform:
        reason = "one number of experts for all layers, as in its configuration"
        if contents.is_discovered:
            reason += f"; if it has a class for {kind}, {NOT_TRIED}"
        return (Verdict(plain, Reads.EXPECTED if contents.is_discovered else Reads.YES, reason),)
    alike = f"{max(contents.counts)} experts in every layer, some have {min(contents.counts)}"
    if contents.has_own_widths:
        alike = "every expert with one width, some have fewer neurons"
    stops = f"its classes build {alike}: it stops with a RuntimeError over sizes"
    runs = "runs modeling_pruned.py, which comes with the checkpoint"
    trusting = Verdict("transformers, trust_remote_code=True", Reads.YES, runs)
    return (Verdict(plain, Reads.NO, stops), trusting)
