"""Pinned plans: whole through the URL, their table, as second plan; what the last click did."""

import json
import math
import re
from dataclasses import replace
from statistics import fmean
from types import SimpleNamespace
from urllib.parse import urlencode

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as some
from page_texts import (
    ALL_CORPORA,
    PLANS,
    SCORES,
    bar_of,
    gone,
    refusal_of_link,
    sides,
    table_with,
    texts,
)
from shipped import shipped_loss
from streamlit.testing.v1 import AppTest

from analysis.errors import PlanError
from app.charts.listing import CHARTS
from app.session import pins as session_pins
from app.session.pins import MOST_NOTE, MOST_PINS, Pin, parse_pin
from app.widgets.expert_card import standings
from pruning.plan.sizes import format_bytes
from pruning.planning.choice import MOST_TEXT

STATES = ["both", "only_a", "only_b", "neither"]
MORE = {
    "in fewer bits": {"criterion": "man", "bits": "4", "schedule": "early", "sparsity": "25%"},
    "repaired": {
        **{"criterion": "ean", "corpora": ALL_CORPORA},
        "repair": "repaired on 3 corpora, 65,280 tokens",
    },
    "widths of neurons": {"granularity": "neuron", "width_mode": "ragged", "sparsity": "25%"},
}
REAP = "plan=d225968c&model=demo&criterion=reap&corpora=demo-code&sparsity=50%25"
LATE = "plan=00000000&model=demo&criterion=reap&corpora=demo-stories&sparsity=25%25&schedule=late"


def address_of(test):
    """Without what the browser alone writes."""
    beside = ("pinned", "repair")
    return {name: value for name, value in test.query_params.items() if name not in beside}


@pytest.mark.parametrize("address", (PLANS | MORE).values(), ids=(PLANS | MORE).keys())
def test_a_pin_is_the_whole_plan_in_the_table_and_when_it_is_opened(session, address):
    """In a session that knows the URL alone, and has another plan on screen."""
    own = session(**address)
    shown, pin = own.session_state["loaded"].shown, own.session_state["own_pin"]
    assert bool(shown.plan.repair) == ("repair" in address)
    assert shown.plan.bits == address.get("bits", "")
    other = session(opened="1", criterion="magnitude", sparsity="10%", pinned=pin.text)
    assert other.session_state["loaded"].shown.plan.digest != shown.plan.digest
    assert not other.session_state["problems"]
    assert other.session_state["changed"] == [False]
    # What the bar says where that plan is on screen.
    row, bar = other.session_state["rows"].iloc[0], bar_of(own)
    assert (row["plan"], row["digest"]) == (shown.name, shown.plan.digest[:8])
    assert f"**{format_bytes(row['size'])}**" in bar
    numbers = [float(number) for number in re.findall(r"[+-]\d+\.\d+", bar)]
    for loss in (row["mean"], row["worst"]):
        assert any(abs(loss - number) <= 0.005 for number in numbers) or "loss not measured" in bar
        assert math.isnan(loss) == ("loss not measured" in bar)
    assert ("predicted" in bar or "a guess" in bar) == (row["loss_is"] == "predicted")
    assert row["verdict"].partition(": ")[2].partition(", ")[0] in bar
    other.session_state["opens"] = True
    other.run()
    assert not other.exception
    assert other.session_state["loaded"].shown.plan.digest == shown.plan.digest
    assert address_of(other) == address_of(own)
    assert other.session_state["own_pin"] == pin


def test_the_numbers_of_the_table_are_those_of_the_records(session):
    test = session(opened="1", criterion="ean", pinned=[REAP, LATE])
    row, late = test.session_state["rows"].to_dict("records")
    added = shipped_loss("reap", "demo-code")
    assert row["mean"] == pytest.approx(fmean(added.values()))
    assert row["worst"] == pytest.approx(max(added.values()))
    assert added[row["worst_on"]] == max(added.values())
    assert (row["loss_is"], row["benchmarked"]) == ("measured", True)
    assert row["verdict"] == "amber: 4 bits alone is as good"
    assert late["engines"] == "only transformers with remote code or load_pruned"
    # The digest that the pin recorded is another: it does not say why, but that it is.
    assert test.session_state["changed"] == [False, True]


def test_the_table_shows_the_plans_of_a_criterion_a_light_or_those_measured(open_page):
    ean = "plan=42d8d1d2&model=demo&criterion=ean&corpora=demo-code&sparsity=50%25"
    test = open_page("compare", criterion="ean", pinned=[REAP, LATE, ean])
    digests = ["d225968c", "00000000", "42d8d1d2"]
    assert list(table_with(test, "verdict")["digest"]) == digests
    table = table_with(test, "verdict")
    shown = test.selectbox(key="pins.show")
    assert {"all 3", "REAP (2)", "EAN (1)"} <= set(shown.options)
    measured = table["loss_is"]
    lights = table["verdict"].str.partition(":")[0]
    wanted = {
        "REAP": [True, True, False],
        "EAN": [False, False, True],
        "measured": measured.str.startswith("measured").tolist(),
        "not measured": (~measured.str.startswith("measured")).tolist(),
        **{light: (lights == light).tolist() for light in set(lights)},
    }
    offered = [option.rpartition(" (")[0] for option in shown.options if "(" in option]
    assert sorted(offered) == sorted(kind for kind, rows in wanted.items() if 0 < sum(rows) < 3)
    for kind in offered:
        test.selectbox(key="pins.show").set_value(kind).run()
        assert not test.exception
        rows = [digest for digest, is_one in zip(digests, wanted[kind], strict=True) if is_one]
        assert list(table_with(test, "verdict")["digest"]) == rows
    assert len(test.session_state["pinned"]) == 3
    # Of one plan, or of plans of one kind, there is nothing to choose.
    alone = open_page("compare", criterion="ean", pinned=REAP)
    assert "pins.show" not in [box.key for box in alone.selectbox]


def test_a_pin_that_nothing_makes_is_one_line_and_the_others_stay(open_page):
    pins = [
        "nonsense",
        REAP.replace("criterion=reap", "criterion=<b>reapp"),
        REAP.replace("corpora=demo-code", "corpora=/etc/passwd"),
        REAP + "&exec=1",
        REAP + "&note=a%0Ab",
        "x" * 3000,
        LATE,
    ]
    test = open_page("compare", criterion="ean", pinned=pins, refused="Pinned plan 2")
    line = refusal_of_link(test)
    for words in ("Pinned plan 1", r"\<b>reapp", "/etc/passwd", "'exec'", "The URL pins 7 plans"):
        assert words.replace("\\<", "<") in line.replace("\\", "")
    assert "Pinned plan 5" not in line
    (kept,) = map(parse_pin, test.session_state["pinned"])
    assert kept == parse_pin(REAP + "&note=a+b")
    assert list(table_with(test, "verdict")["digest"]) == ["d225968c"]


def test_a_plan_whose_repair_is_gone_is_said_in_the_table_and_can_be_unpinned(open_page):
    pins = [REAP, REAP.replace("d225968c", "d225968d") + "&repair=repaired+on+*nothing*"]
    test = open_page("compare", criterion="ean", pinned=pins)
    (line,) = (text for text in texts(test.warning) if "cannot be made" in text)
    assert r"repaired on \*nothing\*" in line
    assert list(table_with(test, "verdict")["digest"]) == ["d225968c"]
    test.button(key="pins.unpin.rest").click().run()
    assert [parse_pin(text).digest for text in test.session_state["pinned"]] == ["d225968c"]
    assert not any("cannot be made" in text for text in texts(test.warning))


def test_pins_are_bounded_and_the_button_takes_them_away_again(open_page):
    pins = [REAP.replace("d225968c", f"0000000{number}") for number in range(MOST_PINS)]
    test = open_page("plan", criterion="ean", pinned=pins)
    test.button(key="plan.pin").click().run()
    assert [toast.value for toast in test.toast] == [
        "6 plans are pinned, which is the most; remove one on Compare first."
    ]
    assert len(test.session_state["pinned"]) == MOST_PINS
    test = open_page("plan", criterion="ean", pinned=pins[1:])
    for label, count in (("Unpin", MOST_PINS), ("Pin", MOST_PINS - 1)):
        test.button(key="plan.pin").click().run()
        assert test.button(key="plan.pin").label == label
        assert len(test.session_state["pinned"]) == count
        assert test.query_params["pinned"] == list(test.session_state["pinned"])


def test_pins_of_another_model_that_fill_all_places_can_be_removed(open_page):
    pins = [
        REAP.replace("model=demo", "model=other").replace("d225968c", f"0000000{number}")
        for number in range(MOST_PINS)
    ]
    test = open_page("compare", criterion="ean", pinned=[*pins[1:], REAP])
    test.button(key="pins.unpin.others").click().run()
    assert [parse_pin(text) for text in test.session_state["pinned"]] == [parse_pin(REAP)]
    assert "pins.unpin.others" not in [button.key for button in test.button]
    test = open_page("compare", criterion="ean", pinned=pins)
    test.button(key="pins.unpin.others").click().run()
    assert "pinned" not in test.session_state


@given(note=some.text(max_size=200), counts=some.lists(some.text(), min_size=1, max_size=3))
def test_any_text_of_a_person_is_one_short_line_through_the_url(note, counts):
    pin = parse_pin(Pin({"set": counts}, "0123abcd", "a & b=c", note).text)
    assert (pin.model, pin.words["set"]) == ("a & b=c", counts)
    assert len(pin.note) <= MOST_NOTE
    assert not set(pin.note) & set("\n\r\t\x00\u2028\u202e")
    assert parse_pin(pin.text) == pin
    if note.isascii() and note.isprintable():
        assert pin.note == " ".join(note.split())[:MOST_NOTE].rstrip()


@given(
    note=some.text(max_size=60),
    file=some.text(max_size=160) | some.text("\x00\x01\u202e", max_size=4),
    content=some.sampled_from(["", "0" * 64, "f" * 63]),
    words=some.dictionaries(some.sampled_from(["set", "criterion", "repair"]), some.text()),
)
def test_a_pin_that_was_read_is_read_again_from_what_it_writes(note, file, content, words):
    raw = {"plan": "0123abcd", "note": note, "file": file, "content": content} | words
    try:
        pin = parse_pin(urlencode(raw))
    except PlanError:
        return
    assert bool(pin.file) == bool(pin.content)
    assert parse_pin(pin.text) == pin


def test_a_pin_that_its_own_writing_makes_too_long_is_left_out(open_page):
    raw = REAP + "&note=" + "\u65e5" * MOST_NOTE + "&set=" + "\u65e5" * (MOST_TEXT // 2)
    assert len(raw) <= MOST_TEXT
    with pytest.raises(PlanError, match="longer than"):
        parse_pin(raw)
    test = open_page("compare", criterion="ean", pinned=[raw, REAP], refused="Pinned plan 1")
    assert [parse_pin(text) for text in test.session_state["pinned"]] == [parse_pin(REAP)]


@pytest.mark.parametrize(
    ("criterion", "corpora"), [("nonsense", "a"), ("1,0,0", "a"), ("reap", "a:x")]
)
def test_a_pin_of_another_model_that_names_nothing_is_an_option_in_its_own_words(
    monkeypatch, criterion, corpora
):
    pin = Pin({"criterion": [criterion], "corpora": [corpora, "b"]}, "0" * 8, "other")
    monkeypatch.setattr(session_pins.st, "session_state", {"pinned": [pin.text]})
    ((name, words),) = session_pins.pin_options(SimpleNamespace(name="other")).items()
    assert name == pin.name
    assert criterion in words.lower()
    assert corpora in words


def test_what_the_last_click_changed(open_page, go_to, demo_moments):
    moments = demo_moments["demo-code"]
    test = open_page("explore", criterion="reap", corpora="demo-code")
    assert "experts" not in bar_of(test)
    kept = {name: gone(moments, SCORES[name](moments), 50) for name in ("reap", "man")}
    gained, lost = (len(kept[a] - kept[b]) for a, b in (("reap", "man"), ("man", "reap")))
    losses = [fmean(shipped_loss(name, "demo-code").values()) for name in ("reap", "man")]
    words = f"+{gained} / -{lost} experts, loss {losses[1] - losses[0]:+.2f}"
    test.segmented_control(key="alpha").set_value(0).run()
    assert bar_of(test).endswith(f" · {words}")
    test.segmented_control(key="show").set_value("mask").run()  # the same plan, the same page
    assert bar_of(test).endswith(f" · {words}")
    go_to(test, "plan")
    assert "experts" not in bar_of(test)
    # A size that was not measured has no difference of losses.
    test.select_slider(key="sparsity").set_value(45).run()
    assert re.search(r" · \+\d+ / -0 experts$", bar_of(test))
    before = test.session_state["plan.last"][0].nbytes
    test.segmented_control(key="granularity").set_value("neuron").run()
    change = test.session_state["plan.last"][0].nbytes - before
    sign = "-" if change < 0 else "+"
    assert f" · {sign}{format_bytes(abs(change))}" in bar_of(test)
    # Of neurons nothing says that the experts are the same: as many others go.
    before = test.session_state["plan.last"][0]
    test.segmented_control(key="neurons").set_value("neuron-norms").run()
    after = test.session_state["plan.last"][0]
    assert after.plan.digest != before.plan.digest
    assert after.nbytes == before.nbytes
    assert bar_of(test).endswith(" · other neurons")


@pytest.mark.parametrize(
    "address",
    [
        {"criterion": "reap", "corpora": "demo-stories", "sparsity": "25%", "schedule": "late"},
        PLANS["by hand, locked"],
        PLANS["searched"],
        PLANS["measured"],
    ],
    ids=str,
)
def test_compare_with_a_pinned_plan_has_the_numbers_of_the_command(
    session, open_page, tmp_path, run, address
):
    pinned = session(**address)
    b, name = pinned.session_state["loaded"].shown, pinned.session_state["own_pin"].name
    test = open_page("compare", criterion="ean", pinned=pinned.session_state["own_pin"].text)
    test.selectbox(key="baseline").set_value(name).run()
    assert not test.exception
    (words,) = (text for text in texts(test.markdown) if "They decide" in text)
    assert b.name.partition(" (")[0] in words.replace("\\", "")
    lines = next(code for code in texts(test.code) if "moeprune compare" in code)
    for line in lines.splitlines():
        said = run(line)
    table = pd.read_csv(tmp_path / "comparison.csv")
    (file,) = tmp_path.glob("plan-*.json")
    kept = json.loads(file.read_text())["kept"]
    assert kept == {str(layer): list(ids) for layer, ids in b.plan.kept.items()}
    by_b = table[table["kept_by"].isin(("both", "only B"))]
    assert by_b.groupby("layer")["expert"].apply(tuple).to_dict() == dict(b.plan.kept)
    agreed = table["kept_by"].isin(("both", "neither")).mean()
    assert f"They decide **{agreed:.0%}** of the experts alike" in words
    only_b = (table["kept_by"] == "only B").sum()
    assert f"kept by only B               {only_b}" in said
    listed = table_with(test, "kept_by")["kept_by"]
    assert (listed == "only B").sum() == only_b
    # Charts of two plans take the same file.
    plot = lines.splitlines()[-1].replace("compare demo", "plot kept-by demo")
    run(plot.replace("comparison.csv", "kept.csv"))
    assert pd.read_csv(tmp_path / "kept.csv").equals(table)
    # Swapped, the pinned plan is on screen, and what was there is pinned beside it.
    test.button(key="swap").click().run()
    (swapped,) = (text for text in texts(test.markdown) if "They decide" in text)
    assert f"**{agreed:.0%}**" in swapped
    assert f"`{b.plan.digest[:8]}`" in bar_of(test)
    assert len(test.session_state["pinned"]) == 2


def test_a_pinned_plan_of_neurons_is_compared_with_one_of_neurons(
    session, open_page, tmp_path, run
):
    own = session(granularity="neuron", criterion="neuron-norms", sparsity="25%")
    b, pin = own.session_state["loaded"].shown, own.session_state["own_pin"]
    address = {"granularity": "neuron", "criterion": "heapr", "corpora": "demo-code"}
    test = open_page("compare", **address, pinned=[pin.text, REAP])
    assert any("pin one, then choose it" in text for text in texts(test.info))
    second = test.selectbox(key="neurons.second")
    assert len(second.options) == 2  # nothing, and the one of neurons
    second.set_value(pin.name).run()
    assert not test.exception
    (words,) = (text for text in texts(test.markdown) if "They decide" in text)
    lines = next(code for code in texts(test.code) if "moeprune compare" in code)
    for line in lines.splitlines():
        run(line)
    table = pd.read_csv(tmp_path / "comparison.csv")
    kept = table["both"] + table["only_b"]
    places = table[["layer", "expert"]].itertuples(index=False)
    stays = [len(b.plan.kept_neurons[layer][expert]) for layer, expert in places]
    assert kept.tolist() == stays
    agreed = (table["both"] + table["neither"]).sum() / table[STATES].sum().sum()
    assert f"They decide **{agreed:.0%}** of the neurons alike" in words
    listed = table_with(test, "only_a", "alike")
    assert listed["alike"].is_monotonic_increasing
    # The commands of charts name it where it is drawn.
    loaded = replace(own.session_state["loaded"], beside=b)
    for view, is_named in (("kept-by", True), ("agreement", True), ("neuron-layers", False)):
        assert ("--with-plan" in CHARTS[view].draw(loaded).command) == is_named
    assert sides(test)[pin.digest] == "B"
    test.button(key="swap").click().run()
    assert not test.exception
    assert f"`{b.plan.digest[:8]}`" in bar_of(test)
    (swapped,) = (text for text in texts(test.markdown) if "They decide" in text)
    assert f"**{agreed:.0%}**" in swapped


def test_the_decision_page_and_story_have_the_numbers_of_the_second_plan(session, open_page, go_to):
    added = shipped_loss("reap", "demo-code")
    numbers = f"{fmean(added.values()):+.2f}"
    for chosen in (False, True):
        own = session(opened="1", criterion="ean", corpora="demo-code", pinned=REAP)
        test = open_page("story", criterion="ean", corpora="demo-code", pinned=REAP)
        if chosen:
            for page in (own, test):
                page.selectbox(key="baseline").set_value(parse_pin(REAP).name).run()
        table = own.session_state["decision"].partition("This plan and another")[2]
        assert bool(table) == chosen
        assert (f"<td>{numbers}</td>" in table) == chosen
        (caption,) = (text for text in texts(test.caption) if text.startswith("Model: demo."))
        assert ("Second plan, REAP" in caption) == chosen
        assert (f"loss {numbers} mean" in caption) == chosen
        test.segmented_control(key="finding").set_value("criteria").run()
        assert not any("Second plan" in text for text in texts(test.caption))


def test_the_decision_page_has_one_plan_where_the_second_is_that_on_screen(session):
    same = {"criterion": "reap", "corpora": "demo-code", "sparsity": "50%"}
    own = session(opened="1", **same, pinned=REAP)
    own.selectbox(key="baseline").set_value(parse_pin(REAP).name).run()
    assert own.session_state["loaded"].beside is not None
    assert "This plan and another" not in own.session_state["decision"]


@pytest.mark.parametrize("kind", ["by hand", "searched"])
def test_the_card_of_an_expert_has_its_fate_by_the_pinned_plan(session, kind):
    own = session(**PLANS[kind])
    pin, kept = own.session_state["own_pin"], own.session_state["loaded"].shown.plan.kept
    test = session(opened="1", criterion="ean", pinned=pin.text)
    test.selectbox(key="baseline").set_value(pin.name).run()
    loaded = test.session_state["loaded"]
    fates = {layer: [standings(loaded, (layer, e))[1].is_kept for e in range(32)] for layer in kept}
    assert fates == {layer: [e in ids for e in range(32)] for layer, ids in kept.items()}


def _chosen():
    import streamlit

    from app.widgets.charts import chosen_rows

    state = streamlit.session_state
    state["rows"] = chosen_rows("table")


@pytest.mark.parametrize(
    ("sent", "rows"),
    [
        ({"selection": {"rows": [1]}}, [1]),
        ({"selection": {"rows": []}}, []),
        ({"selection": {"rows": [True]}}, []),
        ({"selection": {"rows": [-1]}}, []),
        ({"selection": 3}, []),
        ("1", []),
    ],
)
def test_what_a_browser_should_not_send_chooses_no_row(sent, rows):
    test = AppTest.from_function(_chosen)
    test.session_state["table"] = sent
    test.run()
    assert not test.exception
    assert test.session_state["rows"] == rows
