"""The numbers that the script for stakeholders points at are those of the shipped demo."""

import json
from pathlib import Path

import pytest

from analysis.criteria import get_criterion
from analysis.model import load_model_index
from analysis.ranking.experts import rank_experts
from analysis.stats.choose import CorpusWeight, choose_stats
from analysis.stats.store import SHIPPED_STATS, StatsStore
from pruning.plan import model_ref, select_experts
from pruning.schedules import uniform
from pruning.sizes import size_report

PAGE = (Path(__file__).parent.parent / "docs" / "demo-for-stakeholders.md").read_text()
TEXTS = ("demo-code", "demo-prose", "demo-math")
MIB = 2**20


@pytest.fixture(scope="module")
def model():
    return load_model_index("demo")


@pytest.fixture(scope="module")
def pruned(model):
    """(criterion, text) -> pairs of layer and expert that go at 50%, from the ranks alone."""

    def of(name, text="demo-code"):
        criterion = get_criterion(name)
        store = StatsStore(SHIPPED_STATS)
        chosen = choose_stats(criterion, store, model, [CorpusWeight(text)])
        ranking = rank_experts(criterion, chosen.stats, "applied")
        last = ranking[ranking["rank"] >= 16]
        return set(zip(last["layer"], last["expert"], strict=True))

    return of


def shared(first, second):
    """Share of the pruned experts that two choices have in common; layers lose 16 each."""
    assert len(first) == len(second) == 6 * 16
    return len(first & second) / len(first)


def across_texts(pruned, name):
    code, prose, maths = (pruned(name, text) for text in TEXTS)
    return (shared(code, prose) + shared(code, maths) + shared(prose, maths)) / 3


def test_what_is_said_of_explore(pruned):
    assert f"**{shared(pruned('reap'), pruned('frequency')):.0%}** in *Pruned by" in PAGE
    assert f"REAP: **{across_texts(pruned, 'reap'):.0%}** of the pruned experts" in PAGE
    assert f"MSAN depends least (**{across_texts(pruned, 'msan'):.2f}**)" in PAGE
    assert f"(0, 1, 2) most (**{across_texts(pruned, '0,1,2'):.2f}**)" in PAGE
    never = [_never_routed(text) for text in TEXTS]
    assert "only one or two are never used" in PAGE
    assert set(never) == {1, 2}


def _never_routed(text):
    store = StatsStore(SHIPPED_STATS)
    chosen = choose_stats(
        get_criterion("frequency"), store, load_model_index("demo"), [CorpusWeight(text)]
    )
    return int((chosen.stats.table["num_tokens"] == 0).sum())


def test_what_is_said_of_compare(pruned):
    differing = len(pruned("reap") ^ pruned("man"))
    assert f"of 192 decisions **{1 - differing / 192:.0%}** are equal, **{differing}** are" in PAGE


def test_what_is_said_of_plan(model):
    store = StatsStore(SHIPPED_STATS)
    criterion = get_criterion("reap")
    chosen = choose_stats(criterion, store, model, [CorpusWeight("demo-code")])
    ranking = rank_experts(criterion, chosen.stats, "applied")
    plan = select_experts(ranking, uniform(model.layers, "50%"), model=model_ref(model))
    report = size_report(model, plan)
    sizes = (report.bytes_before / MIB, report.bytes_after / MIB)
    assert "**{:.1f} MiB become {:.1f}**".format(*sizes) in PAGE
    assert f"about **{report.active_after / 1e6:.2f} million**" in PAGE


def test_what_is_said_of_evaluate():
    records = [
        json.loads(file.read_text()) for file in (SHIPPED_STATS / "evaluations").glob("demo-*.json")
    ]
    half = [
        record
        for record in records
        if record["corpus"]["name"] == "demo-code" and record["plan"]["sparsity"] == "50%"
    ]
    losses = {record["metrics"]["nll"]["mean"]: record for record in half}
    best = losses[min(losses)]
    assert len(half) > 5
    assert best["plan"]["criterion"] == "frequency"
    full, least = best["full"]["nll"]["mean"], min(losses)
    assert f"from **{full:.3f}** to **{least:.3f}** for the best" in PAGE
    rises = {
        (record["plan"]["criterion"], record["corpus"]["name"]): record["metrics"]["nll"]["mean"]
        - record["full"]["nll"]["mean"]
        for record in records
        if record["plan"]["sparsity"] == "50%" and record["plan"]["corpora"] == ["demo-code"]
    }
    code, maths = (rises["reap", text] for text in ("demo-code", "demo-math"))
    assert f"the loss by **{code:.3f}** on code and by **{maths:.3f}** on maths" in PAGE
    assert f"on maths it rises by **{rises['frequency', 'demo-math']:.3f}**" in PAGE
