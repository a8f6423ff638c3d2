"""One expert: what it reads, its ranks, the plans that drop it, what breaks without it."""

from bisect import bisect_left
from typing import Final

import pandas as pd
import streamlit as st

from analysis.cache_keys import most_results
from analysis.errors import UserError
from analysis.ranking.super_experts import super_experts
from app.charts.evaluations import series_name
from app.charts.text_lens import in_quotes
from app.literal import literal, literal_in_badge
from app.loaded import Loaded
from app.session.chosen_expert import Place
from app.session.data import records_of
from app.session.prompts import own_words, shown_unasked
from app.tables.experts import Sources, expert_means, expert_ranks, expert_sums, rank_summary
from app.widgets.charts import folded_table, table_with_csv
from app.widgets.expert import read_tokens, reads
from app.widgets.expert_card import expert_actions, has_card
from app.widgets.links import link_to
from app.widgets.notes import NO_CALIBRATION, badge, in_a_sentence, inform
from pruning.plan.plan import EXPERT_GRANULARITY, PruningPlan, fit_plan
from pruning.records.lens import LensStore
from pruning.records.quality import PlanLoss
from pruning.records.sensitivity import SensitivityStore
from pruning.spec.spec import PlanSpec
from pruning.study import Study

_MOST_PLANS: Final = 64  # each is made once more, as records do not list experts
_SAME_SIZE: Final = 0.005  # of the routed experts' weights
_MOST_TOKENS: Final = 12


def draw(loaded: Loaded) -> None:
    """The page."""
    place = loaded.choices.expert
    if place is None:
        inform(
            "No expert is chosen. Click one on the map, or write its layer and number, such as "
            "3.18, into **Expert** under **Model and plan**."
        )
        link_to("explore", "Open the map", "grid_on")
        return
    words = filter(None, (_fate(loaded, place), _outlier(loaded, place)))
    st.markdown(f"**Layer {place[0]}, expert {place[1]}**. {' '.join(words)}")
    if has_card(loaded):
        with in_a_sentence():  # both criteria may lack statistics
            expert_actions(loaded, place, opens=False)
    left, right = st.columns(2)
    with left:
        _reading(loaded, place)
        _breaking(loaded, place)
        _plans(loaded, place)
    with right:
        _ranks(loaded, place)
        _means(loaded, place)


def _fate(loaded: Loaded, place: Place) -> str:
    """What the plan on screen does with it, as Markdown."""
    if loaded.shown is None:
        return ""
    plan = loaded.shown.plan
    if plan.granularity != EXPERT_GRANULARITY:
        kept = plan.kept_neurons.get(place[0], {}).get(place[1])
        verdict = "keeps all of its neurons" if kept is None else f"keeps {len(kept)} neurons of it"
    else:
        verdict = "**drops** it" if _drops(plan, place) else "**keeps** it"
    return f"The plan on screen {verdict}."


def _outlier(loaded: Loaded, place: Place) -> str:
    """On which corpora it is a super expert, as Markdown."""
    by_corpus = {name: super_experts((run,)).multiples for name, run in loaded.runs.items()}
    words = [
        f"{literal(name)} ({multiple:.3g} times the median)"
        for name, multiples in by_corpus.items()
        if (multiple := multiples.get(place[0], {}).get(place[1]))
    ]
    return f"By its largest output it is a super expert on {', '.join(words)}." if words else ""


def _drops(plan: PruningPlan, place: Place) -> bool:
    return place[1] not in plan.kept[place[0]]


def _reading(loaded: Loaded, place: Place) -> None:
    st.markdown("**What it fires on**")
    records = shown_unasked(records_of(loaded, LensStore), LensStore, own_words())
    st.markdown(reads(loaded, records, place))
    name = f"layer {place[0]}, expert {place[1]}"
    tokens = read_tokens(records, place).head(_MOST_TOKENS)
    if not tokens.empty:
        words = f"Tokens of the scored texts that {name} reads, by the sum of their gate weights"
        tokens = tokens.rename(columns={"gate": "sum of gate weights", "num_tokens": "times"})
        shown = tokens.assign(token=tokens["token"].map(in_quotes))  # blanks have signs
        folded_table("Tokens", lambda: tokens, "expert-tokens", words, shown=shown)


def _means(loaded: Loaded, place: Place) -> None:
    st.markdown("**On each corpus**")
    stats, name = loaded.calibrated, f"layer {place[0]}, expert {place[1]}"
    if not stats:
        inform(NO_CALIBRATION)
        return
    means = expert_means(stats, *place)
    silent = [corpus for corpus in stats if means.set_index("number")[corpus].iloc[0] == 0]
    if silent:
        badge(f"no token of {literal_in_badge(', '.join(silent))} reached it", is_good=False)
    table_with_csv(means, "expert-means", f"Means of {name} by corpus")
    words = f"Sums of {name} by corpus"
    folded_table("All stored sums", lambda: expert_sums(stats, *place), "expert-sums", words)


def _breaking(loaded: Loaded, place: Place) -> None:
    """Exact damage by corpus, and the loss of its layer up to it and without it."""
    st.markdown("**What breaks without it**")
    ranks = _all_ranks(loaded, place)
    damage = ranks[ranks["criterion"] == "Exact damage"]
    rows = damage.sort_values("rank", kind="stable").to_dict("records")
    if rows:
        said = ", ".join(f"{row['rank']} on {literal(row['source'])}" for row in rows)
        st.markdown(
            f"By how much its removal changes the layer's output (exact damage) it ranks {said}, "
            f"of {rows[0]['of']}."
        )
    else:
        inform("Exact damage is not known; `moeprune calibrate --group damage` collects it.")
    table = _layer_losses(loaded, place)
    if table is None:
        st.text("The sensitivity of its layer in the plan's order is not measured.")
        return
    st.markdown(
        f"In the order of the plan it is number {table['number'].iloc[0]} of its layer to go."
    )
    losses = table.drop(columns="number")
    words = "Loss increase of its layer alone, before and without it, nats per token"
    folded_table("Loss of its layer alone", lambda: losses, "expert-sensitivity", words)


def _layer_losses(loaded: Loaded, place: Place) -> pd.DataFrame | None:
    """Table `number, corpus, before, without` of the measured curves; None if there are none.

    `number` counts the layer's experts in the order in which they go. `before` is the loss increase
    without those that go earlier, `without` that without this one too.
    """
    if loaded.sensitivity is None or loaded.choices.spec.by_neuron:
        return None
    order, layer = (
        loaded.study.order(loaded.ranking),
        list(loaded.study.order(loaded.ranking).sizes).index(place[0]),
    )
    levels, least = range(order.units.most[layer] + 1), order.units.least

    def is_gone(level: int) -> bool:
        removed = [*least[:layer], max(level, least[layer]), *least[layer + 1 :]]
        return _drops(fit_plan(order.plan_of(tuple(removed)), loaded.model), place)

    number = bisect_left(levels, True, key=is_gone)
    if number == 0 or number > levels[-1]:
        return None
    rows = [
        (number, curve.corpus, curve.layers[layer].at(number - 1), curve.layers[layer].at(number))
        for curve in loaded.sensitivity.curves
    ]
    return pd.DataFrame(rows, columns=["number", "corpus", "before", "without"])


def _plans(loaded: Loaded, place: Place) -> None:
    """The best measured plans of the size of the plan on screen, and whether they drop it."""
    st.markdown("**Plans that drop it**")
    if loaded.shown is None or loaded.shown.plan.granularity != EXPERT_GRANULARITY:
        st.text("There is no plan of whole experts on screen whose size others could have.")
        return
    kept = sum(map(len, fit_plan(loaded.shown.plan, loaded.model).kept.values()))
    removed = 1 - kept / loaded.model.num_experts
    rows = []
    for loss, plan in _measured_plans(loaded, removed):
        name = series_name({**loss.facts.columns, "plan": loss.plan})
        rows.append((name, loss.mean, "drops it" if _drops(plan, place) else "keeps it"))
    if not rows:
        st.text("No plan of this size has been measured.")
        return
    table = pd.DataFrame(rows, columns=["plan", "loss increase", "fate"])
    count = int((table["fate"] == "drops it").sum())
    st.text(f"Of the {len(table)} measured plans of this size that lose least, {count} drop it.")
    words = "Measured plans of this size and what they do with it"
    folded_table("Plans", lambda: table, "expert-plans", words)


def _measured_plans(loaded: Loaded, removed: float) -> list[tuple[PlanLoss, PruningPlan]]:
    """Measured plans that remove this share, made once more; the least loss first.

    Left out are those whose making was not recorded, and repairs, which drop the same experts.
    """
    losses = [
        loss
        for loss in loaded.study.losses
        if loss.facts.removed is not None and abs(loss.facts.removed - removed) < _SAME_SIZE
        if loss.facts.granularity == EXPERT_GRANULARITY
        if loss.facts.is_plain and not (loss.is_repaired or loss.missing or loss.is_random)
    ]
    searched = {}
    for known in loaded.study.searches:
        try:
            spec = known.spec.changed(set=known.kept)
            plan = loaded.study.plan(spec)
        except UserError:  # made of statistics that are gone
            continue
        searched[plan.digest] = plan
    pairs = []
    for loss in sorted(losses, key=lambda plan_loss: plan_loss.mean)[:_MOST_PLANS]:
        found = searched.get(loss.plan) or _made_again(loaded, loss)
        if found is not None:
            pairs.append((loss, found))
    return pairs


def _made_again(loaded: Loaded, loss: PlanLoss) -> PruningPlan | None:
    """The plan that was measured, made of its recorded spec; None if that gives another one."""
    spec, study = loss.facts.asked, loaded.study
    if spec is None or spec.spread.schedule_file is not None:
        return None
    plan = study.cached(_plan_of, study, spec, study.curves)
    if plan is None or fit_plan(plan, loaded.model).digest != loss.plan:
        return None
    return plan


@most_results(256)
def _plan_of(study: Study, spec: PlanSpec, _curves: SensitivityStore) -> PruningPlan | None:
    """The plan of a spec; None if it was made of statistics that are gone.

    Kept by itself: the plans of one page come from more rankings than are kept.
    """
    try:
        return study.plan(spec)
    except UserError:
        return None


def _all_ranks(loaded: Loaded, place: Place) -> pd.DataFrame:
    sources = Sources(loaded.calibrated, loaded.study.weight_stats, loaded.model.layers)
    return loaded.study.cached(expert_ranks, sources, loaded.choices.gate, place)


def _ranks(loaded: Loaded, place: Place) -> None:
    count = next(layer.num_experts for layer in loaded.model.layers if layer.index == place[0])
    st.markdown(f"**Rank under every criterion**, of {count}; 1 is kept first.")
    summary = rank_summary(_all_ranks(loaded, place), loaded.fraction)
    if loaded.percent == 0:  # nothing is pruned, or the page has no sparsity
        summary = summary.drop(columns="kept")
    table_with_csv(
        summary.rename(columns={"kept": f"kept at {loaded.sparsity}"}),
        "expert-ranks",
        f"Ranks of layer {place[0]}, expert {place[1]} under {len(summary)} criteria",
        placeholder="-",
        height="content",
    )
