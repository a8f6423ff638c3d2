"""The demo's generated texts: the same bytes everywhere, and answers that are true."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from operator import add, mul, sub, truediv

import pytest

from analysis.corpora.checks import CHECKS
from analysis.demo.generate import story_sentences
from analysis.demo.generate.draw import GeneratedText
from analysis.demo.generate.functions import function_text
from analysis.demo.generate.problems import problem_text
from analysis.demo.generate.recipes import recipe_text
from analysis.demo.generate.stories import story_text

Generator = Callable[..., GeneratedText]
DIGESTS = {
    function_text: "b5c752823b669ef5",
    problem_text: "73b93330d522f315",
    recipe_text: "0155b275203ffb84",
    story_text: "9ee7a06b3b951525",
}
OPERATIONS = {"+": add, "-": sub, "*": mul, "/": truediv}


def many(generator: Generator, count: int = 400) -> list[GeneratedText]:
    return [generator(number, held_out=number % 2 == 1) for number in range(count)]


@pytest.mark.parametrize("generator", DIGESTS)
def test_texts_are_the_same_bytes_on_every_python(generator):
    digest = hashlib.sha256()
    for text in many(generator):
        parts = [text.prompt, text.response, text.answer, *sum(text.earlier or (), ())]
        digest.update(json.dumps(parts).encode())
    assert digest.hexdigest()[:16] == DIGESTS[generator]


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


# Words of a question, and what its numbers, in their order, give.
ASKED = {
    "How much change": lambda count, price, paid: paid - count * price,
    "are left for": lambda total, friends: total % friends,
    "How far does": lambda speed, first, second: speed * (first + second),
    "How large is": lambda width, length: width * length,
    "How far is it around": lambda width, length: 2 * (width + length),
    "Solve for": lambda factor, shift, right: Fraction(right - shift, factor),
    "have then?": lambda start, week, weeks: start + week * weeks,
    "sell?": lambda base, percent: Fraction(base * percent, 100),
    "how old will": lambda age, more, years: age + more + years,
    "are whole?": lambda boxes, size, broken: boxes * size - broken,
    "How many more": lambda more, less: more - less,
    "count?": lambda first, second, third: first + second + third,
}


def test_every_step_of_a_worked_answer_is_true_and_the_last_is_what_the_problem_asks_for():
    steps, found = 0, Counter()
    for text in many(problem_text):
        for problem, worked in (*text.earlier, (text.prompt, text.response)):
            assert re.fullmatch(r"(\d+ [-+*/] \d+ = \d+\. ?)+", worked)
            for left, sign, right, result in re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", worked):
                assert OPERATIONS[sign](int(left), int(right)) == int(result), worked
                steps += 1
            (asked,) = (words for words in ASKED if words in problem)
            numbers = map(int, re.findall(r"\d+", problem))
            assert int(result) == ASKED[asked](*numbers), problem
            found[asked] += 1
        assert CHECKS["number"].right(text.response, text.answer)
    assert steps > 1000
    assert min(found[words] for words in ASKED) > 30


def test_answers_about_things_follow_from_the_last_sentence_that_names_them():
    asked = dict.fromkeys(("Where is the", "Who has the"), 0)
    for text in many(story_text, 600):
        pairs = re.findall(
            r"^(Where is the|Who has the) (\w+)\? (.+)$", text.prompt + text.response, re.M
        )
        for question, thing, answer in pairs:
            body = text.prompt.partition("\n\n")[0]
            sentences = re.split(r"(?<=[.\"]) (?=[A-Z\"])", body)
            sentence = [words for words in sentences if re.search(rf"\b{thing}\b", words)][-1]
            if question == "Where is the":
                assert (answer[0].lower() + answer[1:]).rstrip(".") in sentence
            else:
                person = answer.rstrip(".")
                people = [
                    person
                    for person in story_sentences.PEOPLE
                    if re.search(rf"\b{person}\b", sentence)
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
        amounts = re.findall(r"How (?:much|many) (\w+) does it need\? (.+)\.", questions)
        heating = re.findall(r"How long does it (\w+)\? (\d+ minutes)\.", questions)
        waiting = re.findall(r"How long must it wait\? (\d+ minutes)\.", questions)
        assert len([*amounts, *heating, *waiting]) == questions.count("?") > 3
        for name, amount in amounts:
            assert f"- {name}: {amount}\n" in body
        for verb, time in heating:
            assert re.search(rf"\b{verb}\b[^.]* for {time}\b", body, re.IGNORECASE)
        for time in waiting:
            assert re.search(rf"for {time} with(out)? the|in a cold place for {time}\.", body)
