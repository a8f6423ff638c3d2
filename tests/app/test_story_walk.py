"""No touch of a control of Story leaves a slide empty or ends in an error."""

import random

import pytest
from page_texts import ALL_CORPORA

from analysis.criteria import NEURON_CRITERIA, criterion_label
from app.charts.stratification import SCALES
from app.choices import BLEND
from app.pages.story import FINDINGS
from app.report.sentences import TITLES
from pruning.planning.choice import SCHEDULE_NAMES, SCOPES, schedule_label

# Key of a control -> its values, by the words that it shows.
VALUES = {
    "finding": {words: name for name, words in TITLES.items()},
    "story.scale": {words: name for name, (words, _) in SCALES.items()},
    "story.schedule": {schedule_label(name): name for name in SCHEDULE_NAMES},
    "story.corpus": {name: name for name in ALL_CORPORA},
    **{f"story.{key}": {str(n): n for n in range(3)} for key in ("b", "alpha", "beta")},
    "story.neurons": {criterion_label(name): name for name in NEURON_CRITERIA},
    "story.neuron_scope": {words: str(scope) for scope, words in SCOPES.items()},
    "story.sparsity": {f"{percent}%": percent for percent in range(100)},
}


def touches(test):
    """What a person can touch: an element of the page Story, and a function that touches it."""
    for element in (*test.segmented_control, *test.select_slider):
        for words in element.options if element.key in VALUES else ():
            value = VALUES[element.key].get(words, BLEND)
            yield f"{element.key}={value}", element, value
    for element in test.toggle:
        if str(element.key).startswith("story."):
            yield f"{element.key}={not element.value}", element, not element.value
    for element in test.button:
        if str(element.key).startswith("story.") and not element.disabled:
            yield element.key, element, None


def walk(test, steps, seed):
    """Touch controls at random; the findings that were seen."""
    chance, trail, seen = random.Random(seed), [], set()  # noqa: S311
    for _ in range(steps):
        words, element, value = chance.choice(list(touches(test)))
        trail.append(words)
        (element.click() if value is None else element.set_value(value)).run()
        assert not test.exception, trail
        assert [title.value for title in test.title if len(title.value) > 20], trail
        assert "ranks nothing" not in test.title[0].value, trail
        assert len(test.get("plotly_chart")) == 1, (trail, test.title[0].value)
        seen.add(test.session_state["finding"])
    return seen


@pytest.mark.parametrize(
    "address",
    [
        {"criterion": "reap"},
        {"criterion": "aimer"},
        {"criterion": "heapr", "granularity": "neuron"},
    ],
)
def test_a_few_touches_leave_a_sentence_and_a_chart(open_page, address):
    assert walk(open_page("story", **address), 6, 5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_two_hundred_touches_leave_a_sentence_and_a_chart(open_page, seed):
    assert walk(open_page("story", criterion="reap"), 200, seed) == set(FINDINGS)
