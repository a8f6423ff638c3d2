"""The demo's generated texts: the same bytes everywhere, and answers that are true."""

import hashlib
import json
import re
from collections.abc import Callable

import pytest

from analysis.demo.generate import story_sentences
from analysis.demo.generate.draw import GeneratedText
from analysis.demo.generate.functions import function_text
from analysis.demo.generate.problems import problem_text
from analysis.demo.generate.recipes import recipe_text
from analysis.demo.generate.stories import story_text

Generator = Callable[..., GeneratedText]
DIGESTS = {
    function_text: "b5c752823b669ef5",
    problem_text: "dcab5c4a88f8568c",
    recipe_text: "a0572770b0e6ab58",
    story_text: "8a6f31113c1a20d0",
}
OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def many(generator: Generator, count: int = 400) -> list[GeneratedText]:
    return [generator(number, held_out=number % 2 == 1) for number in range(count)]


@pytest.mark.parametrize("generator", DIGESTS)
def test_texts_are_the_same_bytes_on_every_python(generator):
    digest = hashlib.sha256()
    for text in many(generator):
        parts = [text.prompt, text.response, text.answer, *sum(text.earlier or (), ())]
        digest.update(json.dumps(parts).encode())
    assert digest.hexdigest()[:16] == DIGESTS[generator]


@pytest.mark.parametrize("generator", DIGESTS)
def test_a_prompt_ends_where_a_token_ends(generator):
    for text in many(generator):
        assert text.prompt == text.prompt.rstrip()
        assert text.earlier is not None or text.response[0] in " \n"


def test_held_out_functions_are_combinations_that_no_other_text_has():
    def combinations(held_out: bool) -> set[str]:
        found = set()
        for number in range(3000):
            text = function_text(number, held_out=held_out).prompt
            kinds = [("word" if "words" in body else "number") for body in text.split("def ")[1:]]
            found |= set(zip(re.findall(r"def (\w+)", text), kinds, strict=True))
        return found

    held_out, others = combinations(True), combinations(False)
    assert len(held_out) > 150
    assert len(others) > 1000
    assert not held_out & others


def test_no_held_out_problem_is_among_the_others():
    """Word for word: few numbers make an area, so drawing apart by number would not do."""
    asked = [
        {
            problem
            for number in range(4000)
            for text in [problem_text(number, held_out=held_out)]
            for problem in (text.prompt, *(before for before, _ in text.earlier))
        }
        for held_out in (True, False)
    ]
    assert min(map(len, asked)) > 3000
    assert not asked[0] & asked[1]


def test_every_step_of_a_worked_answer_is_true():
    steps = 0
    for text in many(problem_text):
        for _, worked in (*text.earlier, (text.prompt, text.response)):
            for left, sign, right, result in re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", worked):
                assert OPERATIONS[sign](int(left), int(right)) == int(result), worked
                steps += 1
        assert text.response.endswith(f"The answer is {text.answer}.")
        # The answer is a result of the arithmetic or stands in the problem's text.
        assert f" {text.answer}" in text.response.rpartition("The answer")[0]
    assert steps > 1000


def sentence_about(story: str, name: str) -> str:
    """The last sentence that has a name."""
    body = story.split("\n\n")[0]
    sentences = re.split(r"(?<=[.\"]) (?=[A-Z\"])", body)
    return [each for each in sentences if re.search(rf"\b{name}\b", each)][-1]


def test_answers_about_things_follow_from_the_last_sentence_that_names_them():
    asked = dict.fromkeys(("Where is the", "Who has the"), 0)
    for text in many(story_text, 600):
        pairs = re.findall(
            r"^(Where is the|Who has the) (\w+)\? (.+)$", text.prompt + text.response, re.M
        )
        for question, thing, answer in pairs:
            sentence = sentence_about(text.prompt, thing)
            if question == "Where is the":
                assert (answer[0].lower() + answer[1:]).rstrip(".") in sentence
            else:
                person = answer.rstrip(".")
                people = [
                    each for each in story_sentences.PEOPLE if re.search(rf"\b{each}\b", sentence)
                ]
                # Of two people the one who is given the thing, who is named last.
                assert person == max(people, key=sentence.index)
            asked[question] += 1
    assert min(asked.values()) > 200


def test_answers_about_people_are_in_the_story():
    for text in many(story_text):
        body, _, questions = (text.prompt + text.response).partition("\n\n")
        for person, words in re.findall(r'What did (\w+) say\? ("[^"]+")', questions):
            said = [line for line in re.findall(r'[^."]*"[^"]+"', body) if words in line]
            assert any(person in line for line in said)
        for person, place in re.findall(r"Where did (\w+) go\? (.+)\.", questions):
            assert re.search(rf"\b{person}\b[^.]* {place.lower()}\b", body)
        for person, feeling in re.findall(r"How did (\w+) feel\? (\w+)\.", questions):
            assert re.search(rf"\b{person}\b[^.]*\b{feeling.lower()}\b", body)


def test_amounts_and_times_of_recipes_stand_in_their_lists_and_steps():
    for text in many(recipe_text):
        body, _, questions = (text.prompt + text.response).rpartition("\n\n")
        pairs = re.findall(r"need\? (\d+(?: \w+)?)\.|(?:\w+)\? (\d+ minutes)\.", questions)
        assert len(pairs) == 3
        for amount, time in pairs:
            assert f": {amount}\n" in body if amount else time in body
