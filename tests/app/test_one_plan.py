"""One plan on every page: the same digest wherever a person goes, reloads or follows a link."""

import pytest
from page_texts import ALL_CORPORA, PLANS, loaded_on

PAGES = ("start", "explore", "compare", "plan", "export")


def digest(test):
    return loaded_on(test).shown.plan.digest


@pytest.mark.parametrize("address", PLANS.values(), ids=PLANS.keys())
def test_every_page_is_about_the_plan_of_the_address(open_page, go_to, address):
    test = open_page("evaluate", **address)
    shown, top_k = loaded_on(test).shown, address.get("top_k")
    assert shown.name.endswith(f", top-{top_k}") == bool(top_k)
    addresses = [dict(test.query_params)]
    for page in PAGES:
        go_to(test, page)
        # Of one address the controls always make one plan.
        if dict(test.query_params) not in addresses:
            assert digest(test) == shown.plan.digest, page
            addresses.append(dict(test.query_params))
    # A reload, or a link that another person opens, knows the address alone.
    assert digest(open_page("export", **addresses[-1])) == shown.plan.digest


def test_an_address_without_controls_opens_the_best_plan_that_engines_serve(open_page):
    first = open_page("start", bare=True)
    best = loaded_on(first).shown
    for page in ("explore", "compare", "plan", "evaluate", "export"):
        assert digest(open_page(page, bare=True)) == best.plan.digest
    # With controls it is the plan of defaults; every page is about it, see above.
    assert digest(open_page("explore")) != best.plan.digest
    assert set(best.kept.values()) == {16}
    assert first.query_params["criterion"] == "ean"
    # An address that a page makes is never bare: a reload shows the same plan.
    assert open_page("plan").query_params["opened"] == "1"


@pytest.mark.parametrize(
    "address",
    [
        {"schedule": "global"},
        {"schedule": "frequency", "criterion": "aimer"},
        {"set": "0-5=16", "locked": "1"},
        {"set": ["0-2=20", "3-5=12"]},
        {"searched": "demo-reap"},
        {"schedule": "measured", "criterion": "ean", "corpora": ALL_CORPORA},
        {"protect": "0", "shrink": "25%"},
    ],
    ids=str,
)
def test_a_of_compare_is_the_plan_and_b_is_spread_alike(open_page, address):
    loaded = loaded_on(open_page("compare", **address))
    layers = loaded.comparison.grid.layers
    kept = [
        [expert for expert in range(layer.num_experts) if not pruned[expert]]
        for layer, pruned in zip(layers, loaded.comparison.a.pruned, strict=True)
    ]
    assert kept == [list(loaded.shown.plan.kept[layer.index]) for layer in layers]
    a, b = (plan.plan for plan in (loaded.both.a, loaded.both.b))
    if a.spread.is_measured:  # of the order of A; that of B has no curves
        assert b.limits.set == loaded.shown.kept
    else:
        assert (b.spread, b.limits) == (a.spread, a.limits)
    assert b.ranking.criterion == "frequency"
