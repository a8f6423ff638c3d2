"""The findings of the page Story for every step of their controls, as JSON for one HTML file."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from analysis.corpora.spec import corpus_weight_text
from analysis.criteria import RANKABLE, get_criterion, unified
from analysis.errors import PlanError, StatsError, UserError
from analysis.families.base import MoELayer
from analysis.ranking.stratification import random_gaps, random_separation, separation
from analysis.stats.columns import EXPONENTS, moment_column
from analysis.stats.tables import ExpertStats, WeightStats
from app.charts.listing import CHARTS
from app.charts.loss_by_size import random_losses
from app.charts.schedules import sides
from app.charts.stratification import KEY, SCALES
from app.choices import BLEND
from app.loaded import CurrentPlan, Loaded, loss_of_plan, loss_text
from app.report import sentences
from app.tables.saliency_grid import SaliencyGrid, rank
from pruning.planning.choice import SCHEDULE_NAMES, possible_percents, schedule_label
from pruning.records.quality import PlanLoss, loss_of
from pruning.serving.engines import contents_of, readers, verdicts
from pruning.spec.spec import PlanSpec, spec_of

Json = dict[str, Any]

_PLAIN: Final = (
    "A story is of whole experts, as many in every layer, and compares schedules itself; of the "
    "options of a plan give --criterion, --calibrated-on, --run, --gate and --sparsity alone."
)
_USUAL, _WITHOUT_CORPUS = "reap", "aimer"
# More sums, of nine columns, are embedded in single precision.
_MOST_DOUBLES: Final = 100_000
_MOST_CORPORA: Final = 8  # whose order is embedded


def story_spec(spec: PlanSpec, corpora: Sequence[str]) -> PlanSpec:
    """The plan that a story begins with: as asked, else what the dashboard opens with.

    `corpora` are those that the model is calibrated on.
    """
    asked = spec.ranking
    if spec.budget.sparsity is None:
        raise PlanError(_PLAIN)
    criterion = asked.criterion or (_USUAL if corpora else _WITHOUT_CORPUS)
    names = asked.corpora
    if not (names or asked.runs) and get_criterion(criterion).source == "routed" and corpora:
        names = (corpus_weight_text(corpora[0]),)
    fields = {"runs": asked.runs, "gate": asked.gate, "sparsity": spec.budget.sparsity}
    plain = spec_of(criterion=criterion, corpora=names, **fields)
    if spec.changed(criterion=criterion, corpora=names) != plain:
        raise PlanError(_PLAIN)
    return plain


@dataclass(frozen=True, eq=False)
class Source:
    """What the findings are told from: the plan, at each step of the sparsity."""

    loaded: Loaded

    @cached_property
    def layers(self) -> tuple[MoELayer, ...]:
        """Those of the model."""
        return self.loaded.model.layers

    @cached_property
    def percents(self) -> list[int]:
        """Steps of the slider."""
        return [percent for percent in possible_percents(self.loaded.model) if percent]

    @cached_property
    def percent(self) -> int:
        """The step next to the sparsity of the plan."""
        asked = 100 * self.loaded.fraction
        return min(self.percents, key=lambda percent: abs(percent - asked))

    @cached_property
    def corpora(self) -> dict[str, tuple[str, ...]]:
        """Name -> the corpora to calibrate on: each, and a blend of all."""
        single: dict[str, tuple[str, ...]] = {
            name: (corpus_weight_text(name),) for name in self.loaded.runs
        }
        every = tuple(corpora[0] for corpora in single.values())
        return {**single, BLEND: every} if len(single) > 1 else single

    @cached_property
    def corpus(self) -> str:
        """That of the plan, also if its own criterion reads none."""
        return self.loaded.corpus or next(iter(self.corpora), "")

    def at(self, percent: int, **fields: Any) -> Loaded:
        """The plan at a sparsity, with other values of these fields."""
        spec = self.loaded.choices.spec.changed(sparsity=f"{percent}%", **fields)
        corpora = spec.ranking.corpora or self.loaded.choices.corpora
        chosen = self.loaded.choosing(spec=spec, corpora=corpora, second=None)
        ranking = chosen.study.ranking(spec)
        return replace(chosen, shown=CurrentPlan(chosen.study.plan_of(ranking), ranking))

    @cached_property
    def steps(self) -> dict[int, Loaded]:
        """The plan at each step."""
        return {percent: self.at(percent) for percent in self.percents}

    def kept(self, percent: int) -> list[int]:
        """Experts that the plan keeps of each layer."""
        counts = self.steps[percent].shown_plan.kept
        return [len(counts.get(layer.index, range(layer.num_experts))) for layer in self.layers]

    def measured(self, ranked: SaliencyGrid, percent: int) -> PlanLoss | None:
        """The recorded loss of what a ranking keeps at a step, if it compares with others'."""
        losses, plan = self.loaded.study.losses, self.steps[percent].shown_plan
        if not losses:
            return None
        kept = {
            layer.index: tuple(sorted(order[:count].tolist()))
            for layer, order, count in zip(
                self.layers, ranked.order, self.kept(percent), strict=True
            )
        }
        return sentences.comparable(loss_of(losses, replace(plan, kept=kept).digest))

    def after(self, loaded: Loaded) -> int:
        """Bytes of the export."""
        return loaded.study.sizes(loaded.shown_plan).bytes_after


def story_of(source: Source) -> Json:
    """All that the file shows, as JSON."""
    model = source.loaded.model
    if not source.percents:
        raise PlanError(f"No sparsity leaves {model.name} enough experts, so nothing is told.")
    told = {
        "saves": saving,
        "criteria": criteria,
        "stratification": stratification,
        "corpora": corpora,
        "budget": budget,
        "ships": shipping,
    }
    slides = [_slide(source, name, sentences.TITLES[name], tell) for name, tell in told.items()]
    return {
        "model": model.name,
        "layers": [layer.index for layer in source.layers],
        "experts": [layer.num_experts for layer in source.layers],
        "groups": [layer.num_groups for layer in source.layers],
        "percents": source.percents,
        "percent": source.percent,
        "kept": {percent: source.kept(percent) for percent in source.percents},
        "slides": slides,
    }


def _slide(source: Source, name: str, title: str, told: Callable[[Source], Json]) -> Json:
    """A finding; of one without data, why."""
    try:
        return {"name": name, "title": title, **told(source)}
    except UserError as error:
        return {"name": name, "title": title, "missing": str(error)}


def saving(source: Source) -> Json:
    """What pruning saves at each step, and all measured plans by size."""
    steps = {}
    for percent, loaded in source.steps.items():
        loss = sentences.comparable(loss_of_plan(loaded)[0]) or loaded.predicted
        steps[percent] = {
            "sentence": sentences.saving(loaded, _shown(loaded), source.after(loaded)),
            "bytes": source.after(loaded),
            "mean": loss.mean if loss else None,
            "measured": isinstance(loss, PlanLoss),
            "parts": _parts(loaded),
        }
    told: Json = {"steps": steps, "note": _where_measured(source)}
    try:
        table = CHARTS["loss-by-size"].draw(source.steps[source.percent]).table
    except UserError:  # nothing was evaluated
        return told
    rows = table[table["is_measured"]]
    points = rows[["bytes", "mean", "kind", "candidate", "on_front"]].to_dict("records")
    chance = random_losses(source.loaded.study.losses).to_dict("records")
    return {**told, "points": points, "random": chance}


def _where_measured(source: Source) -> str:
    """On what losses were measured."""
    losses = [loss for loss in source.loaded.study.losses if not loss.way]
    return f"Loss on held-out text of {', '.join(losses[0].corpora)}." if losses else ""


def _parts(loaded: Loaded) -> list[list[Any]]:
    """Part of the model, bytes before and after."""
    table = loaded.study.sizes(loaded.shown_plan).table
    rows: list[list[Any]] = table[["part", "before", "after"]].to_numpy().tolist()
    return [row for row in rows if row[1] or row[2]]


def _shown(loaded: Loaded) -> CurrentPlan:
    if loaded.shown is None:
        raise PlanError("There is no plan.")
    return loaded.shown


def criteria(source: Source) -> Json:
    """The sums from which the browser ranks by every variant, and the recorded losses."""
    loaded = source.loaded
    own = loaded.choices.ranking_criterion
    names = loaded.choices.corpora or source.corpora.get(source.corpus, ())
    by_run = loaded.choices.spec.ranking.runs
    asked = loaded.choices.spec.changed(criterion=_USUAL, corpora=() if by_run else names)
    stats, gate = loaded.study.ranking(asked).choice.stats, loaded.choices.gate
    if not isinstance(stats, ExpertStats):
        raise StatsError(
            f"{own.label} has no sums of {loaded.model.name}; run `moeprune calibrate`."
        )
    is_double = len(stats.table) <= _MOST_DOUBLES // 9
    columns = [moment_column(a, b, gate) for a in EXPONENTS for b in EXPONENTS]
    width = "<f8" if is_double else "<f4"
    stored = stats.table[columns].to_numpy(width)
    ranked = {v: loaded.study.cached(rank, unified(*v), stats, gate) for v in RANKABLE}
    note = "" if is_double else _precision(stats, stored.astype(np.float64), columns, ranked, gate)
    own_ranked = loaded.ranked(loaded.first)
    steps: Json = {}
    for percent in source.percents:
        mine = source.measured(own_ranked, percent)
        losses = {v: source.measured(grid, percent) for v, grid in ranked.items()}
        steps[str(percent)] = {
            _key(v): {"instead": sentences.instead_of(loss, mine), "mean": loss.mean}
            for v, loss in losses.items()
            if loss
        }
    return {
        "sums": _packed(stored.T, width),
        "width": 8 if is_double else 4,
        "note": note,
        "own": own.label,
        "exponents": own.exponents and _key(own.exponents),
        "order": _packed(_orders(own_ranked), "<u2"),
        "labels": {_key(v): unified(*v).label for v in RANKABLE},
        "first": _key(next(v for v in ((0, 0, 0), (1, 1, 1)) if v != own.exponents)),
        "template": sentences.disagreement("{keeps}", "{drops}", "{count} experts", "{instead}"),
        "unmeasured": sentences.instead_of(None, None),
        "same": sentences.SAME_SCORE,
        "itself": sentences.own_criterion(own.label),
        "corpus": ", ".join(by_run or names),
        "steps": steps,
    }


def _precision(
    stats: ExpertStats,
    stored: NDArray[np.float64],
    columns: Sequence[str],
    ranked: Mapping[tuple[int, int, int], SaliencyGrid],
    gate: Any,
) -> str:
    """How many ranks the numbers of the file change."""
    rounded = replace(stats, table=stats.table.assign(**dict(zip(columns, stored.T, strict=True))))
    changed = sum(
        int((rank(unified(*v), rounded, gate).order != grid.order).sum())
        for v, grid in ranked.items()
    )
    total = len(ranked) * len(stats.table)
    return (
        f"Sums are stored in single precision, which changes {changed:,} of {total:,} ranks, those "
        "of experts with nearly equal scores."
    )


def _key(exponents: Iterable[int]) -> str:
    return ",".join(map(str, exponents))


def _orders(ranked: SaliencyGrid) -> NDArray[np.int64]:
    """Experts of all layers, the first to keep first."""
    return ranked.order[ranked.order >= 0]


def _packed(values: NDArray[Any], width: str) -> str:
    """Numbers as base64."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=width).tobytes()).decode()


def stratification(source: Source) -> Json:
    """Scores of two criteria by rank, beside random weights."""
    loaded = source.steps[source.percent]
    drawing = CHARTS["stratification"].draw(loaded)
    panels = []
    for name in loaded.choices.strata.criteria:
        criterion = get_criterion(name)
        ranking = loaded.study.ranking(loaded.spec_by(criterion))
        ranked, stats = loaded.ranked(ranking), ranking.choice.stats
        signed = criterion.saliency(ranked.score)
        rows = separation(signed, ranked.grid, source.kept(source.percent), ranked.order)
        random: Json = {}
        if isinstance(stats, WeightStats):
            kept = tuple(source.kept(source.percent))
            chance = loaded.study.cached(random_separation, criterion, stats, kept)
            gaps = loaded.study.cached(random_gaps, criterion, stats)
            present = ranked.grid.present
            random = {
                "random_spread": chance["spread"].tolist(),
                "random_gaps": _packed(gaps[present[:, 1:]], "<f4"),
            }
        panels.append(
            {
                "name": criterion.label,
                "saliency": _packed(signed[ranked.grid.present], "<f8"),
                "sign": 1 if np.array_equal(signed, ranked.score, equal_nan=True) else -1,
                "spread": rows["spread"].tolist(),
                **random,
            }
        )
    scales = [
        {"name": name, "label": label, "about": words} for name, (label, words) in SCALES.items()
    ]
    return {"sentence": drawing.alt, "panels": panels, "scales": scales, "about": KEY}


def corpora(source: Source) -> Json:
    """What the plan keeps by each calibration, and what that costs on each corpus."""
    loaded, options = source.loaded, source.corpora
    own = loaded.routed_criterion()
    if len(loaded.runs) < 2:
        raise StatsError(
            f"{loaded.model.name} is calibrated on {len(loaded.runs)} corpus; `moeprune calibrate` "
            "on another shows what the corpus decides."
        )
    words = {name: f"all {len(loaded.runs)} corpora" if name == BLEND else name for name in options}
    ranked = {}
    shown = [name for name in options if name not in (source.corpus, BLEND)][: _MOST_CORPORA - 2]
    for name, names in options.items():
        if name not in (source.corpus, BLEND, *shown):
            continue
        ranking = loaded.study.ranking(loaded.choices.spec.changed(corpora=names, runs=()))
        ranked[name] = loaded.ranked(ranking)
    steps: Json = {}
    for percent in source.percents:
        losses = {name: source.measured(grid, percent) for name, grid in ranked.items()}
        steps[str(percent)] = {
            "measured": {
                name: {
                    "sentence": sentences.calibrated_on(words[name], own.label, loss),
                    "change": dict(loss.change),
                }
                for name, loss in losses.items()
                if loss
            },
            "unmeasured": _unmeasured(source.steps[percent]),
        }
    return {
        "note": f"{len(ranked)} of {len(options)} are shown." if len(ranked) < len(options) else "",
        "corpus": source.corpus,
        "options": [
            {"name": name, "label": words[name], "order": _packed(_orders(grid), "<u2")}
            for name, grid in ranked.items()
        ],
        "steps": steps,
    }


def _unmeasured(loaded: Loaded) -> str:
    try:
        return sentences.not_measured(CHARTS["overlap"].draw(loaded).alt)
    except UserError as error:
        return sentences.not_measured(str(error))


def budget(source: Source) -> Json:
    """What each schedule keeps of each layer."""
    steps: Json = {}
    for percent, loaded in source.steps.items():
        counts = sides(loaded).counts
        known = set(counts["schedule"])
        rows = []
        for name in filter(known.__contains__, SCHEDULE_NAMES):
            try:
                other = source.at(percent, schedule=name)
            except UserError:  # of curves or tokens that are not here
                continue
            kept = {layer: len(ids) for layer, ids in other.shown_plan.kept.items()}
            every = [kept.get(layer.index, layer.num_experts) for layer in source.layers]
            loss = loss_text(other, *loss_of_plan(other))
            label = schedule_label(name)
            words = sentences.spread_of_budget(label, every, loss)
            rows.append({"name": name, "label": label, "sentence": words, "kept": every})
        steps[str(percent)] = rows
    return {"steps": steps}


def shipping(source: Source) -> Json:
    """Bytes, loss and engines of the export, with equal layers and with others."""
    before = source.loaded.model.checkpoint.nbytes
    describe = partial(_shipped, source, before)
    return {
        "steps": {
            percent: {
                "even": describe(loaded),
                "uneven": describe(source.at(percent, schedule="global")),
            }
            for percent, loaded in source.steps.items()
        }
    }


def _shipped(source: Source, before: int, loaded: Loaded) -> Json:
    by = readers(verdicts(contents_of(loaded.model, loaded.shown_plan)))
    loss = loss_text(loaded, *loss_of_plan(loaded))
    words = sentences.shipped((before, source.after(loaded)), loss, by.words)
    return {"sentence": words, "parts": _parts(loaded)}
