"""Checks of answers: the rules, how corpora name them, and what a model is asked."""

import json
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

import pytest

from analysis.corpora.checks import CHECKS, last_number
from analysis.corpora.documents import Document
from analysis.corpora.encoding import TextReader
from analysis.corpora.prompts import document_prompt, question_text
from analysis.corpora.sources import local_source
from analysis.corpora.spec import CHECK_NAMES, corpus_name, is_same_corpus, parse_corpus
from analysis.demo.listing import DEMO_CORPORA
from analysis.demo.texts import demo_text
from analysis.errors import CorpusError

FUNCTION = json.dumps({"head": "def f(x):", "cases": [[[2, 3], 5], [[], 0]]})
RIGHT = [
    ("exact", " forty\n two ", "forty two"),
    ("number", "16 * 28 = 448 dollars. The answer is 448.", "448"),
    ("number", "It is 1,234,567.50", "1234567.5"),
    ("number", "x = -3", "#### -3"),
    ("number", "x = \u22123", "-3"),
    ("number", "8-3", "3"),
    ("number", "8 - 3", "3"),
    ("number", "He pays $-5.", "-$5"),
    ("number", "**$1,000**", "1000.0"),
    ("number", "0.50", "1/2"),
    ("number", "1, 2 and 3", "3"),
    ("number", "1,2,3", "3"),
    ("number", "about 5%", "5"),
    ("number", ".25", "0.25"),
    ("number", "12 km", "12 miles"),
    ("number", "0.00001", str(0.00001)),  # which Python writes as 1e-05
    ("number", "1.5E3", "1500"),
    ("number", "on 12/24/", "24"),
    ("contains", "The key is in the\nRed Box.", "red box"),
    ("contains", "C++!", "c++"),
    ("function", "\n    return sum(x)\n", FUNCTION),
    ("function", "\n    n = 0\n    for a in x:\n        n += a\n    return n\n\ndef g", FUNCTION),
]
WRONG = [
    ("exact", "Forty two", "forty two"),
    ("exact", "", "forty two"),
    ("number", "The answer is 5", "-5"),
    ("number", "5 or 6", "5"),
    ("number", "", "5"),
    ("number", "none", "5"),
    ("number", "v2", "2"),
    ("number", "3/2", "1/2"),
    ("number", "1/0", "1"),
    ("number", "12,34", "1234"),
    ("number", "5", str(0.00001)),
    ("number", "1e999999999", "0"),
    ("number", "9" * 100_000, "9"),
    ("contains", "The keyboard", "key"),
    ("contains", "the box, red", "red box"),
    ("contains", "", "red"),
    ("function", "\n    return len(x)\n", FUNCTION),
    ("function", "\n    return sum(x) or None\n", FUNCTION),  # right in one of two cases
    ("function", "5", FUNCTION),
    ("function", "", FUNCTION),
]


def test_every_name_of_a_check_has_its_rule():
    assert tuple(CHECKS) == CHECK_NAMES


@pytest.mark.parametrize(("rule", "written", "answer"), RIGHT + WRONG)
def test_right_answers_are_right_and_others_wrong(rule, written, answer):
    assert CHECKS[rule].right(written, answer) is ((rule, written, answer) in RIGHT)


def test_numbers_are_exact():
    # 0.1 + 0.2 differs from 0.3 in binary; 2^53 + 1 is no float.
    assert last_number("0.3") == Fraction(3, 10)
    assert last_number("9,007,199,254,740,993") == 2**53 + 1


@pytest.mark.parametrize(
    ("rule", "answer"),
    [
        *(("number", "none"), ("exact", " "), ("contains", "\n")),
        *(
            ("function", answer)
            for answer in (
                *("5", "def f(x):", "[]", "[" * 100_000),
                *('{"head": "def f(x):"}', '{"head": "def f(x):", "cases": []}'),
                '{"head": "def f(x):", "cases": [[[1]]]}',
                '{"head": "def f(x):", "cases": [[[1], 1], [2, 3]]}',  # 2 is no list to call with
            )
        ),
    ],
)
def test_answers_that_cannot_be_checked_are_known(rule, answer):
    assert not CHECKS[rule].fits(answer)


def test_the_answers_of_the_demo_can_be_checked():
    for corpus in DEMO_CORPORA.values():
        for text in (demo_text(corpus.name, number) for number in range(50)):
            assert CHECKS[corpus.check].fits(text.answer)
            assert CHECKS[corpus.check].right(text.response, text.answer)


def rows_file(folder, *rows):
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def documents(corpus):
    return sorted(local_source(parse_corpus(corpus)).draw(0), key=lambda document: document.where)


USER = {"role": "user", "content": "2 + 2?"}
FOUR = {"role": "assistant", "content": "4"}


def test_answers_are_read_from_a_column_of_any_name(tmp_path):
    path = rows_file(
        tmp_path,
        {"messages": [USER, FOUR], "sum": 4},
        {"text": "2 + 2 is ", "sum": "4"},
        {"prompt": "2 + 2?", "response": "four", "sum": "4"},
        {"prompt": "2 + 2?", "sum": 4},
        {"prompt": "2 + 2?", "completion": "four", "sum": "4"},
        {"text": "no answer"},
    )
    found = documents(f"{path},answer=sum,check=number")
    assert [document.expected for document in found] == ["4"] * 5 + [None]
    answers = [(document.messages or [{}])[-1].get("content") for document in found]
    assert answers == ["4", None, "four", "4", "four", None]
    assert all(
        document.expected is None for document in documents(str(path)) if document.problem is None
    )


def test_a_check_changes_no_corpus(tmp_path):
    """What calibration read under one name must be known under the other."""
    path = rows_file(tmp_path, {"text": "2 + 2 is 4", "sum": 4})
    plain, checked = corpus_name(str(path)), corpus_name(f"{path},answer=sum,check=number")
    assert plain == checked
    assert is_same_corpus(corpus_name(f"{path},text=a,check=exact"), corpus_name(f"{path},text=a"))
    assert corpus_name("hub:a/b,text=c,check=number,answer=d") == "hub:a/b,text=c"


def test_a_named_prompt_takes_its_answer_as_the_response(tmp_path):
    path = rows_file(tmp_path, {"question": "2 + 3?", "result": 5})
    (document,) = documents(f"{path},prompt=question,answer=result,check=number")
    assert [turn["content"] for turn in document.messages] == ["2 + 3?", "5"]
    assert document.expected == "5"
    name = corpus_name(f"{path},prompt=question,answer=result,check=number")
    assert name == corpus_name(f"{path},prompt=question,response=result")


class Letters:
    """Ids as characters, with an end behind every text; 0 begins and 1 ends."""

    eos_token_id = 1
    special_tokens_map = MappingProxyType({"bos_token": "<s>"})

    def encode(self, text, *, add_special_tokens):
        ids = list(map(ord, text))
        return [0, *ids, 1] if add_special_tokens else ids

    def get_chat_template(self, *, tools=None):
        return (
            "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}"
        )


def prompt_of(document):
    ids = document_prompt(document, TextReader(Letters(), "A row"))
    return "".join(map(chr, ids))


def test_a_prompt_ends_where_the_answer_begins():
    earlier = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"})
    conversation = Document(messages=(*earlier, USER, FOUR))
    wanted = "[user]hi[assistant]hello[user]2 + 2?[assistant]"
    assert prompt_of(conversation) == wanted
    assert prompt_of(Document(messages=(*earlier, USER))) == wanted
    assert question_text(conversation) == question_text(Document(messages=(*earlier, USER)))
    assert question_text(conversation) != question_text(Document(messages=(USER,)))


def test_a_prompt_of_text_ends_where_a_token_does():
    assert prompt_of(Document(text="def f(x):\n    return \n")) == "\0def f(x):\n    return"


@pytest.mark.parametrize(
    ("document", "problem"),
    [(Document(messages=(FOUR,)), "no turn before"), (Document(input_ids=(1, 2)), "token ids")],
)
def test_a_document_without_a_prompt_is_refused(document, problem):
    with pytest.raises(CorpusError, match=problem):
        prompt_of(document)


def test_the_guide_names_every_check():
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "corpora.md").read_text()
    for check in CHECKS.values():
        assert f"| `{check.name}` | {check.about} |" in guide
