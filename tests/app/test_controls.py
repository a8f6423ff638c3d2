"""The table of controls, row by row: to the spec and back, through the URL and back."""

from collections import Counter

import pytest
from page_texts import refusal_of_link

from analysis.criteria import get_criterion
from analysis.errors import PlanError
from app.session.controls import BESIDE, CONTROLS, USUAL, asked_spec, controls_for
from app.session.data import chosen_model, model_choices, runs_with_routing
from app.session.link import controls_of_pin, link_words, pin_words
from app.session.pins import Pin, parse_pin
from app.session.state import Page, criterion_in, exponent_controls
from pruning.plan.plan import EXPERT_GRANULARITY, NEURON_GRANULARITY
from pruning.planning.choice import HAND
from pruning.search.store import SEARCH
from pruning.spec.base import flat_fields
from pruning.spec.spec import PlanSpec, spec_of_words

ROWS = [
    pytest.param(granularity, row, id=f"{granularity}-{row.key}")
    for granularity in (EXPERT_GRANULARITY, NEURON_GRANULARITY)
    for row in CONTROLS
    if row.of in ("", granularity)
]
# Row -> the control beside which it says something.
NEEDS = {
    "counts": {"schedule": HAND},
    "lambda": {"neurons": "camera-p"},
    "searched": {"schedule": SEARCH},
}
# What a person may type; of the other texts the example in the empty field.
TYPED = {"locked": "0-1,5", "lambda": 2.5}


@pytest.fixture
def page_of(environment):
    """The demo with the controls of a new session, of a granularity."""
    (demo,) = (choice for choice in model_choices() if choice.name == "demo")
    model = chosen_model(demo)
    corpora = list(runs_with_routing(model))
    return lambda granularity: Page({**USUAL, "granularity": granularity}, model, corpora)


def spec_on(page, **controls):
    return asked_spec({**page.values, **controls}, page.model, page.corpora)


def values_of(row, page):
    """All that a list offers, or the empty text and an example."""
    if options := row.offered(page):
        return options
    look = row.look(page) if callable(row.look) else row.look
    return [row.usual, TYPED.get(row.key) or look["placeholder"].removeprefix("e.g. ")]


def set_by(row, value):
    """What a person sets with this value, and what it needs beside."""
    exponents = get_criterion(value).exponents if row.key == "criterion" else None
    return exponent_controls(exponents) if exponents else {**NEEDS.get(row.key, {}), row.key: value}


def said(row, controls):
    """What a row says: members of the unified family have several names."""
    value = criterion_in(controls) if row.key == "criterion" else controls[row.key]
    # Beside the spec, where these begin with uniform.
    return "uniform" if row.key == "schedule" and value in (SEARCH, HAND) else value


def through_a_pin(page, spec, controls):
    """A pin in the URL has all of it, and names what its plan is ranked by."""
    words = pin_words(spec, link_words(spec, controls, page.model, page.corpora))
    pin = Pin(words, "0123abcd", page.model.name)
    assert parse_pin(pin.text) == pin
    assert pin.words["criterion"] == [spec.ranking.criterion]
    assert pin.words["corpora"] == list(spec.ranking.corpora)
    back = controls_of_pin(parse_pin(pin.text), page.model, page.corpora)
    assert asked_spec(back, page.model, page.corpora) == spec
    assert {name: back[name] for name in BESIDE} == {name: controls[name] for name in BESIDE}


@pytest.mark.parametrize(("granularity", "row"), ROWS)
def test_every_value_goes_to_the_spec_through_the_url_and_back(page_of, granularity, row):
    page = page_of(granularity)
    specs = set()
    for value in values_of(row, page):
        set_here = set_by(row, value)
        spec = spec_on(page, **set_here)
        usual = spec_on(page, granularity=spec.ranking.granularity)
        linked = spec_of_words(spec.differences(usual), usual)
        back = controls_for(linked, page.model, page.corpora)
        assert linked == spec == asked_spec(back, page.model, page.corpora)
        controls = {**page.values, **set_here}
        if row.field:
            assert said(row, back) == said(row, controls)
        through_a_pin(page, spec, controls)
        specs.add(str(spec.to_json()))
    # It changes the plan, by a value of its own each.
    beginnings = 2 if row.key == "schedule" else 0
    assert len(specs) == (len(values_of(row, page)) - beginnings if row.field else 1)


# What pages, links and sessions know a control by.
KEYS = {
    EXPERT_GRANULARITY: {
        *("granularity", "corpus", "budget", "sparsity", "criterion", "b", "alpha", "beta"),
        *(
            "schedule",
            "searched",
            "gate",
            "protect",
            "pin",
            "drop",
            "multiple_of",
            "counts",
            "locked",
        ),
        *("keep_super", "top_k", "bits"),
    },
    NEURON_GRANULARITY: {
        *("granularity", "corpus", "budget", "sparsity", "neurons", "lambda", "neuron_scope"),
        *("width_mode", "width_multiple_of", "multiple_of", "gate", "protect", "pin", "drop"),
        *("keep_super", "top_k", "bits"),
    },
}


@pytest.mark.parametrize("granularity", KEYS)
def test_pages_have_these_controls(granularity):
    assert {row.key for row in CONTROLS if row.of in ("", granularity)} == KEYS[granularity]


def test_a_row_gives_a_field_that_no_other_gives():
    for granularity in (EXPERT_GRANULARITY, NEURON_GRANULARITY):
        rows = [row for row in CONTROLS if row.of in ("", granularity)]
        assert {row.field for row in rows if row.field} <= flat_fields(PlanSpec).keys()
        given = Counter(row.field for row in rows if row.field and row.meaning)
        assert {*given.values(), *Counter(row.key for row in rows).values()} == {1}
        # Of a control of several parts, each is of a field that is given.
        assert {row.field for row in rows if row.meaning is None} <= given.keys()


NUMBERS = [case for case in ROWS if type(case.values[1].usual) is int and case.values[1].meaning]


@pytest.mark.parametrize(("granularity", "row"), NUMBERS)
def test_a_number_that_a_control_does_not_offer_is_said_by_its_label(page_of, granularity, row):
    page = page_of(granularity)
    usual = spec_on(page)
    more = max(row.offered(page)) + 1
    words = {row.field: [f"{more}%" if row.key == "sparsity" else str(more)]}
    with pytest.raises(PlanError, match=f"no control for {row.field}: .*'{row.label}' for "):
        controls_for(spec_of_words(words, usual), page.model, page.corpora)


# Values of one session, each unlike the usual one; the other rows take the last that they offer.
SET = {
    EXPERT_GRANULARITY: {
        **{"budget": "sparsity", "sparsity": 25, "criterion": "squared-gate-energy"},
        **{"b": 0, "alpha": 2, "beta": 2, "schedule": HAND, "protect": "0,5", "locked": "1"},
        **{"counts": ".".join(["24"] * 6), "searched": ""},
    },
    NEURON_GRANULARITY: {
        **{"neurons": "camera-p", "lambda": 2.5, "neuron_scope": "layer", "sparsity": 25},
        **{"protect": "0,5", "pin": "1:2-3", "drop": "2:0"},
    },
}


@pytest.mark.parametrize("granularity", SET)
def test_a_link_with_all_fields_opens_the_same_controls(open_page, page_of, granularity):
    page = page_of(granularity)
    rows = [row for row in CONTROLS if row.of in ("", granularity) and row.key != "granularity"]
    chosen = {row.key: SET[granularity].get(row.key, values_of(row, page)[-1]) for row in rows}
    link = spec_on(page, **chosen).differences(spec_on(page))
    link |= {"granularity": [granularity]} if granularity == NEURON_GRANULARITY else {}
    link |= {row.key: [str(chosen[row.key])] for row in BESIDE.values() if chosen.get(row.key)}
    given = {row.field for row in rows if row.field} - {"sparsity", "schedule"}
    assert given <= link.keys() | {"gate" if granularity == NEURON_GRANULARITY else ""}
    test = open_page("plan", **link)
    assert not refusal_of_link(test)
    for row in rows:
        assert said(row, test.session_state) == said(row, chosen), row.key
    names = {*flat_fields(PlanSpec), *BESIDE} & test.query_params.keys()
    address = {name: test.query_params[name] for name in names}
    assert address == {name: words if len(words) > 1 else words[0] for name, words in link.items()}
