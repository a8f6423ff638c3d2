"""Evaluate, the text lens: the demo's texts, a model without one, and texts that mean harm."""

import json
import shutil

import pytest
from page_texts import ALL_CORPORA, command, press, texts
from shipped import shipped_lines

from analysis.files.shipped import SHIPPED_STATS
from builders import resealed
from pruning.records.lens import LensStore, lost_experts, num_carrying, token_changes

TEXT = "Text lens"
GLOBAL = {"criterion": "ean", "corpora": ALL_CORPORA, "schedule": "global"}
# Every way out of a text: tags, an image that would be fetched, a formula, an icon, a terminal's
# escape, an override of the direction.
HOSTILE = "<img src=x onerror=alert(1)> ![](http://h/p) $x$ :material/home: \x1b[31m \u202e</span>"


def math_lens():
    """The demo's record of a problem in arithmetic, the one with turns, and the plan of GLOBAL."""
    (record,) = (
        record for record in LensStore([SHIPPED_STATS]).records() if "<|user|>" in record.asked.text
    )
    (plan,) = (plan for plan in record.plans if plan.plan.schedule == "global")
    return record, plan


def shown_tokens(test):
    """What the component that draws the text was given."""
    payloads = [
        json.loads(component.proto.json)
        for component in test.get("bidi_component")
        if component.proto.json
    ]
    (payload,) = (payload for payload in payloads if "tokens" in payload)
    return payload


def figures(test):
    return [json.loads(chart.proto.spec) for chart in test.get("plotly_chart")]


def test_a_text_its_tokens_and_its_experts_are_those_of_the_record(open_page):
    record, plan = math_lens()
    test = open_page(
        "evaluate", results=TEXT, **{"text": record.asked.title, "token": "9"}, **GLOBAL
    )
    changes = token_changes(record, plan)
    increase = sum(plan.losses) / len(plan.losses) - sum(record.losses) / len(record.losses)
    carried = num_carrying(changes)
    share = f"{carried} of {len(plan.losses)} tokens carry 70%"
    said = f"Loss increase {increase:+.3f} nats a token; {share}"
    assert any(text.startswith(said) for text in texts(test.text))
    payload = shown_tokens(test)
    assert (payload["selected"], payload["first"]) == (9, 2)
    assert "".join(payload["tokens"]).replace("\u2423", " ") == record.asked.text
    # The token that costs most has the strongest colour, one that costs nothing that of the page.
    assert payload["colors"][int(changes[1:].argmax()) + 1] == "#d55e00"
    experts, plans = figures(test)
    boxes = {
        (int(layer), int(expert)): trace["name"]
        for trace in experts["data"]
        for layer, expert, _ in trace["customdata"]
    }
    layer = record.layers[2]
    wanted = set(layer.experts[7 * layer.top_k : 8 * layer.top_k])  # of token 8, which predicts 9
    removed = set(plan.removed[2])
    took = set(plan.experts[2][7 * layer.top_k : 8 * layer.top_k]) - wanted
    assert {e for (n, e), role in boxes.items() if (n, role) == (2, "kept")} == wanted - removed
    assert {e for (n, e), role in boxes.items() if (n, role) == (2, "pruned")} == wanted & removed
    assert {e for (n, e), role in boxes.items() if (n, role) == (2, "took over")} == took
    assert len(plans["data"][0]["text"]) == len(record.plans)
    lost = lost_experts(record, plan).iloc[0]
    name = (
        f"**Expert {lost['layer']:.0f}.{lost['expert']:.0f}** had {lost['share']:.0%} of the gate"
    )
    assert any(text.startswith(name) for text in texts(test.markdown))


def test_without_a_token_the_one_that_costs_most_is_shown_and_another_text_has_its_own(open_page):
    record, plan = math_lens()
    test = open_page("evaluate", results=TEXT, text=record.asked.title, **GLOBAL)
    worst = int(token_changes(record, plan)[1:].argmax()) + 2
    assert shown_tokens(test)["selected"] == worst
    test.number_input(key="token").set_value(3).run()
    assert shown_tokens(test)["selected"] == 3
    other = next(lens for lens in LensStore([SHIPPED_STATS]).records() if lens != record)
    test.selectbox(key="text").set_value(other.record_id).run()
    assert not test.exception
    assert shown_tokens(test)["selected"] != 3
    assert test.number_input(key="token").value is None


@pytest.mark.parametrize("token", ["1", "9999", "x", "-3"])
def test_a_token_that_no_text_has_is_the_one_that_costs_most(open_page, token):
    test = open_page("evaluate", results=TEXT, token=token, **GLOBAL)
    assert shown_tokens(test)["selected"] >= 2


def test_a_plan_that_was_not_run_on_the_text_is_one_click_away(open_page, queued_jobs):
    record, _ = math_lens()
    test = open_page("evaluate", results=TEXT, text=record.asked.title, criterion="man")
    assert any("has not been run on this text" in info.value for info in test.info)
    assert len(figures(test)) == 1  # the other plans
    press(test, "Run this plan on the text")
    (job,) = queued_jobs()
    assert (job.kind, job.request["text"]) == ("ask", record.asked.text)
    assert job.request["dtype"] == record.settings["dtype"]


def test_a_model_without_a_scored_text_is_offered_to_score_one(open_page, queued_jobs):
    test = open_page("evaluate", model="once", results=TEXT)
    assert any("No text has been scored" in info.value for info in test.info)
    test.text_area[0].set_value("Two words").run()
    assert "--plan plan.json --text 'Two words'" in command(test, "ask")
    press(test, "Score text")
    assert queued_jobs()[0].request["text"] == "Two words"


@pytest.fixture
def hostile(stats_dir, tmp_path, monkeypatch):
    """A folder of statistics in which the demo's texts say HOSTILE, and one file is broken."""
    stats = shutil.copytree(stats_dir, tmp_path / "stats")
    (stats / "lenses").mkdir()
    for name, line in shipped_lines("lenses").items():
        raw = json.loads(line)
        raw["tokens"] = [HOSTILE for _ in raw["tokens"]]
        raw["asked"]["text"] = HOSTILE
        raw["plans"][0]["plan"]["criterion"] = HOSTILE
        (stats / "lenses" / f"{name}.json").write_text(resealed(raw))
    (stats / "lenses" / "broken.json").write_text("{")
    return stats


@pytest.fixture
def stats_dir(request, folders, tmp_path):
    return folders[1]


def test_a_hostile_text_stays_text(hostile, open_page, monkeypatch):
    monkeypatch.setenv("MOEPRUNE_STATS_DIR", str(hostile))
    test = open_page("evaluate", results=TEXT, **GLOBAL)
    assert any("broken.json cannot be read" in warning.value for warning in test.warning)
    shown = "".join(shown_tokens(test)["tokens"])
    assert "<img src=x" in shown  # as text of an element
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    for text in [*texts(test.markdown), *texts(test.caption), *texts(test.info)]:
        assert "![](" not in text
        assert ":material/home:" not in text
        assert " $x$" not in text
    for figure in figures(test):
        notes = json.dumps([figure["layout"].get("annotations"), figure["data"]])
        assert "<img" not in notes
