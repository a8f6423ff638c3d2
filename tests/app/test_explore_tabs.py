"""The tabs of Explore and the chosen expert; against plain Python."""

from dataclasses import replace

import pytest
from page_texts import ALL_CORPORA, SCORES, loaded_on, opened, texts

from analysis.families.base import MoELayer
from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index
from app.charts.listing import CHARTS
from app.session.chosen_expert import choose_on_map, read_place
from app.tables.measured_advice import read_losses
from pruning.records.evaluation import EvaluationStore
from pruning.records.quality import stored_losses

BLEND = {"tab": "Corpora", "corpora.view": "Blend"}


def blend_of(moments, weights):
    """Sums per token, weighted; every corpus has as many tokens, so the scale does not matter."""
    total = None
    for corpus, table in moments.items():
        numbers = table.drop(columns=["layer", "expert"]) * weights[corpus]
        numbers = numbers / table["num_tokens"].sum()
        total = numbers if total is None else total + numbers
    return total.assign(layer=table["layer"], expert=table["expert"])


def coverage(moments, kept_by, percent, name):
    """Mean over layers of the share of each corpus' scores that the kept experts hold."""
    score = SCORES[name]
    mixed = kept_by.assign(score=score(kept_by))
    kept = {}
    for layer, rows in mixed.groupby("layer"):
        order = rows.sort_values(["score", "expert"], ascending=[False, True])
        kept[layer] = set(order["expert"][: 32 - 32 * percent // 100])
    found = {}
    for corpus, table in moments.items():
        scored = table.assign(score=score(table))
        shares = [
            rows[rows["expert"].isin(kept[layer])]["score"].sum() / rows["score"].sum()
            for layer, rows in scored.groupby("layer")
        ]
        found[corpus] = sum(shares) / len(shares)
    return found


def test_coverage_of_a_blend(open_page, demo_moments):
    name, percent = "man", 25
    shares = {"demo-code": 10, "demo-math": 70, "demo-stories": 20}
    address = {"corpora": [f"{corpus}:{share}" for corpus, share in shares.items()]}
    address |= {"criterion": name, "sparsity": f"{percent}%"}
    test = open_page("explore", **BLEND, **address)
    expected = coverage(demo_moments, blend_of(demo_moments, shares), percent, name)
    table = coverage_table(test)
    assert table["coverage"].to_dict() == pytest.approx(expected)
    equal = coverage(demo_moments, blend_of(demo_moments, dict.fromkeys(shares, 1)), percent, name)
    assert table["equal"].to_dict() == pytest.approx(equal)
    assert table["share"].to_dict() == pytest.approx({k: v / 100 for k, v in shares.items()})
    worst = min(expected, key=expected.get)
    assert any(f"**{worst}**, {expected[worst]:.1%}" in text for text in texts(test.markdown))


def test_fair_blend_is_no_worse_and_goes_into_the_plan(open_page):
    test = open_page("explore", **BLEND)
    before = coverage_table(test)
    test.button(key="fair").click().run()
    assert not test.exception
    assert test.pills(key="corpus").value == "(blend)"
    shares = {c: test.slider(key=f"share.{c}").value for c in before.index}
    assert sum(shares.values()) in range(98, 103)
    after = coverage_table(test)
    # Shares are rounded to a percent, which may cost what the last step gained.
    assert after["coverage"].min() >= max(before["coverage"].min(), before["equal"].min()) - 0.005
    plan = next(text for text in texts(test.code) if "moeprune plan" in text)
    for corpus, share in shares.items():
        assert (f"--calibrated-on {corpus}:{share}" in plan) == (share > 0)


def test_a_blend_without_any_share_is_an_equal_one(open_page, demo_moments):
    test = open_page("explore", **BLEND, corpora=ALL_CORPORA)
    for corpus in demo_moments:
        test.slider(key=f"share.{corpus}").set_value(0)
    test.run()
    assert not test.exception
    assert coverage_table(test)["share"].tolist() == pytest.approx([1 / 3] * 3)


def test_the_constant_variant_leaves_the_map_of_the_other_criterion_and_the_variants(open_page):
    test = open_page("explore", criterion="")
    assert texts(test.error) == []
    (said,) = texts(test.info)
    assert "(1, 0, 0) gives every expert the same score" in said
    assert any("**Frequency**, which it is compared with" in text for text in texts(test.markdown))
    assert "explore.map" in [component.key for component in test.get("bidi_component")]
    # By which one leaves it; its command is of a plan that there is.
    assert len(test.get("plotly_chart")) == 1
    test.segmented_control(key="variants").set_value("overlap-map").run()
    assert not test.exception
    assert len(test.get("plotly_chart")) == 1
    test = opened(test, "overlap-map")
    assert any("moeprune plot overlap-map demo --criterion reap" in c for c in texts(test.code))


def test_the_map_of_variants_says_of_the_plan_what_the_bar_says(open_page):
    # Plans of searches that began with this spec were measured, too.
    test = opened(open_page("explore", criterion="reap", corpora="demo-code"), "variant-losses")
    losses = test.dataframe[-1].value.set_index(["b", "alpha", "beta"])["mean"]
    (bar,) = (text for text in texts(test.markdown) if ":material/circle:" in text)
    assert f"loss {losses[1, 1, 1]:+.2f} mean" in bar
    (words,) = (text for text in texts(test.markdown) if "that Frequency drops" in text)
    assert f"instead of {losses[0, 0, 0]:+.2f}" in words


def test_advice_has_a_verdict_of_quality_and_one_of_stability(open_page):
    def verdicts(**address):
        found = texts(open_page("explore", tab="Advice", **address).markdown)
        return [text for text in found if "Quality: " in text or "Stability: " in text]

    quality, stability = verdicts()
    assert "plans beat Random" in quality
    assert "agrees with the paper" in stability
    # No plan of this size was measured.
    quality, _ = verdicts(sparsity="15%")
    assert "Quality: not measured" in quality


def test_the_measured_plans_of_the_advice_are_a_table(open_page):
    test = open_page("explore", tab="Advice")
    (table,) = (shown.value for shown in test.dataframe if "best measured" in shown.value)
    losses = stored_losses(EvaluationStore([SHIPPED_STATS]), load_model_index("demo").identity)
    reading = read_losses("agnostic", losses, 0.5)
    assert len(table) == len(reading.rows) >= 3
    assert table["loss"].tolist() == pytest.approx([row.loss for row in reading.rows], abs=0.005)
    assert table["Random"].tolist() == pytest.approx([row.random for row in reading.rows])


def test_which_criterion_takes_a_recommendation(open_page):
    test = open_page("explore", tab="Advice")
    test.button(key="advice.msan").click().run()
    assert not test.exception
    assert loaded_on(test).choices.criterion.name == "msan"
    test.segmented_control(key="purpose").set_value("specific").run()
    assert test.button(key="advice.gate-ean")
    readings = next(frame.value for frame in test.dataframe if "recommended" in frame.value)
    assert readings["recommended"].sum() == 2


def test_the_expert_map_can_be_taken_away(open_page, demo_moments):
    test = open_page("explore", sparsity="25%")
    assert not [frame for frame in test.dataframe if "panel" in frame.value]
    test = opened(test, "stratification")
    table = next(frame.value for frame in test.dataframe if "panel" in frame.value)
    assert table.groupby("panel")["kept"].sum().to_dict() == {"Frequency": 144, "REAP": 144}
    reap = table[table["panel"] == "REAP"].sort_values(["layer", "expert"])
    score = SCORES["reap"](demo_moments["demo-code"])
    # The map's order is that of the scores of the shipped files.
    place = score.groupby(demo_moments["demo-code"]["layer"]).rank(ascending=False, method="first")
    assert reap["rank"].tolist() == place.astype(int).tolist()
    labels = [button.label for button in test.get("download_button")]
    assert {"CSV", "HTML"} <= set(labels)


def coverage_table(test):
    return opened(test, "coverage").dataframe[-1].value.set_index("corpus")


LAYERS = [MoELayer(index=2, num_experts=4, top_k=1), MoELayer(index=5, num_experts=6, top_k=1)]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("2.3", (2, 3)),
        (" 5 . 5 ", (5, 5)),
        ("2.4", None),
        ("3.0", None),
        ("-2.1", None),
        ("2", None),
        ("2.1.1", None),
        ("", None),
        (None, None),
        (2.3, None),
        # A digit to Python's `\d`, and to `int`.
        ("2.\u0663", None),
        ("2." + "9" * 400, None),
    ],
)
def test_only_experts_of_the_model_are_read(text, place):
    assert read_place(text, LAYERS) == place


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"selection": {"layer": 3, "expert": 7}}, "3.7"),
        ({"selection": {"layer": None, "expert": None}}, ""),
        ({"selection": {"layer": True, "expert": 1}}, "0.0"),
        ({"selection": "3.7"}, "0.0"),
        (None, "0.0"),
    ],
)
def test_what_the_map_sends(monkeypatch, event, said):
    import app.session.chosen_expert as module

    state = {"expert": "0.0", "map": event}
    monkeypatch.setattr(module.st, "session_state", state)
    choose_on_map("map")
    assert state["expert"] == said


def test_an_expert_that_the_model_lacks_is_said_so(open_page):
    test = open_page("explore", expert="3.32")
    assert "No such expert here: layers 0 to 5, experts 0 to 31." in texts(test.text)
    assert not [button for button in test.button if button.label == "Its page"]
    test.text_input(key="expert").set_value("<b>").run()
    assert not test.exception


def test_the_experts_that_no_token_reached(open_page, never):
    test = open_page("explore", tab="Expert", expert="3.7")
    assert "Its page" in [button.label for button in test.button]
    listed = test.dataframe[-1].value
    places = set(zip(listed["layer"], listed["expert"], strict=True))
    assert places == {place for found in never.values() for place in found}


def test_coverage_of_one_text(open_page, demo_moments):
    test = open_page("explore", **BLEND, corpora="demo-math")
    expected = coverage(demo_moments, demo_moments["demo-math"], 50, "reap")
    assert coverage_table(test)["coverage"].to_dict() == pytest.approx(expected)


def test_a_chart_that_names_a_part_is_a_view_of_it(open_page, monkeypatch):
    toy = replace(CHARTS["agreement"], name="toy", title="A toy", page="explore", part="evidence")
    monkeypatch.setitem(CHARTS, toy.name, toy)
    address = {"criterion": "reap", "corpora": "demo-code"}
    sentence = toy.draw(loaded_on(open_page("explore", **address))).alt
    assert sentence not in texts(open_page("explore", tab="Corpora", **address).text)
    test = open_page("explore", tab="Evidence", **{"evidence.view": "A toy"}, **address)
    assert sentence in texts(test.text)
    assert any("moeprune plot toy demo" in text for text in texts(opened(test, "toy").code))
