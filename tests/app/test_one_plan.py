"""One plan on every page: the same digest wherever a person goes, reloads or follows a link."""

import pytest

PAGES = ("start", "explore", "compare", "plan", "evaluate", "export")
PLANS = {
    "uniform": {},
    "unified": {"b": "0", "alpha": "2", "beta": "2", "gate": "Renormalized", "sparsity": "25%"},
    "weights": {"criterion": "AIMER", "sparsity": "75%"},
    "schedule": {"schedule": "Late", "corpus": "demo-math"},
    "rules": {"schedule": "Frequency", "protect": "0", "multiple": "4", "corpus": "demo-prose"},
    "shrunk": {"budget": "Bytes", "sparsity": "40%", "multiple": "4", "corpus": "demo-math"},
    "by hand": {"schedule": "By hand", "counts": "20.20.20.12.12.12", "locked": "0"},
    "searched": {"schedule": "Searched", "searched": "demo-frequency"},
    "blended": {"corpus": "(blend)", "share.demo-code": "80", "share.demo-math": "0"},
    "neurons": {"granularity": "Neurons", "sparsity": "30%"},
    "neurons within experts": {
        **{"granularity": "Neurons", "neurons": "Neuron norms", "scope": "Per expert"},
        **{"sparsity": "40%", "neuron_multiple": "8", "pin": "3:5", "unit": "All parameters"},
    },
}


def digest(test):
    return test.session_state["context"].shown.plan.digest


@pytest.mark.parametrize("address", PLANS.values(), ids=PLANS.keys())
def test_every_page_is_about_the_plan_of_the_address(open_page, go_to, address):
    test = open_page("evaluate", **address)
    first = digest(test)
    assert (first == digest(open_page("plan"))) == (not address)
    for page in PAGES:
        go_to(test, page)
        assert digest(test) == first, page
    # A reload, or a link that another person opens, knows the address alone.
    for page in ("export", "start"):
        # Start's address of a plan of defaults says that it is one; the browser's part adds that.
        said = dict(test.query_params) or {"opened": "1"}
        assert digest(open_page(page, **said)) == first, page
