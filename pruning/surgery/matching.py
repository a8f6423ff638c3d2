"""Which experts of a model another checkpoint of it kept, found by the bytes of their tensors.

An expert's part of the router is a second witness: it decides between experts with the same bytes,
and names those whose bytes were changed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from analysis.drain import with_steps
from analysis.errors import CheckpointError, PlanError
from analysis.model.moe_model import MoEModel
from analysis.model.widths import expert_widths
from analysis.progress import Progress, bytes_progress
from pruning.plan.layer_words import ranges
from pruning.surgery.part_hashes import (
    LAYERS,
    Dtypes,
    Experts,
    Hash,
    Hashes,
    Pairing,
    Part,
    Parts,
    keys_of,
)
from pruning.surgery.reading import shifted

Ids = frozenset[int]


@dataclass(frozen=True, slots=True)
class LayerMatch:
    """The experts of one layer of a pruned checkpoint; places are their ids there."""

    layer: int
    num_experts: int  # in the original
    experts: tuple[int | None, ...]  # by place: the id in the original; None: nothing tells
    by_bytes: frozenset[int] = frozenset()  # places that hold all bytes of an expert
    # Place -> the projections that changed, where others still hold an expert's bytes.
    changed: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    # Place, told by bytes -> the id whose router row it has instead; None: no expert's.
    disputed: Mapping[int, int | None] = field(default_factory=dict)

    @property
    def unknown(self) -> tuple[int, ...]:
        """Places of which neither bytes nor the router tell."""
        return tuple(place for place, expert in enumerate(self.experts) if expert is None)

    @property
    def by_router(self) -> tuple[int, ...]:
        """Places of which the router alone tells: no expert has any of their bytes."""
        told = {*self.by_bytes, *self.changed, *self.unknown}
        return tuple(place for place in range(len(self.experts)) if place not in told)

    @property
    def kept(self) -> tuple[int, ...]:
        """Ids in the original, ascending, each once."""
        return tuple(sorted({expert for expert in self.experts if expert is not None}))

    @property
    def repeated(self) -> tuple[int, ...]:
        """Ids that stand at several places."""
        counts = Counter(expert for expert in self.experts if expert is not None)
        return tuple(sorted(expert for expert, times in counts.items() if times > 1))

    @property
    def is_ordered(self) -> bool:
        """Whether the experts stand in the original's order."""
        ids = [expert for expert in self.experts if expert is not None]
        return ids == sorted(ids)


@dataclass(frozen=True, slots=True)
class OtherTensors:
    """How tensors of one kind outside of the routed experts compare, by name."""

    equal: int = 0
    cast: int = 0  # equal once the original's numbers have the other's dtype
    differ: int = 0
    original_only: int = 0
    pruned_only: int = 0


@dataclass(frozen=True, eq=False)
class CheckpointMatch:
    """What a pruned checkpoint holds of an original."""

    original: MoEModel
    pruned: MoEModel
    layers: tuple[LayerMatch, ...]
    others: Mapping[str, OtherTensors]  # by kind, for people
    cast: tuple[Dtypes, ...]  # of experts, where they differ and a cast makes them comparable
    uncompared: tuple[Dtypes, ...]  # of experts, where no cast does

    @property
    def kept(self) -> dict[int, tuple[int, ...]]:
        """Layer -> ids of the original's experts that the pruned checkpoint kept.

        Raises:
            PlanError: nothing tells of some of its experts.
        """
        unknown = {layer.layer: layer.unknown for layer in self.layers if layer.unknown}
        if unknown:
            total = sum(len(layer.experts) for layer in self.layers)
            raise PlanError(
                f"{sum(map(len, unknown.values()))} of {total} experts of {self.pruned.name} "
                f"(layers {ranges(unknown)}) have neither the bytes nor the router row of an "
                f"expert of {self.original.name}, so nothing tells which these were: they are "
                "merged or trained, or it was pruned from another checkpoint."
            )
        return {layer.layer: layer.kept for layer in self.layers}


def match_checkpoints(
    original: MoEModel, pruned: MoEModel
) -> Generator[Progress, None, CheckpointMatch]:
    """Find which experts of `original` stand in `pruned`; each byte is read at most once.

    Raises:
        CheckpointError: the two differ in more than their experts.
    """
    check_alike(original, pruned)
    pairing = Pairing(original, pruned)
    before = pairing.nbytes(original)
    total = before + pairing.nbytes(pruned)

    def read() -> Generator[int, None, tuple[Hashes, Hashes]]:
        first = yield from pairing.hashes(original)
        return first, (yield from shifted(pairing.hashes(pruned), before))

    first, second = yield from with_steps(
        read(), lambda done: bytes_progress("comparing", min(done, total), total, "hash")
    )
    layers = tuple(
        _match_layer(
            LayerMatch(layer.index, layer.num_experts, ()),
            (first.experts[layer.index], second.experts[layer.index]),
            (first.routers[layer.index], second.routers[layer.index]),
        )
        for layer in original.layers
    )
    others = _compare_others(pairing, first.others, second.others)
    return CheckpointMatch(original, pruned, layers, others, *_expert_dtypes(pairing))


def check_alike(original: MoEModel, pruned: MoEModel) -> None:
    """Refuse checkpoints of which one cannot be the other with fewer experts."""
    names = original.name, pruned.name
    for what, facts in {
        # Programs that load the text part of a larger model save that alone.
        "the model type": tuple(
            m.family.model_type.removesuffix("_text") for m in (original, pruned)
        ),
        "layers:": (original.depth, pruned.depth),
        "the hidden size": (original.hidden_size, pruned.hidden_size),
        "the sparse layers": tuple(
            ranges(layer.index for layer in m.layers) for m in (original, pruned)
        ),
        "experts of a width of": (_width(original), _width(pruned)),
    }.items():
        if None not in facts and facts[0] != facts[1]:
            raise CheckpointError(
                f"{names[0]} has {what} {facts[0]} and {names[1]} {facts[1]}; give a checkpoint "
                "and the same one with fewer experts."
            )
    counts = {layer.index: layer.num_experts for layer in original.layers}
    for layer in pruned.layers:
        if layer.num_experts > counts[layer.index]:
            raise CheckpointError(
                f"Layer {layer.index} has {layer.num_experts} experts in {names[1]} and only "
                f"{counts[layer.index]} in {names[0]}; name the original first."
            )


def _width(model: MoEModel) -> int | None:
    """Neurons of the widest expert; None where quantised shapes do not tell."""
    return max((max(widths) for widths in expert_widths(model).values() if widths), default=None)


def _expert_dtypes(pairing: Pairing) -> tuple[tuple[Dtypes, ...], tuple[Dtypes, ...]]:
    """Pairs of dtypes of experts that differ: those that are cast, and those not compared."""
    first, second = pairing.dtypes
    keys = [key for key in first if not isinstance(key, str) and key[1]]
    cast = {pairing.compared[key] for key in keys if key in pairing.compared}
    others = {
        (first[key], second.get(key, "another form")) for key in keys if key not in pairing.compared
    }
    differ = sorted(pair for pair in cast if pair[0] != pair[1])
    return tuple(differ), tuple(sorted(others))


def _match_layer(
    layer: LayerMatch, experts: tuple[Experts, Experts], routers: tuple[Experts, Experts]
) -> LayerMatch:
    """The layer with its experts; both pairs are of the original and of the pruned checkpoint."""
    by_bytes, by_router = _Index(experts[0]), _Index(routers[0])
    candidates: list[Ids] = []
    exact_places, changed, disputed = set(), {}, {}
    for place, (parts, row) in enumerate(zip(*(experts[1], routers[1]), strict=True)):
        exact, rows = by_bytes.with_all(parts), by_router.nearest(row)
        holders = exact or by_bytes.nearest(parts)
        told = holders & rows or holders
        # Some bytes of several experts, such as those of one that was copied, tell of none.
        if not exact and len(told) > 1:
            told = holders = frozenset()
        if exact:
            exact_places.add(place)
        elif told:
            changed[place] = by_bytes.lacking(parts, min(told))
        if told and row and not told & rows:
            disputed[place] = min(rows, default=None)
        candidates.append(told or rows)
    return LayerMatch(
        layer.layer,
        layer.num_experts,
        _one_each(candidates),
        frozenset(exact_places),
        changed,
        disputed,
    )


class _Index:
    """Experts by the hashes of their parts."""

    def __init__(self, experts: Experts) -> None:
        self._experts = experts
        self._holders: defaultdict[tuple[Part, Hash], set[int]] = defaultdict(set)
        for expert, parts in enumerate(experts):
            for item in parts.items():
                self._holders[item].add(expert)

    def with_all(self, parts: Parts) -> Ids:
        """The experts that have all of these parts; none without parts."""
        return _in_all([self._holders.get(item, set()) for item in parts.items()])

    def nearest(self, parts: Parts) -> Ids:
        """The experts that have all of these parts, or else all matrices of them that any has.

        Biases alone tell nothing: they may all be zero.
        """
        matrices = [item for item in parts.items() if not item[0][1].endswith("bias")]
        holders = [self._holders[item] for item in matrices if item in self._holders]
        return self.with_all(parts) or _in_all(holders)

    def lacking(self, parts: Parts, expert: int) -> tuple[str, ...]:
        """The projections in which an expert differs."""
        own = self._experts[expert]
        return tuple(sorted({part[0] for part, sha in parts.items() if own.get(part) != sha}))


def _in_all(sets: Sequence[set[int]]) -> Ids:
    return frozenset(set.intersection(*sets)) if sets else frozenset()


def _one_each(candidates: Sequence[Ids]) -> tuple[int | None, ...]:
    """One of its candidates for each place; the same one twice only where no other is left."""
    chosen: dict[int, int] = {}
    for place in sorted(range(len(candidates)), key=lambda place: len(candidates[place])):
        if candidates[place]:
            free = candidates[place] - {*chosen.values()}
            chosen[place] = min(free or candidates[place])
    return tuple(chosen.get(place) for place in range(len(candidates)))


def _compare_others(
    pairing: Pairing, first: Mapping[str, Hash], second: Mapping[str, Hash]
) -> dict[str, OtherTensors]:
    """Kind -> how its tensors compare, by name."""
    names = set(_others(pairing.original)), set(_others(pairing.pruned))
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name in sorted(names[0] | names[1]):
        if name not in names[1]:
            how = "original_only"
        elif name not in names[0]:
            how = "pruned_only"
        elif name not in first or first[name] != second[name]:
            how = "differ"
        else:
            how = "cast" if pairing.is_cast(name) else "equal"
        counts[_kind_of(pairing.original, name)][how] += 1
    return {kind: OtherTensors(**count) for kind, count in sorted(counts.items())}


def _others(model: MoEModel) -> Iterator[str]:
    """Keys of tensors outside of the experts and routers of the trunk."""
    keys = (key for entry in model.checkpoint.tensors.values() for key in keys_of(model, entry))
    return (key for key in keys if isinstance(key, str))


def _kind_of(model: MoEModel, name: str) -> str:
    """What a tensor outside of the routed experts is of, for people."""
    number, _, inside = name.removeprefix(LAYERS).partition(".")
    if not number.isdigit():
        return "outside of the layers"
    if int(number) >= model.depth:
        return "prediction heads"
    if any(
        table.holds_ids and inside.endswith(table.name) for table in model.family.router_tensors
    ):
        return "tables of token ids"
    if "shared" in inside:
        return "shared experts"
    blocks = tuple(f"{block}." for block in (model.family.disk_block, model.family.module_block))
    is_dense = int(number) not in {layer.index for layer in model.layers}
    return "dense layers" if is_dense and inside.startswith(blocks) else "attention and norms"
