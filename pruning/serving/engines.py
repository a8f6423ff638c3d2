"""Which programs read a checkpoint, and why: for `inspect`, the model card and the export page.

Of transformers and `load_pruned` the tests of every family tell; of serving engines the rows that
`tests/engines` measured (`engine_results`). Nothing is loaded.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from analysis.families.base import WIDTHS_KEY
from analysis.families.native import is_registered_here
from analysis.model.loadable import cut_blocks, unloadable
from analysis.model.moe_model import MoEModel
from pruning.plan.experts_per_token import selecting
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan, changes_nothing, removes_nothing
from pruning.plan.widths import WidthPlan, widths_config
from pruning.serving.engine_results import ENGINES, Row, condition_of, results
from pruning.serving.engine_traits import HEADS, Traits, dequantised_traits, differences, traits_of

_OURS: Final = "moeprune"
_LOADER: Final = f"{_OURS}, load_pruned"
_TRUSTING: Final = "transformers, trust_remote_code=True"
DEFAULT_ROPE_BASE = 10_000  # of readers, if the configuration gives none


class Reads(StrEnum):
    """What came of giving a program a checkpoint of this kind."""

    TRIED = "tried"  # it loads and computes the same
    WRONG = "wrong results"  # it loads and silently computes something else
    FAILS = "fails"
    NOT_TRIED = "not tried"


_LABELS: Final = {
    Reads.TRIED: "loads in",
    Reads.WRONG: "wrong results in",
    Reads.FAILS: "fails in",
    Reads.NOT_TRIED: "not tried",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one program reads a checkpoint."""

    engine: str  # the program and its options
    reads: Reads
    reason: str  # why, in one line; says so where it was not tried
    condition: str = ""  # an option without which results are wrong on a CPU; empty for none
    options: str = ""  # of its first command for this checkpoint

    @property
    def option(self) -> str:
        """The condition in words; empty for none."""
        return f"on a CPU only with {self.condition}" if self.condition else ""


@dataclass(frozen=True, slots=True)
class Contents:
    """What decides who reads a checkpoint."""

    counts: tuple[int, ...]  # routed experts of each sparse layer
    model_type: str  # of its configuration
    in_transformers: bool = True  # transformers has classes for this model type
    loads_part: bool = False  # see `MoEFamily.loads_part`
    quantisation: str = ""  # transformers' name of the method; empty for none
    unloadable: str = ""  # why quantised weights cannot be loaded here; empty if they can
    cut_blocks: str = ""  # why transformers alone cannot dequantise it; empty if it can
    has_own_widths: bool = False  # some experts are narrower than the configuration's width
    is_discovered: bool = False  # the architecture is not in the table of families: untested
    # The rotary base is only in `rope_parameters`, which readers older than transformers 5 ignore,
    # and differs from the 10,000 that they assume.
    hides_rope: bool = False
    lacks_keys: tuple[str, ...] = ()  # of `MoEFamily.engine_keys`, those that config.json lacks
    traits: Traits = ()  # which variant of its family it is
    # What a plan removes, where every layer and every expert stays alike.
    removes: str = "original"
    top_k_differs: bool = False  # layers select different numbers of experts per token

    @property
    def cut(self) -> str:
        """The kind of cut, of `engine_results.CUTS`."""
        if self.has_own_widths:
            return "neurons per layer"
        return self.removes if self.is_uniform else "experts per layer"

    @property
    def is_uniform(self) -> bool:
        """Whether every sparse layer has as many experts of the same width."""
        return len(set(self.counts)) == 1 and not self.has_own_widths

    def dequantised(self) -> "Contents":
        """The same with all weights in bfloat16."""
        traits = dequantised_traits(self.traits, self.quantisation)
        return replace(self, quantisation="", unloadable="", cut_blocks="", traits=traits)


def contents_of(
    model: MoEModel,
    plan: PruningPlan | None = None,
    widths: WidthPlan | None = None,
    *,
    padded: bool = False,
    keeps_heads: bool = False,
) -> Contents:
    """The contents of a checkpoint, or of its export by a complete plan, see `fit_plan`.

    `padded`: layers that keep fewer experts are filled up, see `surgery.padding`; `keeps_heads`:
    the export has prediction heads, if the checkpoint has.
    """
    changes = widths_config(widths, model) if widths else {}
    widths_by_layer = changes.get(WIDTHS_KEY, model.config.get(WIDTHS_KEY))
    is_cut = plan is not None and not removes_nothing(plan, model)
    is_changed = plan is not None and not changes_nothing(plan, model)
    inner = model.config.get("rope_parameters")
    base = inner.get("rope_theta") if isinstance(inner, dict) else None
    top_k = plan.top_k if plan else {}
    counts = [len(plan.kept[layer.index]) if plan else layer.num_experts for layer in model.layers]
    return Contents(
        counts=(max(counts),) * len(counts) if padded else tuple(counts),
        model_type=model.family.model_type,
        in_transformers=not is_registered_here(model.family.model_type),
        loads_part=model.family.loads_part,
        quantisation=model.quantisation,
        unloadable=unloadable(model),
        cut_blocks=cut_blocks(model),
        has_own_widths=bool(widths_by_layer),
        is_discovered=model.family.discovered,
        hides_rope=model.config.get("rope_theta") is None and base not in (None, DEFAULT_ROPE_BASE),
        lacks_keys=tuple(key for key in model.family.engine_keys if model.config.get(key) is None),
        traits=traits_of(model, is_pruned=is_changed, keeps_heads=keeps_heads),
        removes=equal_cut(plan, padded=padded) if plan and is_cut else "original",
        top_k_differs=len({selecting(layer, top_k).top_k for layer in model.layers}) > 1,
    )


def equal_cut(plan: PruningPlan, *, padded: bool = False) -> str:
    """The cut of an export with equal layers: `experts`, `neurons`, or `padded`."""
    if padded:
        return "padded"
    return "neurons" if plan.granularity == NEURON_GRANULARITY else "experts"


def summary(of_programs: Iterable[Verdict]) -> str:
    """The programs by what came of trying them, on one line."""
    programs: dict[str, list[str]] = {label: [] for label in _LABELS.values()}
    all_verdicts = tuple(of_programs)
    trusting = any(verdict.engine == _TRUSTING for verdict in all_verdicts)
    for verdict in all_verdicts:
        name, _, option = verdict.engine.partition(", ")
        if trusting and verdict.engine == "transformers":
            option = "without trust_remote_code"
        option = option or verdict.option
        programs[_LABELS[verdict.reads]].append(f"{name} ({option})" if option else name)
    return "; ".join(f"{label}: {', '.join(names)}" for label, names in programs.items() if names)


@dataclass(frozen=True, slots=True)
class Readers:
    """The programs that were tried and read a checkpoint."""

    plain: tuple[str, ...]  # as they come
    special: tuple[str, ...]  # only with remote code, or by a loader of our own

    @property
    def words(self) -> str:
        """Those that read it as they come; if there are none, what it takes; empty for nothing."""
        only = " or ".join(self.special)
        return ", ".join(self.plain) or (f"only {only}" if only else "")


def readers(of_programs: Iterable[Verdict]) -> Readers:
    """Which programs read the checkpoint as they come, and which need more.

    An option that an engine has by itself, such as `--no-mtp`, is no remote code.
    """
    tried = [verdict.engine for verdict in of_programs if verdict.reads is Reads.TRIED]
    plain = tuple(name for name in tried if name != _TRUSTING and not name.startswith(_OURS))
    special = {_TRUSTING: "transformers with remote code", _LOADER: "load_pruned"}
    return Readers(plain, tuple(special[name] for name in tried if name in special))


def readers_of_layers(model: MoEModel, *, is_even: bool) -> Readers:
    """The programs that read exports of whole experts, with equal layers or with uneven ones."""
    most = max(layer.num_experts for layer in model.layers)
    counts = (most,) * 2 if is_even else (most, most - 1)
    traits = traits_of(model, is_pruned=True, keeps_heads=False)
    removes = "experts" if is_even else "original"
    contents = replace(contents_of(model), counts=counts, traits=traits, removes=removes)
    return readers(verdicts(contents))


def load_code(model: MoEModel, contents: Contents, name: str) -> str:
    """Python that loads a checkpoint and its tokenizer, or says why there is none.

    `name` is the right side of `name = `.
    """
    if contents.unloadable:
        reader = f"an engine that reads {contents.quantisation}"
        where = " on a CPU" if contents.quantisation == "fp8" else ""
        return (
            f"# Not by transformers{where}: {contents.unloadable}.\n# By {reader}; none was tried."
        )
    auto_class = model.family.auto_class
    imports = f"from transformers import {auto_class}, AutoTokenizer"
    # A reader without the flag stops with an error.
    flag = "" if contents.is_uniform else ", trust_remote_code=True"
    load = f"{auto_class}.from_pretrained(name{flag})"
    in_part = contents.loads_part and not contents.is_uniform
    if not contents.in_transformers or contents.cut_blocks or in_part:
        imports = "from pruning import load_pruned  # MoE Prune Studio\n"
        imports += "from transformers import AutoTokenizer"
        load = "load_pruned(name)"
    return (
        f"{imports}\n\nname = {name}\nmodel = {load}\n"
        "tokenizer = AutoTokenizer.from_pretrained(name)"
    )


def verdicts(contents: Contents) -> tuple[Verdict, ...]:
    """Of each program, whether it reads the checkpoint."""
    return (
        *_transformers(contents),
        _load_pruned(contents),
        *(_engine(name, contents) for name in ENGINES),
        Verdict("SGLang", Reads.NOT_TRIED, f"it has no kernels for a CPU{_missed(contents)}"),
    )


def _missed(contents: Contents) -> str:
    """What engines look for in config.json and do not find there."""
    reasons = []
    if contents.hides_rope:
        reasons.append("rope_theta is only in rope_parameters, which older versions miss")
    if contents.lacks_keys:
        keys = " and ".join(contents.lacks_keys)
        reasons.append(f"config.json lacks {keys}, which published ones have and engines read")
    return "".join(f"; {reason}" for reason in reasons)


def _engine(name: str, contents: Contents) -> Verdict:
    """What the engine's rows on this family, cut and traits say."""
    label, key = ENGINES[name], (name, contents.model_type, contents.cut)
    if contents.top_k_differs:
        return Verdict(label, Reads.NOT_TRIED, "experts per token that differ by layer")
    rows = [row for row in results() if (row.engine, row.model_type, row.cut) == key]
    # Also of families that were not tried: the engine's fault goes with the trait.
    options = condition = condition_of(name, contents.traits)
    needs = f"; on a CPU only with {condition}: without it, it gives wrong tokens there"
    needs = (needs if condition else "") + _missed(contents)
    if not rows:
        what = f"{contents.model_type}, this cut{needs}"
        return Verdict(label, Reads.NOT_TRIED, what, condition, options)
    deciding = [row for row in rows if _decides(row, rows, contents)]
    traits = {*contents.traits}
    nearest = min(deciding or rows, key=lambda row: len({*row.traits} ^ traits))
    reads, why = _row_verdict(nearest, contents, decides=bool(deciding))
    if nearest.no_mtp and HEADS not in contents.traits:
        options = "--no-mtp"
    ran = f"{nearest.versions}, {nearest.date}"
    return Verdict(label, reads, f"{why}; {ran}{needs}", condition, options)


def _row_verdict(row: Row, contents: Contents, *, decides: bool) -> tuple[Reads, str]:
    """What the row of the nearest traits says of a checkpoint, and why."""
    if not decides:
        is_wrong = (row.differs and not row.is_rounded) or row.fault
        outcome = "gave wrong results" if is_wrong else "loaded" if row.works else "failed"
        what = differences(contents.traits, row.traits)
        family = f"a tiny model of this family {outcome}"
        return Reads.NOT_TRIED, f"{family}; this variant was not tried ({what})"
    if row.works and row.fault:
        return Reads.WRONG, f"equal tokens of this cut of a tiny model, not of others: {row.fault}"
    if row.works:
        equal = f"a tiny random model: {row.tokens} greedy tokens equal"
        return Reads.TRIED, f"{equal}, log-probabilities to {row.difference or 0:.0e}"
    if row.is_rounded:
        return Reads.TRIED, row.why
    if row.is_of_cpu:
        return Reads.NOT_TRIED, row.why
    fails_whole = row.cut != "original" and any(
        not other.works
        for other in results()
        if (other.engine, other.case, other.cut) == (row.engine, row.case, "original")
    )
    why = f"{row.why} (so does the original)" if fails_whole else row.why
    return Reads.WRONG if row.differs else Reads.FAILS, why


def _decides(row: Row, rows: Iterable[Row], contents: Contents) -> bool:
    """Whether the row tells of this checkpoint: it has the same traits, or fails whatever they are.

    Engines without a class, or with one size for all layers; and what goes wrong without a trait
    goes wrong with it, unless another of the rows works that has more of them.
    """
    if row.is_right or row.traits == contents.traits:
        return row.traits == contents.traits
    if row.no_class or "per layer" in row.cut:
        return True
    is_mended = any(other.is_right and {*row.traits} < {*other.traits} for other in rows)
    return {*row.traits} <= {*contents.traits} and not is_mended


def _load_pruned(contents: Contents) -> Verdict:
    sizes = "number and width" if contents.has_own_widths else "number"
    builds = f"builds each layer with its own {sizes} of experts; runs no remote code"
    if contents.unloadable:
        return Verdict(_LOADER, Reads.FAILS, contents.unloadable)
    if contents.quantisation:
        builds += "; quantised experts are dequantised on a CPU, on a GPU not tried"
    if contents.is_discovered:
        reason = f"if transformers has a class for {contents.model_type!r}: {builds}"
        return Verdict(_LOADER, Reads.NOT_TRIED, reason)
    return Verdict(_LOADER, Reads.TRIED, builds)


def _transformers(contents: Contents) -> Sequence[Verdict]:
    plain, kind = "transformers", repr(contents.model_type)
    if why := contents.unloadable or contents.cut_blocks:
        # What stops it is done where no GPU computes in FP8.
        if contents.quantisation == "fp8" and contents.is_uniform:
            reason = f"on a GPU that computes in FP8; on a CPU {why}"
            return (Verdict(plain, Reads.NOT_TRIED, reason),)
        return (Verdict(plain, Reads.FAILS, why),)
    if not contents.in_transformers:
        reason = f"transformers 5 has no class for {kind}; use load_pruned"
        return (Verdict(plain, Reads.FAILS, reason),)
    if contents.is_uniform:
        reason = "one number of experts for all layers, as in its configuration"
        if contents.is_discovered:
            return (Verdict(plain, Reads.NOT_TRIED, f"{reason}; if it has a class for {kind}"),)
        return (Verdict(plain, Reads.TRIED, reason),)
    alike = f"{max(contents.counts)} experts in every layer, some have {min(contents.counts)}"
    if contents.has_own_widths:
        alike = "every expert with one width, some have fewer neurons"
    stops = f"its classes build {alike}: it stops with a RuntimeError over sizes"
    if contents.loads_part:
        return (Verdict(plain, Reads.FAILS, f"{stops}; use load_pruned"),)
    runs = "runs modeling_pruned.py, which comes with the checkpoint"
    trusting = Verdict(_TRUSTING, Reads.TRIED, runs)
    return (Verdict(plain, Reads.FAILS, stops), trusting)
