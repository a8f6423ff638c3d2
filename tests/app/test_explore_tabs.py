"""The tabs of Explore: blends, exponents, single experts, which criterion; against plain Python."""

from itertools import product

import pytest
from page_texts import SCORES, opened, texts

TABS = ("Overlap", "Exponents", "Tokens", "Damage", "Blend", "Cut", "Experts", "Which criterion?")


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


@pytest.mark.parametrize(
    ("model", "tab"),
    [
        *product((None, "once"), TABS),
        *product(("bare", "weighed"), ("Overlap", "Blend", "Which criterion?")),
    ],
)
def test_every_tab_in_every_state(open_page, model, tab):
    test = open_page("explore", model, tab=tab)
    assert not test.exception
    assert texts(test.error) == []
    assert test.dataframe or test.get("plotly_chart") or test.info


@pytest.mark.parametrize("criterion", ["AIMER", "MoNE", "Random"])
def test_every_tab_under_other_criteria(open_page, criterion):
    for tab in TABS if criterion == "AIMER" else ("Overlap", "Damage", "Cut"):
        test = open_page("explore", tab=tab, criterion=criterion)
        assert not test.exception, tab
        assert texts(test.error) == [], tab


@pytest.mark.parametrize("percent", [25, 50])
@pytest.mark.parametrize("name", ["reap", "man"])
def test_coverage_of_a_blend(open_page, demo_moments, name, percent):
    shares = {"demo-code": 10, "demo-math": 70, "demo-prose": 20}
    address = {f"share.{corpus}": str(share) for corpus, share in shares.items()}
    exponents = {} if name == "reap" else {"alpha": "0"}
    test = open_page(
        "explore", tab="Blend", corpus="(blend)", sparsity=f"{percent}%", **address, **exponents
    )
    expected = coverage(demo_moments, blend_of(demo_moments, shares), percent, name)
    table = coverage_table(test)
    assert table["coverage"].to_dict() == pytest.approx(expected)
    equal = coverage(demo_moments, blend_of(demo_moments, dict.fromkeys(shares, 1)), percent, name)
    assert table["equal"].to_dict() == pytest.approx(equal)
    assert table["share"].to_dict() == pytest.approx({k: v / 100 for k, v in shares.items()})
    worst = min(expected, key=expected.get)
    assert any(f"**{worst}**, {expected[worst]:.1%}" in text for text in texts(test.markdown))


def test_fair_blend_is_no_worse_and_goes_into_the_plan(open_page):
    test = open_page("explore", tab="Blend")
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
        assert (f"--corpus {corpus}:{share}" in plan) == (share > 0)


def test_a_blend_without_any_share_is_an_equal_one(open_page, demo_moments):
    zeros = {f"share.{corpus}": "0" for corpus in demo_moments}
    test = open_page("explore", tab="Blend", corpus="(blend)", **zeros)
    assert not test.exception
    assert coverage_table(test)["share"].tolist() == pytest.approx([1 / 3] * 3)


def test_exponents(open_page):
    table = opened(open_page("explore", tab="Exponents"), "component-effects").dataframe[-1].value
    # (1, 0, 0) is none of the 17.
    assert table["variants"].tolist() == [9, 8, 5, 6, 6, 5, 6, 6]
    assert table["overlap"].between(0, 1).all()


def test_never_routed_experts_are_listed(open_page, demo_moments):
    test = open_page("explore", tab="Experts")
    never = {
        (int(row.layer), int(row.expert))
        for table in demo_moments.values()
        for row in table[table["num_tokens"] == 0].itertuples()
    }
    if never:
        table = test.dataframe[-1].value
        assert set(zip(table["layer"], table["expert"], strict=True)) == never
    else:
        assert any("every expert routed" in text for text in texts(test.markdown))


def test_which_criterion_takes_a_recommendation(open_page):
    test = open_page("explore", tab="Which criterion?")
    test.button(key="advice.msan").click().run()
    assert not test.exception
    assert test.metric[0].value == "MSAN"
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
    assert (reap["rank"].to_numpy() + 1).tolist() == place.astype(int).tolist()
    labels = [button.label for button in test.get("download_button")]
    assert {"CSV", "HTML"} <= set(labels)


def coverage_table(test):
    return opened(test, "coverage").dataframe[-1].value.set_index("corpus")
