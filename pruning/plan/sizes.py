"""The calculator of sizes: bytes, parameters and FLOPs, from headers and configuration alone.

`Tensors` describes a checkpoint. Reports and budgets ask it what takes how much: the source, kept
experts, any experts of given numbers, and experts of given widths, with their padding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal, InvalidOperation
from enum import StrEnum
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from analysis.errors import ExportError, PlanError
from analysis.families.base import SlotKind
from analysis.lazy import pd
from analysis.model.heads import beside_text, prediction_heads
from analysis.model.widths import expert_widths, shared_tensors
from analysis.numbers.arrays import IntArray
from pruning.plan.expert_sizes import Routing, active_experts, bytes_in_bits, expert_shapes
from pruning.plan.experts_per_token import selecting
from pruning.plan.kept import KeptWidths, kept_widths
from pruning.plan.plan import PruningPlan, fit_plan, keep_all, untied_embedding
from pruning.plan.widths import DEFAULT_MULTIPLE, LoadedWidths, WidthChoice, WidthMode, loaded_as

if TYPE_CHECKING:
    from analysis.checkpoint.index import TensorEntry
    from analysis.model.moe_model import MoEModel

# A size is (3,): bytes in the dtypes on disk; weights, see `MoEModel.num_weights`, of which tied
# ones count once; bytes of all that is stored, with 2 bytes per weight.
BYTES, PARAMS, BFLOAT16 = range(3)
SIZE_COLUMNS = ("part", "before", "after", "params_before", "params_after")
NEURON_SIZE_COLUMNS = (
    *("mode", "refused"),
    *("params", "disk", "loaded_params", "loaded"),
    *("active", "expert_flops"),
)
PLAN_ALONE = "plan"
LOADED_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
SIZE_UNITS = {
    **{"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40},
    **{"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
}
_DIGITS = 100  # of a size: 1e-999999999 is not to become a gigabyte of zeros


def parse_bytes(text: str, unit: int = 1) -> Fraction | None:
    """Bytes of a size such as 30GB, `6 MiB` or 13.25, which is in `unit`; None if it is no size."""
    digits = text.strip()
    for name, size in SIZE_UNITS.items():
        if digits.upper().endswith(name):
            digits, unit = digits[: -len(name)], size
            break
    try:
        number = Decimal(digits.rstrip())
    except InvalidOperation:
        return None
    is_size = number.is_finite() and abs(number.adjusted()) < _DIGITS
    return Fraction(number) * unit if is_size else None


def parse_size(text: str) -> int:
    """Bytes of a shard at most, such as `5GB`, `500MB`, `1.5GiB` or `1000000`."""
    size = parse_bytes(text)
    if size is None or size < 0:
        raise ExportError(f"The size {text!r} is not understood; write 5GB, 500MB or 1.5GiB.")
    if size < 1000:
        raise ExportError(f"A shard of at most {int(size)} bytes is too small; give 1KB or more.")
    return int(size)


def format_bytes(size: int) -> str:
    """Bytes for people, in binary units: 12.89 GiB, 10.9 MiB, 812 KiB, 17 B."""
    if size >= 1 << 30:
        return f"{size / (1 << 30):,.2f} GiB"
    if size >= 1 << 20:
        return f"{size / (1 << 20):.1f} MiB"
    return f"{size / (1 << 10):.0f} KiB" if size >= 1 << 10 else f"{size} B"


def format_count(number: int) -> str:
    """Three digits and a unit: 3.05 B, 1.26 M, 337 k."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if abs(number) >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def size_up(size: int) -> str:
    """A size as a target, rounded up to four digits."""
    unit = next((name for name in ("GiB", "MiB") if size >= SIZE_UNITS[name.upper()]), "KiB")
    digits = Context(prec=4, rounding=ROUND_CEILING)
    number = digits.divide(Decimal(size), Decimal(SIZE_UNITS[unit.upper()]))
    return f"{number.normalize():f}{unit}"


class ModelPart(StrEnum):
    """Where the bytes of a checkpoint go."""

    EXPERTS = "routed experts"
    ROUTERS = "routers"
    MLP = "shared and dense MLP"
    ATTENTION = "attention"  # or what replaces it, such as Mamba
    EMBEDDINGS = "embeddings and head"
    OTHER = "norms and other"
    HEADS = "prediction heads (MTP)"  # only if the model has some
    TIED_HEAD = "tied embedding, written as head"  # only if a file for engines needs it


# The first match wins: norms inside attention count as attention, and a mixer is told by its
# contents.
_LAYER = r"(?:.+\.)?(?:layers|blocks)\.\d+\."
_MIXERS = "self_attn|attn|attention|linear_attn|mamba|conv"
_BLOCKS = "mlp|ffn|block_sparse_moe|feed_forward|shared_mlp"
_IN_MIXER = "experts|shared_experts|gate|fc[12]_latent_proj|up_proj|down_proj"
_PART_PATTERNS = (
    (re.compile(rf"{_LAYER}({_MIXERS})\."), ModelPart.ATTENTION),
    (re.compile(r"(?:.+\.)?(embed_tokens|embed|embeddings|lm_head|head)\."), ModelPart.EMBEDDINGS),
    (re.compile(rf"{_LAYER}(?:{_BLOCKS}|mixer\.(?:{_IN_MIXER}))\."), ModelPart.MLP),
    (re.compile(rf"{_LAYER}mixer\."), ModelPart.ATTENTION),
)


Parts = Mapping[ModelPart, IntArray]


def total_size(parts: Parts) -> IntArray:
    """Size of all parts together."""
    return sum(parts.values(), np.zeros(3, np.int64))


@dataclass(frozen=True, eq=False)
class Tensors:
    """Sums over a checkpoint's tensors, kept because a slider asks for the sizes of many plans."""

    experts: Mapping[int, IntArray]  # layer -> sizes of its experts; (experts, 3)
    routers: IntArray  # size of one expert's row of each layer's router; (layers, 3)
    outside: Parts  # what no plan removes
    heads: IntArray  # prediction heads; 0 without any
    heads_have_experts: bool  # then heads go if experts change in number or width
    shared: IntArray  # shared experts built from the routed ones' width; also in `outside`
    shared_width: int  # neurons of these
    # The copy that an export writes of a tied head, see `tied_embedding`; no more parameters.
    own_head: IntArray
    towers: IntArray  # unused by tokens of text; also in `outside`
    width: object  # of experts, as config.json says

    @cached_property
    def counts(self) -> IntArray:
        """Experts of each layer."""
        return np.array([len(sizes) for sizes in self.experts.values()])

    @cached_property
    def layers(self) -> IntArray:
        """Size of the experts of each layer; (layers, 3)."""
        return np.array([sizes.sum(0) for sizes in self.experts.values()])

    @cached_property
    def average(self) -> IntArray:
        """Size of an expert of each layer, without its row of the router; (layers, 3)."""
        return self.layers // self.counts[:, None]

    @cached_property
    def source(self) -> Parts:
        """Sizes of all tensors."""
        return self.parts(self.counts, self.layers.sum(0), is_untied=False)

    def parts(
        self,
        counts: Sequence[int] | IntArray,
        experts: IntArray,
        *,
        is_untied: bool,
        built: LoadedWidths | None = None,
    ) -> Parts:
        """Sizes with so many experts in each layer, which take `experts` together.

        `is_untied`: the file has a head of its own, see `untied_embedding`. `built` are the widths
        that config.json will say.
        """
        parts = {**self.outside, ModelPart.EXPERTS: experts}
        parts[ModelPart.ROUTERS] = parts[ModelPart.ROUTERS] + counts @ self.routers
        if built is not None and built.shared is not None:
            shared = self.shared // self.shared_width * built.shared * built.scalar
            parts[ModelPart.MLP] = parts[ModelPart.MLP] + shared - self.shared
        if self.heads.any():
            fits = bool((self.counts == max(counts)).all())
            fits = fits and (built is None or built.scalar == self.width)
            parts[ModelPart.HEADS] = self.heads * (fits or not self.heads_have_experts)
        if self.own_head.any():
            parts[ModelPart.TIED_HEAD] = self.own_head * is_untied
        return parts

    def after(self, removed: Sequence[int]) -> IntArray:
        """Size after each layer loses this many of its experts, of average size if they differ."""
        numbers = np.asarray(removed)
        experts = self.layers.sum(0) - numbers @ self.average
        return total_size(self.parts(self.counts - numbers, experts, is_untied=bool(numbers.any())))

    def trunk_params(self, parts: Parts) -> int:
        """Parameters that a token of text uses besides routed experts."""
        unused = parts[ModelPart.EXPERTS] + parts.get(ModelPart.HEADS, 0) + self.towers
        return int((total_size(parts) - unused)[PARAMS])


@lru_cache(maxsize=8)
def tensors_of(model: MoEModel) -> Tensors:
    """Sizes of a checkpoint's tensors."""

    def size_of(entries: Iterable[TensorEntry]) -> IntArray:
        rows = [(entry.nbytes, model.num_weights(entry)) for entry in entries]
        return _sizes(np.array(rows, np.int64).reshape(-1, 2).sum(0))

    experts: dict[int, IntArray] = {}
    routers = np.zeros((len(model.layers), 2), np.int64)
    tables: list[TensorEntry] = []  # of token ids, as long whatever stays
    for number, layer in enumerate(model.layers):
        rows = [[0, 0] for _ in range(layer.num_experts)]  # lists: there are many tensors
        stacked = np.zeros(2, np.int64)
        for item in model.located[layer.index]:
            nbytes, params = item.entry.nbytes, model.num_weights(item.entry)
            if item.slot.holds_ids:
                tables.append(item.entry)
            elif item.slot.kind is SlotKind.ROUTER:
                routers[number] += np.array((nbytes, params)) // layer.num_experts
            elif item.slot.expert is None:
                stacked += np.array((nbytes, params)) // layer.num_experts
            else:
                rows[item.slot.expert][0] += nbytes
                rows[item.slot.expert][1] += params
        experts[layer.index] = _sizes(np.array(rows, np.int64) + stacked)
    heads, shared = prediction_heads(model), shared_tensors(model)
    names = {name for head in heads for name in head.tensors}
    outside: dict[ModelPart, list[TensorEntry]] = {
        part: [] for part in ModelPart if part not in (ModelPart.HEADS, ModelPart.TIED_HEAD)
    }
    outside[ModelPart.ROUTERS] += tables
    for entry in model.unlocated:
        if entry.name not in names:
            fits = (part for pattern, part in _PART_PATTERNS if pattern.match(entry.name))
            outside[next(fits, ModelPart.OTHER)].append(entry)
    return Tensors(
        experts=experts,
        routers=_sizes(routers),
        outside={part: size_of(entries) for part, entries in outside.items()},
        heads=size_of(model.checkpoint.tensors[name] for name in names),
        heads_have_experts=any(head.has_experts for head in heads),
        shared=size_of(entry for entry, _ in shared.values()),
        shared_width=max((entry.shape[axis] for entry, axis in shared.values()), default=1),
        own_head=size_of([model.tied_embedding] if model.tied_embedding else []) * (1, 0, 1),
        towers=size_of(model.checkpoint.tensors[name] for name in beside_text(model) - names),
        width=model.config.get(model.family.width_key),
    )


def _sizes(amounts: IntArray) -> IntArray:
    """Sizes of rows of bytes and parameters."""
    return np.concatenate((amounts, 2 * amounts[..., 1:]), -1)


def plan_parts(model: MoEModel, plan: PruningPlan) -> Parts:
    """Sizes of the experts and neurons that a complete plan keeps."""
    tensors, experts = tensors_of(model), np.zeros(3, np.int64)
    shapes = expert_shapes(model) if plan.kept_neurons else {}
    widths = kept_widths(plan.kept_neurons, plan.kept, model) if plan.kept_neurons else {}
    for layer, sizes in tensors.experts.items():
        kept = list(plan.kept[layer])
        if layer in plan.kept_neurons:
            size = np.array(shapes[layer].size(len(kept), sum(widths[layer].values())))
        else:
            size = sizes[kept].sum(0)
        if plan.bits_in(layer):
            size[BYTES] = bytes_in_bits(model, plan, layer)
        experts += size
    counts = [len(plan.kept[layer]) for layer in tensors.experts]
    return tensors.parts(counts, experts, is_untied=untied_embedding(model, plan) is not None)


@dataclass(frozen=True, eq=False)
class WidthSizes:
    """What experts of given widths take."""

    disk: Parts
    loaded: Parts
    # Layer -> width with which its experts are loaded, filled up with zeros; empty without a mode.
    widths: Mapping[int, int]


def width_sizes(
    model: MoEModel,
    widths: KeptWidths,
    choice: WidthChoice | None = None,
    *,
    is_untied: bool = False,
) -> WidthSizes:
    """Sizes with experts of these widths; without a choice, of the kept neurons alone.

    For experts from which neurons can be cut, see `quantised_role`. `is_untied`: the file has a
    head of its own even if all neurons stay.
    """
    tensors, shapes = tensors_of(model), expert_shapes(model)
    counts = {layer: len(widths[layer]) for layer in tensors.experts}
    padded = neurons = {layer: sum(widths[layer].values()) for layer in counts}
    has_head = is_untied or any(
        (counts[layer], neurons[layer]) != (len(full), sum(full))
        for layer, full in expert_widths(model).items()
    )
    built = None
    if choice is not None:
        needed = {layer: max(widths[layer].values()) for layer in counts}
        built = loaded_as(model, needed, choice)
        padded = {layer: counts[layer] * built.widths[layer] for layer in counts}

    def parts(totals: Mapping[int, int]) -> Parts:
        """Sizes with so many neurons in each layer."""
        experts = np.array([shapes[layer].size(counts[layer], totals[layer]) for layer in counts])
        return tensors.parts(list(counts.values()), experts.sum(0), is_untied=has_head, built=built)

    is_ragged = choice is not None and choice.mode is WidthMode.RAGGED
    disk = parts(neurons if is_ragged else padded)
    return WidthSizes(disk, parts(padded), built.widths if built else {})


@dataclass(frozen=True, eq=False)
class SizeReport:
    """Sizes of a checkpoint before and after a plan."""

    before: Parts
    after: Parts
    experts_before: int  # routed experts of all layers
    experts_after: int  # the same under the plan
    # Expected parameters that one token of text uses: without other experts, prediction heads, and
    # towers of other media.
    active_before: int
    active_after: int  # the same under the plan
    expert_flops: int  # expected, per token, in routed experts, see `Active`
    # The same under the plan; removing whole experts changes it only if they differ in width.
    expert_flops_after: int
    # By measured routing; else by even routing, which is exact if a layer's experts have one width.
    is_measured: bool

    @property
    def table(self) -> pd.DataFrame:
        """One row per part; columns SIZE_COLUMNS."""
        rows = [
            (str(part), before[BYTES], after[BYTES], before[PARAMS], after[PARAMS])
            for part, before in self.before.items()
            for after in [self.after[part]]
        ]
        return pd.DataFrame(rows, columns=list(SIZE_COLUMNS))

    @property
    def experts_removed(self) -> int:
        """Routed experts that the plan removes."""
        return self.experts_before - self.experts_after

    @property
    def bytes_before(self) -> int:
        """Bytes of all tensors."""
        return int(total_size(self.before)[BYTES])

    @property
    def bytes_after(self) -> int:
        """Bytes of the tensors that an export writes, headers not counted."""
        return int(total_size(self.after)[BYTES])

    @property
    def params_before(self) -> int:
        """Weights on disk, see `MoEModel.num_weights`; tied ones count once."""
        return int(total_size(self.before)[PARAMS])

    @property
    def params_after(self) -> int:
        """Weights that an export writes; an embedding copied as the head counts once."""
        return int(total_size(self.after)[PARAMS])

    @property
    def copied(self) -> int:
        """Weights of the embedding that an export writes again as the head."""
        return int(total_size(self.after)[BFLOAT16]) // 2 - self.params_after

    def loaded(self, dtype: str | None = None) -> tuple[int, int]:
        """Bytes of the loaded weights before and after, without activations and caches.

        `dtype` is a key of LOADED_BYTES; None for the dtypes on disk.
        """
        if dtype is None:
            return self.bytes_before, self.bytes_after
        nbytes = LOADED_BYTES[dtype]
        return self.params_before * nbytes, (self.params_after + self.copied) * nbytes


def weight_bytes(model: MoEModel, plan: PruningPlan) -> int:
    """`SizeReport.bytes_after` alone, in a fraction of the report's time."""
    return int(total_size(plan_parts(model, fit_plan(plan, model)))[BYTES])


def size_report(
    model: MoEModel, plan: PruningPlan | None = None, routing: Routing | None = None
) -> SizeReport:
    """Sizes before and after `plan`; without one, after equals before.

    Removed neurons count as gone; how many zeros replace them depends on the width mode of the
    export, see `neuron_plan_sizes`. Prediction heads count as an export treats them by default, see
    `plan_heads`. `routing` matters only if experts of a layer differ in width; without it each is
    chosen equally often.
    """
    original = keep_all(model)
    complete, tensors = fit_plan(plan or original, model), tensors_of(model)
    parts = plan_parts(model, complete)
    before, after = (active_experts(model, plan, routing) for plan in (original, complete))
    return SizeReport(
        before=tensors.source,
        after=parts,
        experts_before=model.num_experts,
        experts_after=sum(map(len, complete.kept.values())),
        active_before=tensors.trunk_params(tensors.source) + before.params,
        active_after=tensors.trunk_params(parts) + after.params,
        expert_flops=before.flops,
        expert_flops_after=after.flops,
        is_measured=routing is not None,
    )


def neuron_plan_sizes(
    model: MoEModel,
    plan: PruningPlan,
    multiple_of: int = DEFAULT_MULTIPLE,
    routing: Routing | None = None,
) -> pd.DataFrame:
    """Table of NEURON_SIZE_COLUMNS: the plan alone, then one row per width mode.

    `params` and `disk` (bytes without file headers) are on disk, `loaded_params` and `loaded` in
    memory. `active` parameters and `expert_flops` are per token: of the plan alone by how often
    experts are chosen (see `active_experts`), of a mode as computed, zeros included. `refused` says
    why a mode is impossible; all else is then missing.
    """
    complete, tensors, shapes = fit_plan(plan, model), tensors_of(model), expert_shapes(model)
    widths = kept_widths(complete.kept_neurons, complete.kept, model)
    is_untied = untied_embedding(model, complete) is not None

    def row(name: str, sizes: WidthSizes, params: int, flops: int) -> tuple[object, ...]:
        stored = [total_size(parts) for parts in (sizes.disk, sizes.loaded)]
        amounts = [int(size[column]) for size in stored for column in (PARAMS, BYTES)]
        return (name, "", *amounts, tensors.trunk_params(sizes.loaded) + params, flops)

    active = active_experts(model, complete, routing)
    rows = [
        row(
            PLAN_ALONE, width_sizes(model, widths, is_untied=is_untied), active.params, active.flops
        )
    ]
    for choice in [WidthChoice(mode, multiple_of) for mode in WidthMode]:
        try:
            sizes = width_sizes(model, widths, choice, is_untied=is_untied)
        except PlanError as error:
            rows.append((str(choice.mode), str(error), *[None] * 6))
            continue
        params, weights = 0, 0
        for own_layer in model.layers:
            layer = selecting(own_layer, complete.top_k)
            # All experts of a layer are equally wide, so any top_k of them stand for those chosen.
            shape, neurons = shapes[layer.index], layer.top_k * sizes.widths[layer.index]
            params += shape.size(layer.top_k, neurons)[PARAMS]
            weights += shape.neuron_weights * neurons
        rows.append(row(str(choice.mode), sizes, params, 2 * weights))
    table = pd.DataFrame(rows, columns=list(NEURON_SIZE_COLUMNS))
    return table.astype(dict.fromkeys(NEURON_SIZE_COLUMNS[2:], "Int64"))
