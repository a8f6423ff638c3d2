"""Compare: its numbers against plain Python, its address, its command, what it says when empty."""

import re
from statistics import fmean

import pandas as pd
import pytest
from page_texts import SCORES, deltas_of, gone, loaded_on, sent_to_map
from shipped import shipped_loss

from app.charts import traces
from app.charts.listing import CHARTS

LABELS = {"reap": "REAP  (1, 1, 1)", "man": "MAN  (1, 0, 1)", "frequency": "Frequency  (0, 0, 0)"}


def decided_alike(test):
    """As the conclusion says it."""
    (said,) = (text.value for text in test.markdown if "They decide" in text.value)
    return re.search(r"They decide \*\*(\d+%)\*\* of the experts alike", said)[1]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (("reap", "demo-code", 50), ("man", "demo-code", 50)),
        (("frequency", "demo-code", 75), ("reap", "demo-math", 25)),
    ],
)
def test_numbers_are_those_of_the_shipped_files(open_page, demo_moments, a, b):
    (name, text, percent), (other, b_text, b_percent) = a, b
    test = open_page(
        "compare",
        corpora=text,
        sparsity=f"{percent}%",
        criterion=name,
        baseline=LABELS[other],
        b_text=b_text,
        b_sparsity=str(b_percent),
    )
    first, second = (
        gone(demo_moments[text], SCORES[name](demo_moments[text]), p) for name, text, p in (a, b)
    )
    shown = deltas_of(test)
    assert decided_alike(test) == f"{1 - len(first ^ second) / 192:.0%}"
    assert shown["Jaccard of the pruned"][0] == f"{len(first & second) / len(first | second):.2f}"
    table = test.dataframe[-1].value
    alone = {(row.layer, row.expert): row.kept_by for row in table.itertuples()}
    assert {place for place, fate in alone.items() if fate == "only A"} == second - first


def test_a_map_without_marks_to_click_says_so(open_page, session, monkeypatch):
    pin = session(granularity="neuron", sparsity="25%").session_state["own_pin"]
    for most, is_said in ((192, False), (191, True)):
        monkeypatch.setattr(traces, "MOST_CLICKED", most)
        test = open_page("compare", granularity="neuron", pinned=pin.text)
        test.selectbox(key="neurons.second").set_value(pin.name).run()
        assert any("takes no clicks" in text.value for text in test.caption) == is_said


@pytest.mark.parametrize("page", ["compare", "explore"])
def test_the_map_has_each_expert_where_the_first_recipe_ranks_it(open_page, page):
    """What its script is sent, against the table of the chart."""
    address = {"criterion": "reap", "corpora": "demo-code", "expert": "3.7"}
    if page == "explore":
        address |= {"tab": "Corpora", "pair": "demo-code and demo-math"}
    test = open_page(page, **address)
    loaded, name, key = loaded_on(test), "kept-by", "compare.map"
    if page == "explore":
        loaded = loaded.choosing(pair=("demo-code", "demo-math"))
        name, key = "pair-map", "pair.map"
    table = CHARTS[name].draw(loaded).table.set_index(["layer", "expert"])
    sent = sent_to_map(test, key)
    assert sent["selected"] == [3, 7]
    fates = dict.fromkeys(table.index, "")
    for side, panel in zip("ab", sent["panels"], strict=True):
        for row, (layer, order) in enumerate(zip(sent["layers"], panel["order"], strict=True)):
            assert [table.loc[(layer, expert), f"rank_{side}"] for expert in order] == list(
                range(len(order))
            )
            for rank, expert in enumerate(order):
                is_other = row * sent["width"] + expert in panel["others"]
                fates[layer, expert] += "-+"[(rank < panel["kept"][row]) != is_other]
    words = {"++": "both", "+-": "only A", "-+": "only B", "--": "neither"}
    assert {place: words[fate] for place, fate in fates.items()} == table["kept_by"].to_dict()


def test_swap(open_page):
    test = open_page("compare", criterion="aimer", b_sparsity="25")
    before, alike = deltas_of(test), decided_alike(test)
    test.button(key="swap").click().run()
    assert not test.exception
    assert test.selectbox(key="baseline").value == "aimer"
    assert test.select_slider(key="sparsity").value == 25
    assert test.selectbox(key="b_sparsity").value == 50
    after = deltas_of(test)
    assert decided_alike(test) == alike
    assert after["Kendall tau"] == before["Kendall tau"]


@pytest.mark.parametrize(
    "address",
    [
        {"criterion": "aimer", "baseline": "Magnitude", "b_sparsity": "25"},
        {"corpora": "demo-math", "b_text": "demo-stories", "b_gate": "renormalized"},
        {"corpora": ["demo-code:80", "demo-stories:50"]},
    ],
    ids=str,
)
def test_command_gives_the_numbers_of_the_page(open_page, tmp_path, run, address):
    test = open_page("compare", **address)
    said = run(test.code[0].value)
    table = pd.read_csv(tmp_path / "comparison.csv")
    alike = table["kept_by"].isin(("both", "neither")).mean()
    assert decided_alike(test) == f"{alike:.0%}"
    only_a = int((table["kept_by"] == "only A").sum())
    assert f"kept by only A               {only_a}" in said


def test_values_outside_their_options_do_not_crash(open_page):
    test = open_page("compare", sparsity="0%")
    assert deltas_of(test)["Jaccard of the pruned"] == ("-", "nothing is pruned")
    for key, value in (
        *(("baseline", None), ("b_text", None), ("b_gate", None)),
        *(("b_sparsity", None), ("sparsity", 99), ("sparsity", "much")),
    ):
        test.session_state[key] = value
        test.run()
        assert not test.exception, key
        assert deltas_of(test)


def test_values_of_the_address_outside_their_options_fall_back(open_page):
    test = open_page("compare", b_gate="strong", b_sparsity="99", b_text="nope", baseline="x")
    assert deltas_of(test) == deltas_of(open_page("compare"))
    # The same recipe twice agrees on all.
    test.selectbox(key="baseline").set_value("reap").run()
    shown = deltas_of(test)
    assert decided_alike(test) == "100%"
    assert shown["Jaccard of the pruned"][0] == "1.00"
    assert shown["Kendall tau"][0] == "1.00"
    assert any("same experts" in note.value for note in test.info)


def test_without_statistics_it_says_what_to_do(open_page):
    test = open_page("compare", "bare")
    assert not test.metric
    assert all("Start" in note.value for note in test.info)
    test = open_page("compare", "weighed", criterion="aimer", baseline="Magnitude")
    assert test.metric


def test_every_chart_says_what_it_shows_and_offers_its_numbers(open_page):
    test = open_page("compare")
    test.session_state["layers"] = True
    test.run()
    assert len(test.get("plotly_chart")) == 1
    # Half of 32 are kept: ranks 1 to 16.
    table = test.dataframe[-1].value
    assert ((table["rank_a"] <= 16) == (table["kept_by"] == "only A")).all()
    for name in ("kept-by", "agreement"):
        test.session_state[f"data.{name}"] = True
    test.run()
    assert not test.exception
    labels = [button.label for button in test.get("download_button")]
    assert labels.count("HTML") == 2
    assert labels.count("CSV") == 3
    # Ranks are read as the axes count them: from 1.
    ranks = [table.value.filter(like="rank_") for table in test.dataframe]
    ranks = [table for table in ranks if not table.empty]
    assert len(ranks) == 2
    assert all(table.min().min() == 1 for table in ranks)


def test_the_conclusion_comes_first_with_what_both_were_measured_to_lose(open_page):
    test = open_page("compare", b_text="demo-stories")
    (said,) = (text.value for text in test.markdown if "They decide" in text.value)
    mine, other = shipped_loss("reap", "demo-code"), shipped_loss("frequency", "demo-stories")
    assert said.startswith(f"**A** REAP, demo-code, 50%: {_words(mine)}")
    assert f"**B** Frequency, demo-stories, 50%: {_words(other)}" in said
    other = [text.value for text in open_page("compare", b_sparsity="35").markdown]
    assert any("35%: loss not measured. They decide" in text for text in other)


def _words(added):
    worst = max(added, key=added.get)
    return f"loss {fmean(added.values()):+.2f} mean, {added[worst]:+.2f} worst ({worst})"
