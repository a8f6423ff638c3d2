"""Every page in every state: no exception, and always a next step."""

import shutil
from itertools import product

import pytest
from page_texts import texts

from app.session.state import PAIR

CHARTS = ("start", "explore", "compare", "export")
STATES = (None, "bare", "weighed", "once")
VARIANTS = tuple(product((0, 1), (0, 1, 2), (0, 1, 2)))


def set_exponents(test, exponents):
    for key, value in zip(("b", "alpha", "beta"), exponents, strict=True):
        test.segmented_control(key=key).set_value(value)
    return test.run()


@pytest.mark.parametrize("model", STATES)
@pytest.mark.parametrize("view", CHARTS)
def test_page_renders(open_page, view, model):
    test = open_page(view, model)
    assert not test.exception
    assert texts(test.error) == []
    assert len(test.title) == 1
    assert test.selectbox(key="model").value == (model or "demo")


@pytest.mark.parametrize("view", ["explore", "export"])
@pytest.mark.parametrize("percent", [0, 50, 75])
def test_every_variant_at_every_sparsity(open_page, view, percent):
    test = open_page(view)
    test.select_slider(key="sparsity").set_value(percent).run()
    all_of_them = (view, percent) == ("explore", 50)
    for exponents in VARIANTS if all_of_them else ((0, 0, 0), (1, 0, 0), (1, 1, 2)):
        set_exponents(test, exponents)
        assert not test.exception, exponents
        assert texts(test.error) == []
        # Only the constant variant leaves the page without numbers.
        assert bool(test.metric) == (exponents != (1, 0, 0))


@pytest.mark.parametrize("model", [None, "once"])
def test_every_other_criterion(open_page, model):
    tests = open_page("explore", model), open_page("export", model)
    for criterion in ("aimer", "magnitude", "mone", "hoyer", "random"):
        for test in tests:
            test.selectbox(key="criterion").set_value(criterion).run()
            assert not test.exception, criterion
            # The weights of `once` were not measured.
            assert bool(test.metric) == (model is None or criterion in ("mone", "random"))


@pytest.mark.parametrize("view", ["explore", "export"])
def test_constant_variant_is_explained_and_disables_what_follows(open_page, view):
    test = set_exponents(open_page(view), (1, 0, 0))
    (note,) = texts(test.info)
    assert "(1, 0, 0)" in note
    assert "ranks nothing" in note
    assert not test.metric
    assert not [button for button in test.button if button.label == "Run export"]
    # The way back is on the same page.
    assert set_exponents(test, (0, 0, 0)).metric


@pytest.mark.parametrize("view", ["explore", "export"])
def test_a_model_without_calibration_says_where_to_start_one(open_page, view):
    (note,) = texts(open_page(view, "bare").info)
    assert "bare has no calibration yet" in note
    assert "Start" in note


@pytest.mark.parametrize("view", ["explore", "export"])
def test_a_model_without_weight_statistics_says_where_to_measure_them(open_page, view):
    test = open_page(view, "bare")
    test.selectbox(key="criterion").set_value("aimer").run()
    (note,) = texts(test.info)
    assert "reads the weights of bare" in note
    assert "Start" in note


def test_measured_weights_are_enough_for_the_criteria_that_read_them(open_page):
    test = open_page("explore", "weighed")
    test.menu_button(key="preset").set_value(PAIR).run()
    assert not test.exception
    assert test.metric[0].label == "Pruned by Magnitude too"
    assert open_page("export", "weighed", criterion="AIMER").metric[0].value == "9 of 18"


def test_one_text_is_not_enough_for_overlap_and_the_page_says_so(open_page):
    test = open_page("explore", "once")
    assert {metric.label: metric.value for metric in test.metric}["Overlap across corpora"] == "-"
    assert all("Calibrate on another" in note for note in texts(test.info))
    assert test.info


@pytest.mark.parametrize("percent", [0, 5, 15, 65])
def test_small_models_where_a_sparsity_removes_no_expert(open_page, go_to, percent):
    """Of six experts, 5 and 15 percent are none."""
    test = open_page("explore", "once")
    test.select_slider(key="sparsity").set_value(percent).run()
    assert not test.exception
    removed = 6 * percent // 100
    if not removed:
        assert any("(nothing saved)" in text for text in texts(test.markdown))
    go_to(test, "export")
    assert test.metric[0].value == f"{18 - 3 * removed} of 18"


def test_start_offers_what_is_missing(open_page):
    labels = {model: {b.label for b in open_page("start", model).button} for model in STATES}
    assert "Measure weights" in labels["bare"] & labels["once"]
    assert "Measure weights" not in labels["weighed"] | labels[None]
    assert all("Run calibration" in found for found in labels.values())


def test_start_lists_the_runs_and_which_model_they_fit(open_page):
    table = open_page("start", "once").dataframe[0].value
    fits = dict(
        zip(zip(table["model"], table["statistics"], strict=True), table["fits"], strict=True)
    )
    assert fits["weighed", "weights"] == "another model"
    assert fits["demo", "demo-math"] == "another model"
    assert [key for key, value in fits.items() if value == "this model"] == [
        (name, corpus) for name, corpus in fits if name == "once"
    ]
    assert table["fits"].iloc[0] == "this model"


def test_start_counts_the_experts_that_no_token_reached(open_page, demo_moments):
    shown = [badge.value for badge in open_page("start").markdown if "routed on" in badge.value]
    for corpus, table in demo_moments.items():
        never = int((table["num_tokens"] == 0).sum())
        (badge,) = (text for text in shown if text.rstrip("]").endswith(corpus))
        word = "expert" if never == 1 else "experts"
        expected = f"{never} {word} never routed" if never else "every expert routed"
        assert expected in badge


class TestDamage:
    """What cannot be read is named, and costs nothing else."""

    @pytest.fixture
    def models_root(self, folders, tmp_path):
        return shutil.copytree(folders[0], tmp_path / "models")

    @pytest.fixture
    def stats_dir(self, folders, tmp_path):
        return shutil.copytree(folders[1], tmp_path / "stats")

    def test_damaged_run(self, open_page, stats_dir):
        (broken,) = stats_dir.glob("once-*")
        (broken / "manifest.json").write_text("{")
        test = open_page("start", "once")
        (warning,) = texts(test.warning)
        assert broken.name in warning
        assert not test.error
        assert open_page("explore").metric

    def test_damaged_table(self, open_page, stats_dir):
        (broken,) = stats_dir.glob("once-*")
        (broken / "experts.parquet").write_bytes(b"PAR1")
        for view in CHARTS:
            test = open_page(view, "once")
            (message,) = texts(test.error)
            assert "moeprune runs remove" in message

    def test_damaged_model(self, open_page, models_root):
        sorted((models_root / "bare").glob("*.safetensors"))[0].write_bytes(b"cut")
        test = open_page("start", "bare")
        (message,) = texts(test.error)
        assert "truncated" in message
        # The other models can still be chosen.
        test.selectbox(key="model").set_value("demo").run()
        assert test.title
        assert not test.error
