"""Plan: every schedule, edits held against every rule, files in and out, one plan on two pages."""

import json
import re
from dataclasses import replace
from statistics import fmean

import pytest
import yaml
from page_texts import (
    ALL_CORPORA,
    by_hand,
    command,
    counts_on,
    decoded,
    loaded_on,
    recipe_on,
    table_with,
    texts,
    unfolded,
    upload,
)
from shipped import shipped_results

from analysis.drain import drain
from analysis.errors import PlanError
from analysis.model.opening import load_model_index
from app.charts.listing import CHARTS
from app.session.data import settings
from app.session.plan_state import OnScreen, edited_cells
from pruning.plan.budget import sparsity_budget
from pruning.plan.constraints import Constraints
from pruning.plan.layer_words import counts_words, ranges
from pruning.plan.plan import keep_all
from pruning.plan.plan_file import plan_from_json
from pruning.plan.units import expert_units
from pruning.planning.choice import (
    SCHEDULE_NAMES,
    counts_example,
    counts_in,
    counts_text,
    schedule_label,
)
from pruning.requests.evaluation import SensitivityRequest
from pruning.requests.recipe_file import recipe_from_yaml
from pruning.schedules import get_schedule
from pruning.tasks.sensitivity import sensitivity_run

EVEN = "16.16.16.16.16.16"
# Schedules that ship with measurements of the plan that opens.
SHIPPED = {"Uniform", "Global", "Global, rescaled", "Frequency", "Measured"}
SHIPPED |= {"Early", "Middle", "Late"}
SIDES = "fewest"  # a column of the table of all schedules alone
SCHEDULES = [name for name in SCHEDULE_NAMES if name not in ("search", "hand")]


def drawn_counts(test):
    """Schedule -> layer -> experts kept, as the chart of all schedules says it."""
    figures = [json.loads(chart.proto.spec) for chart in test.get("plotly_chart")]
    (cells,) = (
        trace
        for figure in figures
        for trace in figure["data"]
        if trace["type"] == "heatmap" and "kept" in trace["hovertemplate"]
    )
    counts = decoded(cells["customdata"])
    layers = [int(layer) for layer in cells["x"]]
    return {
        name: dict(zip(layers, row, strict=True))
        for name, row in zip(cells["y"], counts, strict=True)
    }


@pytest.mark.parametrize("percent", [0, 85])
def test_every_schedule_spends_the_same_budget(open_page, percent):
    test = open_page("plan", sparsity=f"{percent}%")
    totals = {}
    for name in SCHEDULES:
        test.segmented_control(key="schedule").set_value(name).run()
        assert not test.exception, name
        assert texts(test.error) == []
        totals[name] = sum(counts_on(test).values())
        # The chart of all schedules has the counts of this very plan.
        assert counts_on(test) == drawn_counts(test)[schedule_label(name)]
        assert f"--schedule {name}" in command(test, "plan") or name == "uniform"
    # Six layers of 32, each of which loses the whole number below its share.
    assert set(totals.values()) == {6 * (32 - 32 * percent // 100)}
    beside = table_with(test, SIDES)
    assert len(beside) == len(SCHEDULES)
    assert (beside["kept"] == totals["uniform"]).all()


@pytest.mark.parametrize(("multiple", "protect"), [(1, "1-2"), (4, "0")])
def test_constraints_hold_in_every_schedule(open_page, multiple, protect):
    test = open_page("plan", multiple_of=str(multiple), protect=protect, schedule="global")
    assert texts(test.error) == []
    drawn = drawn_counts(test)
    assert counts_on(test) == drawn["Global"]
    for name in SCHEDULES:  # the chart has searches besides, which were asked for no constraints
        kept = drawn[schedule_label(name)]
        assert sum(kept.values()) == 96
        for layer, count in kept.items():
            protected = layer in {"0": (0,), "1-2": (1, 2)}[protect]
            assert count == 32 if protected else count % multiple == 0
            assert count >= 4


@pytest.mark.parametrize(
    ("counts", "says", "ways"),
    [
        # By hand: each to 4, then 72 more, 12 each; three to 4, then 6 too many, 2 of each other;
        # 6 too many, one of each; 32 at most, then 16 too many, 2 of each and 4 of the first.
        ("0.0.0.0.0.0", "layers 0-5 cannot keep 0", {"counts": EVEN}),
        ("20.20.20.20.20.20", "keep 120 of 192", {"counts": EVEN, "sparsity": 40}),
        ("30.30.30.2.2.2", "layers 3-5 cannot keep 2", {"counts": "28.28.28.4.4.4"}),
        ("20.20.20.12.12.18", "keep 102 of 192", {"counts": "19.19.19.11.11.17"}),
        ("99.16.16.16.16.16", "layer 0 cannot keep 99", {"counts": "29.13.13.13.14.14"}),
    ],
)
def test_counts_that_do_not_fit_are_refused_with_the_ways_out(open_page, counts, says, ways):
    test = open_page("plan", set=by_hand(counts))
    (message,) = texts(test.info)
    assert says in message
    # Nothing is planned, and the field says what it said.
    assert test.text_input(key="counts").value == counts
    assert "export.start" not in [button.key for button in test.button]
    offered = [button.key for button in test.button if button.key.startswith("plan.to.")]
    assert offered == [f"plan.to.{way}" for way in ways]
    way, value = list(ways.items())[-1]
    test.button(key=f"plan.to.{way}").click().run()
    assert texts(test.info) == []
    state = {"counts": counts, "sparsity": 50} | {way: value}
    assert test.text_input(key="counts").value == state["counts"]
    assert test.select_slider(key="sparsity").value == state["sparsity"]
    assert counts_text(counts_on(test)) == state["counts"]


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ({"protect": "0-5"}, "at most 0 (0%) can go"),
        ({"locked": "7"}, "Layer 7 cannot be locked"),
    ],
    ids=str,
)
def test_what_cannot_be_met_is_said_in_one_line(open_page, address, says):
    (message,) = texts(open_page("plan", **address).error)
    assert says in message
    assert "\n" not in message.strip()


@pytest.mark.parametrize(
    ("control", "text", "says"),
    [
        ("protect", "seven", "'seven' names no layers"),
        ("counts", "1.2.3", "not one number for each of 6"),
        ("counts", "<b>x</b>", "not one number for each of 6"),
        ("locked", "x", "'x' names no layers"),
    ],
)
def test_a_text_that_is_no_plan_is_refused_and_left_to_be_mended(open_page, control, text, says):
    test = open_page("plan", sparsity="25%")
    test.text_input(key=control).set_value(text).run()
    (message,) = texts(test.error)
    assert says in message.replace("\\", "")
    assert "\n" not in message.strip()
    assert test.text_input(key=control).value == text
    # The address is still that of a plan.
    assert open_page("plan", **dict(test.query_params)).select_slider(key="sparsity").value == 25
    test.text_input(key=control).set_value("").run()
    assert texts(test.error) == []


def test_counts_by_hand_need_not_be_even(open_page):
    # 30% of 192 are 57, so 52 go in steps of 4; equal layers would lose 8 each, 48.
    counts = by_hand("24.24.24.24.24.20")
    test = open_page("plan", set=counts, sparsity="30%", multiple_of="4")
    assert texts(test.error) == texts(test.warning) == []
    assert sum(counts_on(test).values()) == 192 - 52


def test_counts_by_hand_begin_where_the_schedule_was_and_stay(open_page):
    test = open_page("plan", schedule="early")
    before = counts_on(test)
    test.segmented_control(key="schedule").set_value("hand").run()
    assert counts_on(test) == before
    assert test.text_input(key="counts").value == counts_text(before)
    test.segmented_control(key="schedule").set_value("late").run()
    counts = "20.20.20.12.12.12"
    test.text_input(key="counts").set_value(counts).run()
    assert test.segmented_control(key="schedule").value == "hand"
    assert counts_text(counts_on(test)) == counts
    assert "--set 0-2=20 --set 3-5=12" in command(test, "plan")
    assert yaml.safe_load(recipe_on(test))["limits"]["set"]["5"] == 12
    # Another sparsity keeps the counts, and asks.
    test.select_slider(key="sparsity").set_value(75).run()
    assert "keep 96 of 192 experts, the sparsity keeps 48" in texts(test.info)[0]
    assert test.text_input(key="counts").value == counts
    test.select_slider(key="sparsity").set_value(50).run()
    assert counts_text(counts_on(test)) == counts


def on_screen(locked=(), **constraints):
    layers = load_model_index("demo").layers
    units = expert_units(layers, Constraints(**constraints))
    budget = sparsity_budget(expert_units(layers), "50%")
    return OnScreen("id", units, budget, dict.fromkeys(range(6), 16), frozenset(locked))


def test_a_cell_moves_its_layer_and_the_unlocked_others_give():
    # Five more for layer 2; each of the five others gives one.
    edit = edited_cells(on_screen(), {2: {"keeps": 21}})
    assert list(edit.kept.values()) == [15, 15, 21, 15, 15, 15]
    # Eight more, from the four that are not locked.
    edit = edited_cells(on_screen(locked=[0]), {"2": {"keeps": 24}})
    assert list(edit.kept.values()) == [16, 14, 24, 14, 14, 14]
    edit = edited_cells(on_screen(locked=[0]), {0: {"locked": False}, 3: {"locked": True}})
    assert (set(edit.kept.values()), edit.locked) == ({16}, {3})


@pytest.mark.parametrize(
    ("keeps", "says"),
    [
        (3, "Layer 2 cannot keep 3 of 32 experts here; nearest: 4"),
        (33, "Layer 2 cannot keep 33 of 32 experts here; nearest: 32"),
        (-1, "Layer 2 cannot keep -1"),
    ],
)
def test_a_cell_that_breaks_a_rule_is_refused(keeps, says):
    with pytest.raises(PlanError, match=says):
        edited_cells(on_screen(), {2: {"keeps": keeps}})


def test_a_cell_that_the_others_cannot_pay_for_is_refused():
    # All others but layer 5 are locked, and that one can give twelve at most.
    with pytest.raises(PlanError):
        edited_cells(on_screen(locked=[0, 1, 3, 4]), {2: {"keeps": 29}})
    edit = edited_cells(on_screen(locked=[0, 1, 3, 4]), {2: {"keeps": 28}})
    assert edit.kept[5] == 4


def test_a_weight_criterion_has_every_schedule(open_page):
    test = open_page("plan", criterion="aimer")
    for schedule in set(SCHEDULES) - {"measured"}:  # its sensitivity does not ship
        test.segmented_control(key="schedule").set_value(schedule).run()
        assert texts(test.error) == []
        asked = "--calibrated-on demo-code" in command(test, "plan")
        assert asked == get_schedule(schedule).reads_tokens


def test_without_a_calibration_frequency_says_what_is_missing(open_page):
    test = open_page("plan", "weighed", criterion="aimer")
    assert "frequency" not in set(table_with(test, SIDES)["schedule"])
    test.segmented_control(key="schedule").set_value("frequency").run()
    assert "no calibration yet" in texts(test.info)[0]


def test_measured_names_the_command_until_something_is_measured(open_page, tmp_path, monkeypatch):
    monkeypatch.setenv("MOEPRUNE_STATS_DIR", str(tmp_path))
    settings.clear()
    test = open_page("plan", corpora="demo-stories", schedule="measured")
    (said,) = [text for text in texts(test.info) if "was not measured" in text]
    assert "moeprune sensitivity demo --criterion reap" in said
    asked = {"criterion": "reap", "calibrated_on": ("demo-stories",), "corpora": ("demo-math",)}
    few = {"samples": 2, "levels": 2, "stats_dir": tmp_path}
    drain(sensitivity_run(SensitivityRequest(model="demo", **asked, **few)))
    test = open_page("plan", corpora="demo-stories", schedule="measured")
    assert texts(test.error) == []
    assert sum(counts_on(test).values()) == 96
    assert counts_on(test) == drawn_counts(test)["Measured"]
    assert "--schedule measured" in command(test, "plan")


def test_the_plan_goes_to_export_as_it_is(open_page, go_to):
    test = open_page("plan", set=by_hand("20.20.20.12.12.12"))
    line = command(test, "plan")
    go_to(test, "export")
    assert test.code[0].value.splitlines()[0] == line
    assert {metric.label: metric.value for metric in test.metric}["Per layer"] == "12 to 20"
    kept = table_with(unfolded(test, "export.kept"), "kept")
    assert [len(ids.split(", ")) for ids in kept["kept"]] == [20, 20, 20, 12, 12, 12]
    assert any("check your serving engine" in text for text in texts(test.markdown))


def plan_of_demo(**changes):
    model = load_model_index("demo")
    raw = keep_all(model).to_dict()
    raw["kept"] = {str(layer): list(range(4 + 2 * layer)) for layer in range(6)}
    return {**raw, **changes}


def test_an_imported_plan_is_shown_and_exported_until_a_control_is_touched(open_page, go_to):
    test = upload(open_page("plan"), "mine.json", json.dumps(plan_of_demo()))
    assert list(counts_on(test).values()) == [4, 6, 8, 10, 12, 14]
    assert any("mine.json" in text for text in texts(test.markdown))
    # 54 of 192 stay: 138 go, which is no sparsity of the slider.
    assert test.select_slider(key="sparsity").value == 50
    assert "moeprune plans show mine.json --model demo" in texts(test.code)
    go_to(test, "export")
    assert "--plan mine.json" in test.code[0].value
    kept = table_with(unfolded(test, "export.kept"), "kept")
    assert kept["kept"].tolist()[0] == "0, 1, 2, 3"
    test.segmented_control(key="schedule").set_value("late").run()
    assert "--schedule late" in test.code[0].value


def test_an_address_of_a_file_says_that_no_link_carries_it(open_page, go_to):
    test = upload(open_page("plan"), "mine.json", json.dumps(plan_of_demo()))
    assert test.query_params["file"] == "mine.json"
    again = open_page("evaluate", file="mine.json")
    (said,) = texts(again.warning)
    assert "mine.json, which links do not carry" in said
    go_to(again, "export")
    assert texts(again.warning) == [said]
    again.segmented_control(key="schedule").set_value("late").run()
    assert said not in texts(again.warning)
    # Who leaves the file meant it.
    test.button(key="plan.forget").click().run()
    assert texts(test.warning) == []
    assert "file" not in test.query_params


def test_files_that_do_not_fit_are_refused_in_one_message(open_page):
    test = open_page("plan")
    other = {"name": "x", "identity": "0" * 64}
    refused = [
        ("a.json", plan_of_demo(model=other), "is for x (identity 00000000), not for demo"),
        ("e.json", "{", "cannot be read"),
        ("f.csv", "layer,kept\n0,99\n", "gives layer 0 the number '99'"),
        ("g.csv", "layer,kept\n0,31\n", "not a sparsity that this page offers"),
        ("h.yaml", "model: x\ncriterion: random\nbudget: {sparsity: 50%}\n", "recipe is for x"),
        ("i.yaml", "model: demo\ncriterion: rep\ntokens: many\n", "2 problems"),
    ]
    for name, content, says in refused:
        upload(test, name, content if isinstance(content, str) else json.dumps(content))
        (message,) = texts(test.error)
        assert says in message
    assert set(counts_on(test).values()) == {16}
    # Said once.
    assert texts(test.run().error) == []


def test_each_problem_of_a_file_has_its_own_line_whatever_the_file_is_called(open_page):
    name = "![x](http:).yaml"  # an image, in Markdown
    test = upload(open_page("plan"), name, "model: demo\ncriterion: rep\ntokens: many\n")
    (message,) = texts(test.error)
    first, *problems = message.split("  \n")  # a line break of Markdown
    assert first.endswith("has 2 problems:")
    assert [problem.split(":")[0] for problem in problems] == ["line 2", "line 3"]
    assert "![x]" not in message


def test_a_schedule_from_a_file_becomes_counts_by_hand(open_page):
    rows = "".join(f"{layer},{kept}\n" for layer, kept in enumerate((28, 26, 24, 24, 22, 20)))
    test = upload(open_page("plan"), "counts.csv", f"layer,kept\n{rows}")
    # 144 of 192: a quarter goes, and the slider says so.
    assert test.select_slider(key="sparsity").value == 25
    assert list(counts_on(test).values()) == [28, 26, 24, 24, 22, 20]


ADDRESSES = [
    {"set": by_hand("20.20.20.12.12.12"), "gate": "renormalized"},
    {"criterion": "aimer", "schedule": "late", "multiple_of": "4", "protect": "0,5"},
    {"criterion": "0,2,1", "schedule": "frequency", "sparsity": "25%", "corpora": "demo-math"},
    {"shrink": "40%", "multiple_of": "4"},
]


@pytest.mark.parametrize("address", ADDRESSES, ids=str)
def test_the_recipe_on_screen_sets_the_same_controls_elsewhere(open_page, address):
    test = open_page("plan", **address)
    text = recipe_on(test)
    recipe_from_yaml(text)
    other = upload(open_page("plan"), "recipe.yaml", text)
    assert texts(other.error) == []
    assert command(other, "plan") == command(test, "plan")
    assert counts_on(other) == counts_on(test)


def test_the_recipe_on_screen_makes_the_same_plan_from_the_cache(open_page, tmp_path, run):
    test = open_page("plan", set=by_hand("20.20.20.12.12.12"), corpora="demo-math")
    (tmp_path / "recipe.yaml").write_text(recipe_on(test))
    # The recipe names the calibration that is there, so nothing is run again.
    assert "is in the cache, skipped" in run("moeprune prune recipe.yaml")
    run(command(test, "plan"))
    assert (tmp_path / "recipe.plan.json").read_text() == (tmp_path / "plan.json").read_text()


def test_a_share_of_the_bytes_is_that_of_the_command(open_page, tmp_path, run):
    recipe = "model: demo\ncorpora: [demo-math]\ncriterion: reap\nbudget: {shrink: 40%}\n"
    test = upload(open_page("plan"), "recipe.yaml", recipe)
    assert texts(test.error) == []
    assert test.select_slider(key="sparsity").value == 40
    run("moeprune plan demo --criterion reap --calibrated-on demo-math --shrink 40%")
    by_command = plan_from_json((tmp_path / "plan.json").read_text())
    assert dict(loaded_on(test).shown.plan.kept) == dict(by_command.kept)
    # 16 of 32 leave 6.3 of 10.3 MiB, 39% less: too much.
    test.selectbox(key="multiple_of").set_value(8).run()
    assert set(counts_on(test).values()) == {8}
    test.select_slider(key="sparsity").set_value(70).run()
    assert "demo cannot shrink by 70%: 144 of 192 experts can go" in texts(test.error)[0]
    # Of the other unit, 75% of each layer's 32 experts.
    test.segmented_control(key="budget").set_value("sparsity").run()
    test.select_slider(key="sparsity").set_value(75).run()
    assert set(counts_on(test).values()) == {8}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("limits: {set: {0: 20}}", "no control for set: 0=20"),
        ("limits: {multiple_of: 3}", "multiple_of: 3"),
    ],
)
def test_a_recipe_that_the_page_cannot_show_is_refused_whole(open_page, line, says):
    text = f"model: demo\ncorpora: [demo-math]\ncriterion: man\nbudget: {{sparsity: 25%}}\n{line}\n"
    test = upload(open_page("plan"), "recipe.yaml", text)
    (message,) = texts(test.error)
    assert says in message
    assert "moeprune prune" in message
    assert test.pills[0].value == "demo-code"
    assert test.select_slider(key="sparsity").value == 50


def test_an_imported_plan_moves_the_sparsity_where_it_can(open_page):
    kept = {str(layer): list(range(4 + 2 * layer)) for layer in range(5)} | {"5": list(range(8))}
    test = upload(open_page("plan"), "mine.json", json.dumps(plan_of_demo(kept=kept)))
    # 4 + 6 + 8 + 10 + 12 + 8 = 48 of 192.
    assert test.select_slider(key="sparsity").value == 75


def test_words_of_the_address_and_the_command_line():
    assert ranges([5, 0, 6, 7, 2]) == "0,2,5-7"
    assert counts_words({0: 16, 1: 16, 2: 12, 5: 16}) == ["0-1,5=16", "2=12"]
    layers = load_model_index("demo").layers
    kept = {0: 16, 1: 4, 2: 32, 3: 8, 4: 9, 5: 10}
    assert counts_in(counts_text(kept), layers) == kept
    with pytest.raises(PlanError, match=rf"each of 6 sparse layers, such as {re.escape(EVEN)}\.$"):
        counts_in("16.16", layers)
    assert counts_example(layers * 8) == "16.16. ... .16 with 48 numbers"


def test_schedules_that_were_measured_say_their_loss(open_page):
    test = open_page("plan", criterion="ean", corpora=ALL_CORPORA)
    found = {}
    for raw in shipped_results("demo-ean-"):
        if raw["plan"].get("repair") or raw["plan"].get("bits"):
            continue
        if raw["plan"]["sparsity"] == "50%" and len(raw["plan"]["corpora"]) == 3:
            added = raw["metrics"]["nll"]["mean"] - raw["full"]["nll"]["mean"]
            found.setdefault(raw["plan"]["schedule"], []).append(added)
    table = table_with(test, SIDES).set_index("schedule")
    assert {"Uniform", "Global"} < set(table.index)
    for schedule in ("uniform", "global"):
        row = table.loc[schedule.capitalize()]
        assert row["mean"] == pytest.approx(fmean(found[schedule]))
        assert row["worst"] == pytest.approx(max(found[schedule]))
    assert set(table.index[table["mean"].notna()]) == SHIPPED
    other = table_with(open_page("plan", criterion="man", corpora=ALL_CORPORA), SIDES)
    assert other["mean"].isna().any()


def test_a_chart_at_the_end_says_what_it_lacks_but_not_why_there_is_no_plan(open_page, monkeypatch):
    toy = replace(CHARTS["sizes"], name="toy", title="A toy", page="plan", at_end=True)
    needy = replace(CHARTS["loss-by-tokens"], name="needy", title="B", page="plan", at_end=True)
    monkeypatch.setitem(CHARTS, toy.name, toy)
    monkeypatch.setitem(CHARTS, needy.name, needy)
    test = open_page("plan", criterion="reap", corpora="demo-code")
    assert {"**A toy**", "**B**"} <= set(texts(test.markdown))
    assert any("moeprune subsets" in text for text in texts(open_page("plan", "once").info))
    test = open_page("plan", "bare")
    assert {"**A toy**", "**B**"}.isdisjoint(texts(test.markdown))
