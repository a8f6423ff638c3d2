"""The lens of a text: its loss token by token under each plan, and which experts were used.

One record per text holds the original model and every plan that was run on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Self

import numpy as np
from pydantic import Field, model_validator

from analysis.errors import StatsError
from analysis.lazy import pd
from analysis.model.moe_model import MoEModel
from analysis.numbers.arrays import FloatArray
from pruning.measures.result import check_possible
from pruning.measures.store import Count, Record, RecordPart, RecordStore, RunFacts
from pruning.plan.plan import PruningPlan, model_ref
from pruning.records.plan_facts import PlanFacts, plan_facts

MOST_TOKENS: Final = 1024  # of a text: a page draws each
MOST_PIECE: Final = 200  # characters of a token
FIRST_TOKEN: Final = 2  # nothing predicts token 1
_TITLE: Final = 48  # characters
CARRIED: Final = 0.7  # share of the loss increase that the sentence counts tokens of
TOKEN_COLUMNS = ("token", "text", "full_loss", "loss", "change", "gone")
LENS_COLUMNS = ("layer", "expert", "role", "gate", "share", "removed")
LOST_COLUMNS = ("layer", "expert", "share", "num_tokens")
READ_COLUMNS = ("token", "gate", "num_tokens")
READER_COLUMNS = ("layer", "expert", "share", "num_tokens")
# Roles of LENS_COLUMNS: chosen by the original router; chosen by the pruned one instead.
WANTED, TOOK_OVER = "wanted", "took over"


class LensLayer(RecordPart):
    """What the router of one layer chose in the original model."""

    layer: Count  # decoder index
    num_experts: Annotated[int, Field(ge=1)]
    top_k: Annotated[int, Field(ge=1)]
    # Of every token one after the other, its top_k experts and their gate weights, as applied.
    experts: tuple[Count, ...]
    gates: tuple[Annotated[float, Field(ge=0)], ...]

    def weights_for(self, expert: int) -> FloatArray:
        """(tokens,) gate weight that each token gave to an expert; NaN where it chose others."""
        experts, gates = (
            np.asarray(values).reshape(-1, self.top_k) for values in (self.experts, self.gates)
        )
        is_chosen = experts == expert
        weights = np.where(is_chosen, gates, 0.0).sum(axis=1)
        return np.where(is_chosen.any(axis=1), weights, np.nan)


class LensPlan(RecordPart):
    """One plan on the text."""

    plan_digest: str
    plan: PlanFacts
    losses: tuple[float, ...]  # of the scored tokens, nats
    # By layer, as in `LensRecord.layers`: experts that the plan removes, and those chosen.
    removed: tuple[tuple[Count, ...], ...]
    experts: tuple[tuple[Count, ...], ...]


class LensQuestion(RecordPart):
    """The text as it was asked for: fields of a request to ask."""

    text: str = ""
    prompt: str = ""  # the text is this and the original model's answer
    raw: bool = False  # whether the prompt was continued as it stands
    max_new_tokens: Annotated[int, Field(ge=1)] = 1
    template_args: Mapping[str, Any] = {}  # of the chat template

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the request that runs other plans on the same tokens."""
        if self.text:
            return {"text": self.text}
        of_prompt = self.model_dump(exclude={"text"} | ({"template_args"} - self.model_fields_set))
        return {"lens": True, **of_prompt}

    @property
    def title(self) -> str:
        """Its first words."""
        return " ".join((self.text or self.prompt).split())[:_TITLE]


class LensRecord(Record):
    """A text with the original model and plans.

    The digest covers the model, the tokens, where scoring begins, and the dtype; plans are added.
    """

    folder: ClassVar = "lenses"
    word: ClassVar = "lens"
    command: ClassVar = "ask"
    measured: ClassVar = "losses"

    record_id: str = Field(alias="lens_id")
    asked: LensQuestion
    ids: tuple[Count, ...]
    tokens: tuple[Annotated[str, Field(max_length=MOST_PIECE)], ...]  # the text of each id
    scored_from: Annotated[int, Field(ge=1)]  # the first token with a loss; before: the prompt
    losses: tuple[float, ...] = ()  # of the original model, of the scored tokens, nats
    layers: tuple[LensLayer, ...] = ()
    plans: tuple[LensPlan, ...] = ()
    settings: RunFacts  # `dtype`

    @classmethod
    def new(
        cls,
        model: MoEModel,
        asked: LensQuestion,
        words: tuple[Sequence[int], Sequence[str]],
        dtype: str,
        start: int = 1,
    ) -> Self:
        """A record without results of `words`, ids and their texts, scored from `start` on."""
        ids, tokens = words
        deciding = {"model": model.identity, "ids": list(ids), "from": start, "dtype": dtype}
        return cls.begun(
            (model.name, "lens"),
            deciding,
            model=model_ref(model),
            asked=asked,
            ids=tuple(ids),
            tokens=tuple(token[:MOST_PIECE] for token in tokens),
            scored_from=start,
            settings={"dtype": dtype},
        )

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        if not self.losses:  # nothing measured yet
            return self
        length = len(self.ids)
        scored = length - self.scored_from
        if len(self.tokens) != length or scored < 1 or length > MOST_TOKENS:
            raise ValueError(f"it has {length} ids, {len(self.tokens)} tokens and {scored} losses")
        for losses in (self.losses, *(plan.losses for plan in self.plans)):
            if len(losses) != scored:
                raise ValueError(f"it has {len(losses)} losses of {scored} tokens")
            check_possible("nll", *losses)
        if len({plan.plan_digest for plan in self.plans}) < len(self.plans):
            raise ValueError("it has a plan twice")
        for place, layer in enumerate(self.layers):
            _check_chosen(layer, length, layer.experts, range(layer.num_experts))
            if len(layer.gates) != len(layer.experts):
                raise ValueError(f"layer {layer.layer} has another number of gates than of experts")
            for plan in self.plans:
                if {len(plan.removed), len(plan.experts)} != {len(self.layers)}:
                    raise ValueError("a plan has other layers")
                kept = set(range(layer.num_experts)) - set(plan.removed[place])
                _check_chosen(layer, length, plan.experts[place], kept)
        return self

    def of_plan(self, digest: str) -> LensPlan | None:
        """The plan with this digest, if it was run."""
        return next((plan for plan in self.plans if plan.plan_digest == digest), None)

    def with_plan(self, plan: LensPlan) -> Self:
        """The record with a plan added, or replaced."""
        others = [other for other in self.plans if other.plan_digest != plan.plan_digest]
        return self.model_copy(update={"plans": (*others, plan)})


def _check_chosen(
    layer: LensLayer, length: int, experts: Sequence[int], possible: Iterable[int]
) -> None:
    if len(experts) != length * layer.top_k:
        raise ValueError(f"layer {layer.layer} has {len(experts)} choices of {length} tokens")
    if odd := sorted(set(experts) - set(possible)):
        raise ValueError(f"a token of layer {layer.layer} uses expert {odd[0]}, which is not there")


class LensStore(RecordStore[LensRecord]):
    """Lenses of one or more statistics directories; new ones go to the first."""

    kind = LensRecord


def lens_plan(
    model: MoEModel, plan: PruningPlan, losses: FloatArray, chosen: Mapping[int, Sequence[int]]
) -> LensPlan:
    """The part of a record on a complete plan, by its losses and the chosen experts by layer."""
    return LensPlan(
        plan_digest=plan.digest,
        plan=plan_facts(plan, model),
        losses=tuple(losses.tolist()),
        removed=tuple(
            tuple(sorted(set(range(layer.num_experts)) - set(plan.kept[layer.index])))
            for layer in model.layers
        ),
        experts=tuple(tuple(chosen[layer.index]) for layer in model.layers),
    )


def token_changes(record: LensRecord, plan: LensPlan) -> FloatArray:
    """(tokens,) loss of the plan minus the original's, nats; NaN before the first scored token."""
    changes = np.full(len(record.ids), np.nan)
    changes[record.scored_from :] = np.subtract(plan.losses, record.losses)
    return changes


def text_loss_increase(record: LensRecord, plan: LensPlan) -> float:
    """Mean over the scored tokens of the loss increase, nats."""
    return float(np.mean(plan.losses) - np.mean(record.losses))


def num_carrying(changes: FloatArray, share: float = CARRIED) -> int:
    """Fewest tokens whose loss increases add up to a share of the total; 0 if none is lost."""
    numbers = changes[~np.isnan(changes)]
    if (total := numbers.sum()) <= 0:
        return 0
    sums = np.cumsum(np.sort(numbers)[::-1])
    return int(np.argmax(sums >= share * total)) + 1


def in_short(record: LensRecord, plan: LensPlan) -> str:
    """The loss increase of a plan on the text, and how few tokens carry most of it."""
    changes = token_changes(record, plan)
    loss, count = text_loss_increase(record, plan), num_carrying(changes)
    carried = f"; {count:,} of {len(record.losses):,} tokens carry {CARRIED:.0%} of it"
    return f"loss increase {loss:+z.3f} nats a token{carried if count else ''}"


def gone_shares(record: LensRecord, plan: LensPlan) -> FloatArray:
    """(tokens, layers) share of the original's gate weight that went to experts now removed."""
    columns = []
    for layer, removed in zip(record.layers, plan.removed, strict=True):
        gates = np.asarray(layer.gates).reshape(-1, layer.top_k)
        is_gone = np.isin(layer.experts, removed).reshape(gates.shape)
        total, lost = gates.sum(axis=1), np.where(is_gone, gates, 0.0).sum(axis=1)
        columns.append(np.divide(lost, total, out=np.zeros_like(total), where=total > 0))
    return np.stack(columns, axis=1)


def token_table(record: LensRecord, plan: LensPlan) -> pd.DataFrame:
    """Table of TOKEN_COLUMNS: a row per token, numbered from 1.

    `full_loss`, `loss` and their difference `change` are in nats, NaN for tokens that are not
    scored; `gone` is the mean over layers of `gone_shares` where the token is predicted: at the one
    before it. NaN for the first.
    """
    start = record.scored_from
    columns = {"full_loss": record.losses, "loss": plan.losses}
    table = pd.DataFrame({"token": range(1, len(record.ids) + 1), "text": record.tokens})
    for name, losses in columns.items():
        table[name] = np.concatenate([np.full(start, np.nan), losses])
    table["change"] = table["loss"] - table["full_loss"]
    return table.assign(gone=[np.nan, *gone_shares(record, plan).mean(axis=1)[:-1]])


def lens_losses(record: LensRecord) -> list[tuple[LensPlan, float]]:
    """Every plan that was run on the text with its loss increase, nats a token; least first."""
    pairs = [(plan, text_loss_increase(record, plan)) for plan in record.plans]
    return sorted(pairs, key=lambda pair: pair[1])


def lens_table(record: LensRecord, plan: LensPlan, token: int) -> pd.DataFrame:
    """Table of LENS_COLUMNS: the experts that predict a token, numbered from 1, layer by layer.

    They are those of the token before it, so the first has none. Wanted ones come first, by falling
    gate weight; `share` is of that token's gate weight in the layer. What took over was not wanted,
    and has no gate weight here.
    """
    if not FIRST_TOKEN <= token <= len(record.ids):
        raise StatsError(
            f"There is no token {token} to predict; the text has {FIRST_TOKEN} to "
            f"{len(record.ids)}."
        )
    rows: list[tuple[object, ...]] = []
    for layer, removed, chosen in zip(record.layers, plan.removed, plan.experts, strict=True):
        part = slice((token - 2) * layer.top_k, (token - 1) * layer.top_k)
        pairs = sorted(zip(layer.gates[part], layer.experts[part], strict=True), reverse=True)
        total, experts = sum(layer.gates[part]), set(layer.experts[part])
        for gate, expert in pairs:
            share = gate / total if total else 0.0
            rows.append((layer.layer, expert, WANTED, gate, share, expert in removed))
        for expert in chosen[part]:
            if expert not in experts:
                rows.append((layer.layer, expert, TOOK_OVER, np.nan, np.nan, False))
    table = pd.DataFrame(rows, columns=list(LENS_COLUMNS))
    return table.astype({"gate": "float64", "share": "float64", "removed": "bool"})


def lost_experts(record: LensRecord, plan: LensPlan) -> pd.DataFrame:
    """Table of LOST_COLUMNS: removed experts that tokens wanted, the most missed first.

    `share` is of the gate weight of the layer over all tokens of the text.
    """
    rows = []
    for layer, removed in zip(record.layers, plan.removed, strict=True):
        total = sum(layer.gates) or 1.0
        for expert in removed:
            weights = layer.weights_for(expert)
            if num_tokens := int((~np.isnan(weights)).sum()):
                rows.append((layer.layer, expert, np.nansum(weights) / total, num_tokens))
    table = pd.DataFrame(rows, columns=list(LOST_COLUMNS))
    return table.sort_values("share", ascending=False, kind="stable", ignore_index=True)


def tokens_read(
    records: Iterable[LensRecord], layer: int, expert: int, form: Callable[[str], str] = str
) -> pd.DataFrame:
    """Table of READ_COLUMNS: the tokens of these texts that the original sent to an expert.

    A row per token text, as `form` writes it, by falling sum of the gate weights.
    """
    rows: list[tuple[str, float]] = []
    for record in records:
        for lens_layer in record.layers:
            if lens_layer.layer == layer:
                weights = lens_layer.weights_for(expert)
                places = np.flatnonzero(~np.isnan(weights)).tolist()
                rows += [(form(record.tokens[place]), float(weights[place])) for place in places]
    groups = pd.DataFrame(rows, columns=["token", "gate"]).groupby("token", sort=False)["gate"]
    sums = groups.agg(gate="sum", num_tokens="size").reset_index()
    return sums.sort_values("gate", ascending=False, kind="stable", ignore_index=True)


def token_readers(
    records: Iterable[LensRecord], is_searched: Callable[[str], bool]
) -> pd.DataFrame:
    """Table of READER_COLUMNS: the experts to which the original sent the searched tokens.

    `share` is of the gate weight that these tokens gave in the layer, over all texts, so that the
    shares of a layer sum to 1; `num_tokens` are those that chose the expert. By layer, the largest
    share first.
    """
    gates: dict[int, FloatArray] = {}
    counts: dict[int, FloatArray] = {}
    for record in records:
        is_wanted = np.array([is_searched(token) for token in record.tokens], dtype=np.bool_)
        for layer in record.layers:
            experts, weights = (
                np.asarray(values).reshape(-1, layer.top_k)[is_wanted].ravel()
                for values in (layer.experts, layer.gates)
            )
            experts = experts.astype(np.int64)
            size = layer.num_experts
            gate = np.bincount(experts, weights=weights, minlength=size)
            gates[layer.layer] = gates.get(layer.layer, np.zeros(size)) + gate
            count = np.bincount(experts, minlength=size)
            counts[layer.layer] = counts.get(layer.layer, np.zeros(size)) + count
    rows = [
        (layer, int(expert), gates[layer][expert] / (gates[layer].sum() or 1.0), int(number))
        for layer, numbers in sorted(counts.items())
        for expert, number in enumerate(numbers)
        if number
    ]
    table = pd.DataFrame(rows, columns=list(READER_COLUMNS))
    order = table.sort_values("share", ascending=False, kind="stable")
    return order.sort_values("layer", kind="stable", ignore_index=True)


def check_text_length(num_tokens: int, start: int) -> None:
    """Refuse a text that has nothing to score, or is too long for a page."""
    if num_tokens - start < 1:
        raise StatsError("The text has no token to predict; give at least two.")
    if num_tokens > MOST_TOKENS:
        raise StatsError(
            f"The text has {num_tokens:,} tokens; a lens has at most {MOST_TOKENS:,}. Shorten it."
        )
