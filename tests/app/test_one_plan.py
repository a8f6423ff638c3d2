"""One plan on every page: the same digest wherever a person goes, reloads or follows a link."""

import pytest
from page_texts import loaded_on

PAGES = ("start", "explore", "compare", "plan", "export")
PLANS = {
    "unified": {
        **{"b": "0", "alpha": "2", "beta": "2", "gate": "Renormalized", "sparsity": "25%"},
        **{"corpus": "(blend)", "share.demo-code": "80", "share.demo-math": "0"},
    },
    "rules": {"schedule": "Frequency", "protect": "0", "multiple": "4", "corpus": "demo-prose"},
    "shrunk": {"budget": "Bytes", "sparsity": "40%", "criterion": "AIMER", "schedule": "Late"},
    "by hand": {"schedule": "By hand", "counts": "20.20.20.12.12.12", "locked": "0"},
    "by hand, locked": {
        **{"schedule": "By hand", "counts": "6.5.5.7.5.20", "locked": "0,5", "sparsity": "75%"},
        **{"b": "0", "beta": "2", "corpus": "demo-prose"},
    },
    "measured": {
        **{"schedule": "Measured", "sparsity": "40%", "b": "0", "alpha": "0"},
        **{"corpus": "(blend)"},
    },
    "searched": {"schedule": "Searched", "searched": "demo-frequency"},
    "neurons": {
        **{"granularity": "Neurons", "neurons": "Neuron norms", "scope": "Per expert"},
        **{"sparsity": "40%", "neuron_multiple": "8", "pin": "3:5", "unit": "All parameters"},
    },
    "uneven neurons": {
        **{"granularity": "Neurons", "scope": "Global", "sparsity": "30%", "drop": "2:7"},
        **{"width": "per-layer"},
    },
    "measured neurons": {"granularity": "Neurons", "scope": "Measured", "sparsity": "40%"},
}


def digest(test):
    return loaded_on(test).shown.plan.digest


@pytest.mark.parametrize("address", PLANS.values(), ids=PLANS.keys())
def test_every_page_is_about_the_plan_of_the_address(open_page, go_to, address):
    test = open_page("evaluate", **address)
    first = digest(test)
    for page in PAGES:
        go_to(test, page)
        assert digest(test) == first, page
    # A reload, or a link that another person opens, knows the address alone.
    assert digest(open_page("start", **dict(test.query_params))) == first


def test_an_address_without_controls_is_the_plan_of_the_defaults(open_page):
    """Start's address of a plan of defaults says that it is one; the browser's part adds that."""
    assert digest(open_page("plan")) == digest(open_page("start", opened="1"))
