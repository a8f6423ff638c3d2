"""A spec as the words by which it differs from another one, and back."""

import pytest

from analysis.errors import PlanError, UserError
from pruning.model import Model
from pruning.spec.spec import spec_of, spec_of_words

USUAL = spec_of(criterion="reap", corpora=("a",), sparsity="50%")
SPECS = [
    (USUAL, {}),
    (spec_of(criterion="reap", corpora=("a",), shrink="40%"), {"shrink": ["40%"]}),
    (
        spec_of(criterion="reap", corpora=("a:2", "b"), sparsity="50%", schedule="late"),
        {"corpora": ["a:2", "b"], "schedule": ["late"]},
    ),
    (
        spec_of(
            **{"criterion": "", "corpora": ("a",), "sparsity": "50%", "multiple_of": 4},
            **{"protect": "5,0-2", "set": {0: 20, 1: 20, 4: 12}, "lock": (3,)},
        ),
        {
            "criterion": [""],
            "multiple_of": ["4"],
            "protect": ["0-2,5"],
            "set": ["0-1=20", "4=12"],
            "lock": ["3"],
        },
    ),
]


@pytest.mark.parametrize(("spec", "words"), SPECS, ids=str)
def test_what_differs_is_read_back(spec, words):
    assert spec.differences(USUAL) == words
    assert spec_of_words(words, USUAL) == spec


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"sparsity": ["25%", "200%"]}, "The share '200%' is out of range"),  # the last one counts
        ({"multiple_of": ["0"]}, "multiple_of: give 1 or more (got 0)."),
        ({"multiple_of": ["1e3"]}, "multiple_of: give a whole number (got '1e3')."),
        ({"multiple_of": ["9" * 5000]}, "multiple_of: give a whole number"),
        ({"granularity": ["atom"]}, "granularity: choose 'expert' or 'neuron' (got 'atom')."),
        ({"neuron_scope": ["layer"]}, "neuron_scope is for plans of neurons; add granularity: "),
        ({"shrink": ["5%"], "remove": ["3"]}, "give one budget: shrink, sparsity, "),
        ({"set": ["0-9"]}, "'0-9' sets no layer"),
    ],
    ids=str,
)
def test_words_that_are_no_spec_are_refused_by_their_names(words, says):
    with pytest.raises(UserError) as refused:
        spec_of_words(words, USUAL)
    assert says in str(refused.value)
    assert "--" not in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("more", "are_alike"),
    [
        ({}, True),
        ({"floor": 4}, True),
        ({"protect": "0"}, False),
        ({"set": {0: 5}}, False),
        ({"schedule": "global"}, False),
    ],
    ids=str,
)
def test_a_spec_tells_whether_its_plan_leaves_layers_alike(more, are_alike):
    plan = Model("demo").plan("aimer", sparsity="50%", **more)
    assert (len({len(kept) for kept in plan.kept.values()}) == 1) is are_alike
    assert spec_of(criterion="aimer", sparsity="50%", **more).leaves_layers_alike is are_alike


def test_a_schedule_that_counts_tokens_refuses_a_ranking_without_a_corpus():
    model = Model("demo")
    with pytest.raises(PlanError, match="frequency schedule counts routed tokens"):
        model.plan(model.rank("aimer"), schedule="frequency", sparsity="50%")
