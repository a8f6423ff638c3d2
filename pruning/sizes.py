"""What a plan saves: bytes, parameters and FLOPs, from headers and configuration alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import chain

import numpy as np

from analysis.arrays import IntArray
from analysis.checkpoint import TensorEntry
from analysis.errors import ExportError
from analysis.families import SlotKind
from analysis.heads import beside_text, prediction_heads
from analysis.lazy import pd
from analysis.model import MoEModel
from analysis.widths import shared_tensors
from pruning.active import Routing, active_experts, expert_shapes
from pruning.heads import HeadChoice, heads_depend_on
from pruning.neurons.kept import kept_widths
from pruning.plan import PruningPlan, fit_plan, keep_all, untied_embedding

SIZE_COLUMNS = ("part", "before", "after", "params_before", "params_after")
LOADED_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
SIZE_UNITS = {
    **{"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40},
    **{"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)", re.IGNORECASE)
_LONGEST_SIZE = 32  # of its text


class ModelPart(StrEnum):
    """Where the bytes of a checkpoint go."""

    EXPERTS = "routed experts"
    ROUTERS = "routers"
    MLP = "shared and dense MLP"
    ATTENTION = "attention"  # or what replaces it, such as Mamba
    EMBEDDINGS = "embeddings and head"
    OTHER = "norms and other"
    HEADS = "prediction heads (MTP)"  # only if the model has some


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


@dataclass(frozen=True, eq=False)
class SizeReport:
    """Sizes of a checkpoint before and after a plan."""

    # Part -> rows before and after, columns bytes and parameters; (2, 2).
    parts: Mapping[ModelPart, IntArray]
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
    copied: int = 0  # weights of the embedding that an export writes again as the head

    @property
    def table(self) -> pd.DataFrame:
        """One row per part; columns SIZE_COLUMNS."""
        rows = [(str(part), *each.T.ravel().tolist()) for part, each in self.parts.items()]
        return pd.DataFrame(rows, columns=list(SIZE_COLUMNS))

    @property
    def experts_removed(self) -> int:
        """Routed experts that the plan removes."""
        return self.experts_before - self.experts_after

    @property
    def bytes_before(self) -> int:
        """Bytes of all tensors."""
        return int(_sum(self.parts.values())[0, 0])

    @property
    def bytes_after(self) -> int:
        """Bytes of the tensors that an export writes, headers not counted."""
        return int(_sum(self.parts.values())[1, 0])

    @property
    def params_before(self) -> int:
        """Weights on disk, see `MoEModel.num_weights`; tied ones count once."""
        return int(_sum(self.parts.values())[0, 1])

    @property
    def params_after(self) -> int:
        """Weights that an export writes; an embedding copied as the head counts once."""
        return int(_sum(self.parts.values())[1, 1])

    def loaded(self, dtype: str | None = None) -> tuple[int, int]:
        """Bytes of the loaded weights before and after, without activations and caches.

        `dtype` is a key of LOADED_BYTES; None for the dtypes on disk.
        """
        if dtype is None:
            return self.bytes_before, self.bytes_after
        each = LOADED_BYTES[dtype]
        return self.params_before * each, (self.params_after + self.copied) * each


def parse_size(text: str) -> int:
    """Bytes of a size such as `5GB`, `500MB`, `1.5GiB` or `1000000`."""
    match = _SIZE.fullmatch(text.strip())
    units = {"": 1, **SIZE_UNITS}
    unit = units.get(match[2].upper()) if match and len(text) < _LONGEST_SIZE else None
    if match is None or unit is None:
        raise ExportError(f"The size {text!r} is not understood; write 5GB, 500MB or 1.5GiB.")
    size = int(float(match[1]) * unit)
    if size < 1000:
        raise ExportError(f"A shard of at most {size} bytes is too small; give 1KB or more.")
    return size


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


def _sum(sizes: Iterable[IntArray]) -> IntArray:
    return sum(sizes, np.zeros(2, np.int64))


@dataclass(frozen=True, eq=False)
class Tensors:
    """Sums over a checkpoint's tensors, kept because a slider asks for the sizes of many plans.

    A size is (2,): bytes in the dtypes on disk, and weights, see `MoEModel.num_weights`.
    """

    experts: Mapping[int, IntArray]  # layer -> sizes of its experts; (experts, 2)
    routers: Mapping[int, IntArray]  # layer -> size of one expert's row of the router
    outside: Mapping[ModelPart, IntArray]  # part -> what no plan removes
    heads: IntArray  # prediction heads; 0 without any
    heads_have_experts: bool  # then heads go if experts change in number or width
    shared: IntArray  # shared experts built from the routed ones' width; also in `outside`
    shared_width: int  # neurons of these
    own_head: IntArray  # the copy that an export writes of a tied head, see `tied_embedding`
    towers: IntArray  # unused by tokens of text; also in `outside`

    @property
    def total(self) -> IntArray:
        """Size of all tensors."""
        counts = {layer: len(experts) for layer, experts in self.experts.items()}
        routers = [counts[layer] * each for layer, each in self.routers.items()]
        experts = [each.sum(0) for each in self.experts.values()]
        return _sum([*experts, *routers, *self.outside.values(), self.heads])


@lru_cache(maxsize=8)
def tensors_of(model: MoEModel) -> Tensors:
    """Sizes of a checkpoint's tensors."""

    def size_of(entries: Iterable[TensorEntry]) -> IntArray:
        sizes = [(entry.nbytes, model.num_weights(entry)) for entry in entries]
        return _sum(np.array(sizes, np.int64))

    experts: dict[int, IntArray] = {}
    routers = {layer.index: np.zeros(2, np.int64) for layer in model.layers}
    tables: list[TensorEntry] = []  # of token ids, as long whatever stays
    for layer in model.layers:
        own = [[0, 0] for _ in range(layer.num_experts)]  # lists: there are many tensors
        stacked = np.zeros(2, np.int64)
        for item in model.located[layer.index]:
            nbytes, params = item.entry.nbytes, model.num_weights(item.entry)
            if item.slot.holds_ids:
                tables.append(item.entry)
            elif item.slot.kind is SlotKind.ROUTER:
                routers[layer.index] += np.array((nbytes, params)) // layer.num_experts
            elif item.slot.expert is None:
                stacked += np.array((nbytes, params)) // layer.num_experts
            else:
                own[item.slot.expert][0] += nbytes
                own[item.slot.expert][1] += params
        experts[layer.index] = np.array(own, np.int64) + stacked
    heads, shared = prediction_heads(model), shared_tensors(model)
    tied = model.tied_embedding
    names = {name for head in heads for name in head.tensors}
    outside: dict[ModelPart, list[TensorEntry]] = {
        part: [] for part in ModelPart if part is not ModelPart.HEADS
    }
    outside[ModelPart.ROUTERS] += tables
    for entry in model.unlocated:
        if entry.name not in names:
            fits = (part for pattern, part in _PART_PATTERNS if pattern.match(entry.name))
            outside[next(fits, ModelPart.OTHER)].append(entry)
    return Tensors(
        experts,
        routers,
        {part: size_of(entries) for part, entries in outside.items()},
        size_of(model.checkpoint.tensors[name] for name in names),
        any(head.has_experts for head in heads),
        size_of(entry for entry, _ in shared.values()),
        max((entry.shape[axis] for entry, axis in shared.values()), default=1),
        size_of([tied] if tied else []),
        size_of(model.checkpoint.tensors[name] for name in beside_text(model) - names),
    )


def _parts(model: MoEModel, plan: PruningPlan) -> dict[ModelPart, IntArray]:
    """`SizeReport.parts`, in the order of `ModelPart`."""
    tensors = tensors_of(model)
    sums = {part: np.stack((amounts, amounts)) for part, amounts in tensors.outside.items()}
    if untied_embedding(model, plan):
        sums[ModelPart.EMBEDDINGS][1, 0] += tensors.own_head[0]
    shapes = expert_shapes(model) if plan.kept_neurons else {}
    widths = kept_widths(plan.kept_neurons, plan.kept, model) if plan.kept_neurons else {}
    for layer, experts in tensors.experts.items():
        kept = list(plan.kept[layer])
        after: Sequence[int] = experts[kept].sum(0).tolist()
        if layer in plan.kept_neurons:
            after = shapes[layer].size(len(kept), sum(widths[layer].values()))
        sums[ModelPart.EXPERTS] += np.stack((experts.sum(0), after))
        sums[ModelPart.ROUTERS] += np.outer((len(experts), len(kept)), tensors.routers[layer])
    if prediction_heads(model):
        sums[ModelPart.HEADS] = np.outer((1, not heads_depend_on(model, plan)), tensors.heads)
    return sums


def heads_bytes(model: MoEModel, plan: PruningPlan, choice: HeadChoice | None) -> int:
    """Bytes that prediction heads take in an export beyond what `size_report` counts for them.

    The plan is complete, see `fit_plan`; `choice` is possible, or None for the default.
    """
    if choice is None or not prediction_heads(model):
        return 0
    full, default = map(int, _parts(model, plan)[ModelPart.HEADS][:, 0])
    if choice is not HeadChoice.PRUNE:
        return (full if choice is HeadChoice.KEEP else 0) - default
    cut = model.layers[-1].num_experts - max(map(len, plan.kept.values()))
    located = (item for head in prediction_heads(model) for item in chain(*head.located.values()))
    each = sum(item.entry.nbytes for item in located) // model.layers[-1].num_experts
    return full - cut * each - default


def weight_bytes(model: MoEModel, plan: PruningPlan) -> int:
    """`SizeReport.bytes_after` alone, in a fraction of the report's time."""
    return int(_sum(_parts(model, fit_plan(plan, model)).values())[1, 0])


def size_report(
    model: MoEModel, plan: PruningPlan | None = None, routing: Routing | None = None
) -> SizeReport:
    """Sizes before and after `plan`; without one, after equals before.

    Removed neurons count as gone; how many zeros replace them depends on the width mode of the
    export, see `pruning.surgery.width_sizes.width_options`. Prediction heads count as an export
    treats them by default, see `plan_heads`. `routing` matters only if experts of a layer differ in
    width; without it each is chosen equally often.
    """
    full_plan = keep_all(model)
    after_plan = fit_plan(plan or full_plan, model)
    parts = _parts(model, after_plan)
    before, after = (active_experts(model, each, routing) for each in (full_plan, after_plan))
    unused = parts.get(ModelPart.HEADS, 0) + tensors_of(model).towers
    outside = (_sum(parts.values()) - parts[ModelPart.EXPERTS] - unused)[:, 1].tolist()
    return SizeReport(
        parts=parts,
        experts_before=model.num_experts,
        experts_after=sum(map(len, after_plan.kept.values())),
        active_before=outside[0] + before.params,
        active_after=outside[1] + after.params,
        expert_flops=before.flops,
        expert_flops_after=after.flops,
        is_measured=routing is not None,
        copied=int(tensors_of(model).own_head[1]) if untied_embedding(model, after_plan) else 0,
    )
