"""Presets, the pair, the URL, and what stays when the page or the model changes."""

import shutil

import pytest
from page_texts import ALL_CORPORA, loaded_on, texts
from permanent_names import EXPONENTS

from analysis.drain import drain
from app.session.data import settings
from builders import ROWS
from layouts.small_packed import small_packed
from pruning.requests.calibration import CalibrateRequest
from pruning.spec.base import flat_fields
from pruning.spec.spec import PlanSpec
from pruning.tasks.calibration import calibrate_run


def chosen(test):
    name, keys = test.selectbox(key="criterion").value, ("b", "alpha", "beta")
    shown = {control.key for control in test.segmented_control}
    toggles = tuple(test.segmented_control(key=key).value for key in keys if key in shown)
    return name, toggles


def criterion_shown(test):
    (line,) = (text.value for text in test.markdown if "arrow_right_alt" in text.value)
    return line.split("**")[1].split(",")[0]


def test_criteria_set_the_toggles_of_their_family_which_others_have_not(open_page):
    test = open_page("explore")
    for name in ("mone", "squared-gate-energy", "man", "aimer"):
        test.selectbox(key="criterion").set_value(name).run()
        assert not test.exception
        assert chosen(test) == (name, EXPONENTS.get(name, ()))
        assert f"--criterion {name} " in test.code[0].value
    test.selectbox(key="criterion").set_value("man").run()
    test.segmented_control(key="beta").set_value(2).run()
    assert chosen(test) == ("msan", (1, 0, 2))
    test.selectbox(key="criterion").set_value("aimer").run()
    test.selectbox(key="baseline").set_value("magnitude").run()
    assert criterion_shown(test) == "AIMER"
    assert any(" experts that Magnitude drops" in text.value for text in test.markdown)
    test.selectbox(key="model").set_value("once").run()
    test.selectbox(key="criterion").set_value("heapr").run()
    assert "HEAPr needs more than the statistics of rows" in test.info[0].value
    assert "--group gradient" in test.info[0].value


ADDRESS = {
    "corpora": "demo-math",
    "sparsity": "25%",
    "criterion": "squared-gate-energy",
    "gate": "renormalized",
    "baseline": "AIMER",
    "order": "By expert",
    "show": "Kept",
}


def test_the_address_selects_the_state_of_the_first_view(open_page):
    test = open_page("explore", **ADDRESS)
    assert chosen(test) == ("squared-gate-energy", (0, 2, 2))
    # Content, too, and not the controls alone.
    assert criterion_shown(test) == "Squared-gate energy"
    words = test.code[0].value.split()
    del words[words.index("--stats-dir") : words.index("--stats-dir") + 2]
    assert " ".join(words) == (
        "moeprune plan demo --criterion squared-gate-energy --calibrated-on demo-math "
        "--gate renormalized --sparsity 25% -o plan.json"
    )
    assert any("that AIMER drops" in text.value for text in test.markdown)
    assert test.segmented_control(key="show").value == "mask"


@pytest.mark.parametrize(
    ("address", "refused"),
    [
        ({"criterion": "bogus", "baseline": "bogus"}, "'bogus'"),
        ({"criterion": "7,0,0"}, "The exponents 7,0,0 are out of range"),
        ({"criterion": "1,0,0"}, "the same score"),
        ({"criterion": "<script>alert(1)</script>"}, "script"),
        ({"gate": "strong"}, "gate: choose 'applied' or 'renormalized'"),
        ({"sparsity": "51%"}, "no control for sparsity: 51%"),
        ({"sparsity": "nan", "model": ""}, "'nan'"),
        ({"sparsity": "50%", "shrink": "25%"}, "give one budget: shrink, sparsity"),
        ({"corpora": ""}, "corpora"),
        ({"corpora": "/etc/passwd"}, "not been calibrated on '/etc/passwd'"),
        ({"corpora": "demo-math:-1"}, "must be greater than 0"),
        ({"schedule": "file"}, "schedule: file"),
        (
            {"schedule_file": "/etc/passwd"},
            "schedule: file and schedule_file: FILE belong together",
        ),
        ({"runs": "demo"}, "no control for runs"),
        ({"set": "0=20"}, "no control for set: 0=20"),
        ({"floor": "3"}, "no control for floor"),
        ({"floor": "2"}, "no control for floor: 2"),
        ({"keep_super": "perhaps"}, "keep_super: "),
        ({"multiple_of": "3"}, "no control for multiple_of: 3"),
        ({"top_k": "4"}, "no control for top_k: 4"),
        ({"multiple_of": "many"}, "multiple_of: give a whole number"),
        ({"granularity": "atom"}, "granularity: choose 'expert' or 'neuron'"),
        ({"model": "../demo", "show": "all", "order": "1e9"}, ""),
        ({"corpora.view": "none", "preset": "aimer", "nothing": "x"}, ""),
    ],
    ids=str,
)
def test_bad_values_in_the_address_fall_back(open_page, address, refused):
    test = open_page("explore", refused=refused, **address)
    assert not test.exception
    assert not test.error
    assert test.selectbox(key="model").value == "demo"
    # Without its criterion a link opens on the plan of a bare one.
    criterion, exponents, *corpora = OPENING if "criterion" in address else REAP
    assert chosen(test) == (criterion, exponents)
    words = " ".join(f"--calibrated-on {name}" for name in corpora)
    assert f"--criterion {criterion} {words} " in test.code[0].value
    assert "--sparsity 50% " in test.code[0].value


REAP = ("reap", (1, 1, 1), "demo-code")
OPENING = ("ean", (0, 0, 1), "demo-code", "demo-math", "demo-stories")


@pytest.mark.parametrize("name", flat_fields(PlanSpec))
def test_a_field_of_a_link_that_cannot_be_is_named_and_the_rest_is_applied(open_page, name):
    good = {"sparsity": "25%"} if name != "sparsity" else {"criterion": "aimer"}
    test = open_page("export", refused=name, **{name: "zzz"}, **good)
    assert test.select_slider(key="sparsity").value == (25 if name != "sparsity" else 50)
    criterion = {"sparsity": "aimer", "criterion": "ean"}.get(name, "reap")
    assert loaded_on(test).choices.spec.ranking.criterion == criterion


@pytest.mark.parametrize(("name", "known"), [("searched", "demo-ean"), ("bits", "mxfp4")])
def test_what_stands_beside_the_spec_is_named_too(open_page, name, known):
    test = open_page("plan", refused="'zzz' here, but ", **{name: "zzz"}, sparsity="25%")
    assert any(known in text for text in texts(test.warning))
    assert test.select_slider(key="sparsity").value == 25


def test_a_value_is_named_where_a_model_has_none_to_offer(open_page, tmp_path, monkeypatch):
    # Of 2.3 bits a weight with its scales, below which nothing is simulated.
    small_packed(tmp_path / "models" / "packed", "awq", bits=2)
    monkeypatch.setenv("MOEPRUNE_MODELS_ROOT", str(tmp_path / "models"))
    open_page("plan", model="packed", refused="There is no simulated bits '4' here.", bits="4")
    open_page("plan", model="packed", refused="There is no search 'x' here.", searched="x")


# Page, what else its URL says, and parameters of its views and lists with a value of each.
VIEWS = [
    ("start", {}, {"model": "demo, ", "repair": "as pruned"}),
    (
        "explore",
        {},
        {"baseline": "REAP", "show": "Saliency", "order": "By rank", "tab": "Corpora"},
    ),
    ("explore", {"criterion": "ean", "corpora": ALL_CORPORA}, {"variants": "By loss"}),
    ("explore", {"granularity": "neuron", "inside": "Same bytes"}, {"bytes.removed": "25%"}),
    ("explore", {"granularity": "neuron"}, {"inside": "Same bytes"}),
    ("compare", {}, {"b_text": "demo-math", "b_gate": "renormalized"}),
    (
        "evaluate",
        {},
        {
            **{"results": "Text lens", "measure": "ESAP", "held_out": "demo-math"},
            **{"against": "Memory", "removed": "50%"},
        },
    ),
    ("evaluate", {"results": "Ask both models"}, {"question": "Solve for x"}),
    ("evaluate", {"results": "Text lens"}, {"text": "<|user|>", "token": "2 to "}),
    ("evaluate", {"results": "Hidden states"}, {"hidden_text": "demo-"}),
    ("evaluate", {"results": "The papers"}, {"published": "Unified criteria"}),
    ("evaluate", {"results": "The papers"}, {"weight.coding": "0.5"}),
    ("story", {}, {"finding": "Criteria disagree"}),
]


@pytest.mark.parametrize(("page", "address", "known"), VIEWS, ids=str)
def test_a_view_of_a_link_that_is_not_there_is_named_with_those_that_are(
    open_page, page, address, known
):
    test = open_page(page, bare=False, **address, **dict.fromkeys(known, "zzz"))
    said = [text for text in texts(test.warning) if "'zzz' of the URL is not here" in text]
    assert len(said) == len(known)
    assert not [text for text in said if "\n" in text]
    for value in known.values():
        assert any(value in text.replace("\\", "") for text in said), value


def test_the_address_says_what_differs_from_a_new_session(open_page):
    def address(test):
        return {
            name: query_param for name, query_param in test.query_params.items() if name != "model"
        }

    test = open_page("explore")
    assert address(test) == {"opened": "1"}
    test.segmented_control(key="alpha").set_value(0).run()
    assert address(test) == {"criterion": "man"}
    test.segmented_control(key="beta").set_value(0).run()
    assert address(test) == {"criterion": ""}  # (1, 0, 0)
    test.selectbox(key="criterion").set_value("aimer").run()
    test.pills(key="corpus").set_value("demo-math").run()
    # Charts of corpora read it, whatever ranks.
    assert address(test) == {"criterion": "aimer", "corpora": "demo-math"}
    test.pills(key="corpus").set_value("(blend)").run()
    assert address(test)["corpora"] == ALL_CORPORA
    test.slider(key="share.demo-math").set_value(0).run()
    assert address(test)["corpora"] == ["demo-code", "demo-stories"]
    test.slider(key="share.demo-code").set_value(80).run()
    assert address(test)["corpora"] == ["demo-code:80", "demo-stories:50"]
    test.segmented_control(key="budget").set_value("shrink").run()
    test.text_input(key="protect").set_value("5, 0-1").run()
    assert test.error  # nothing can be that
    test.text_input(key="protect").set_value("5,0-1").run()
    assert address(test) == {
        **{"criterion": "aimer", "corpora": ["demo-code:80", "demo-stories:50"]},
        **{"shrink": "50%", "protect": "0-1,5"},
    }
    test.segmented_control(key="granularity").set_value("neuron").run()
    assert address(test) == {
        **{"granularity": "neuron", "corpora": ["demo-code:80", "demo-stories:50"]},
        **{"shrink": "50%", "protect": "0-1,5"},
    }


def test_values_outside_their_options_do_not_crash(open_page):
    test = open_page("explore")
    for key, value in (
        *(("b", 7), ("alpha", "x"), ("beta", None), ("gate", "strong"), ("corpora.view", "zz")),
        *(("sparsity", 99), ("sparsity", "much"), ("corpus", "nope"), ("corpus", None)),
    ):
        test.session_state[key] = value
        test.run()
        assert not test.exception, key
        assert criterion_shown(test) == "REAP"
    test.session_state["criterion"] = None
    assert not test.run().exception


def test_another_model_takes_over_what_fits_it(open_page):
    test = open_page("explore", sparsity="85%", corpora="demo-math")
    assert test.select_slider(key="sparsity").value == 85
    test.selectbox(key="model").set_value("once").run()
    assert not test.exception
    # Six experts, top-2: at most 66.7% can go.
    assert test.select_slider(key="sparsity").options[-1] == "65%"
    assert test.select_slider(key="sparsity").value <= 65
    assert any("that Frequency drops" in text.value for text in test.markdown)
    test.selectbox(key="model").set_value("demo").run()
    assert not test.exception
    assert any("that Frequency drops" in text.value for text in test.markdown)


def test_the_sidebar_says_which_of_several_runs_of_a_corpus_is_used(
    open_page, models_root, stats_dir, tmp_path, monkeypatch
):
    assert not open_page("explore", model="once").sidebar.caption
    kept = shutil.copytree(stats_dir, tmp_path / "kept")
    (large,) = (path.name for path in kept.glob("once-*"))
    request = CalibrateRequest(
        model=str(models_root / "once"),
        corpus=str(models_root / "rows.jsonl"),
        tokens=32,
        seq_len=16,
        stats_dir=kept,
    )
    drain(calibrate_run(request))
    monkeypatch.setenv("MOEPRUNE_STATS_DIR", str(kept))
    settings.clear()
    (said,) = open_page("explore", model="once").sidebar.caption
    assert f"{ROWS} has 2 runs; using {large}, the largest" in said.value.replace("\\", "")
