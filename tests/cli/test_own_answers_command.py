"""`moeprune calibrate --answers own`: another run, which says so; options and recipe keys."""

import json

import pytest

from builders import tiny_checkpoint
from pruning.recipe import Recipe

ROWS = [
    {"input_ids": [5, 6, 7, 8, 9], "labels": [-100, -100, -100, 8, 9]},
    {"input_ids": [10, 11, 12, 13], "labels": [-100, -100, 12, 13]},
]
COMMON = ("--corpus", "rows.jsonl", "--tokens", "64", "--stats-dir", "stats", "--dtype", "float64")
OWN = ("--answers", "own", "--answer-tokens", "3")


@pytest.fixture
def model(here):
    tiny_checkpoint(here / "model", "olmoe")
    (here / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return "model"


def test_own_answers_make_a_run_of_their_own(works, model, here):
    works("calibrate", model, *COMMON, "--count", "response")
    works("calibrate", model, *COMMON, *OWN, "--count", "response")
    works("calibrate", model, *COMMON, *OWN)
    made = [json.loads(path.read_text()) for path in (here / "stats").glob("*/manifest.json")]
    assert len({each["digest"] for each in made}) == 3
    own = [each["corpora"][0] for each in made if "answers" in each["corpora"][0]["prepared"]]
    assert [each["prepared"]["answers"]["max_new_tokens"] for each in own] == [3, 3]
    # Prompts of 3 and 2 tokens, answers of 3; the response alone, or all.
    assert {each["num_tokens"] for each in own} == {11}
    assert sorted(each["num_counted"] for each in own) == [6, 11]
    listed = works("runs", "list", "--stats-dir", "stats").splitlines()
    mine = [line.split() for line in listed if line.startswith("model-rows")]
    assert sorted(line[-1] for line in mine) == ["given", "own", "own"]
    # Greedy: the same again, so the cache has it.
    assert "stats" in works("calibrate", model, *COMMON, *OWN)
    assert len(list((here / "stats").glob("*/manifest.json"))) == 3


def test_a_dry_run_writes_no_answers(works, model, here):
    said = works("calibrate", model, *COMMON, *OWN, "--dry-run")
    assert "Nothing was run." in said
    assert not (here / "stats").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--answer-tokens", "3"), "--answer-tokens belongs to --answers own"),
        ((*OWN, "--stream-layers"), "leave --stream-layers out"),
        (("--answers", "mine"), "answers"),
    ],
)
def test_bad_input_is_one_line(moeprune, model, words, message):
    ended = moeprune("calibrate", model, *COMMON, *words)
    assert ended.code != 0
    assert message in ended.err
    assert "Traceback" not in ended.err


def test_text_without_prompts_is_refused(moeprune, model, here):
    (here / "text.txt").write_text("letters\n")
    ended = moeprune("calibrate", "demo", "--corpus", "text.txt", *COMMON[2:], *OWN)
    assert ended.code == 1
    assert "nothing is a response; --answers own needs a corpus of prompts and answers" in ended.err
    assert "--count all" not in ended.err


def test_recipes_have_the_key_and_keep_their_digests():
    plain = {
        "model": "demo",
        "corpora": ["demo-math"],
        "criterion": "reap",
        "budget": {"sparsity": "50%"},
    }
    given, own = (
        Recipe.model_validate({**plain, "calibrate": {"answers": answers}})
        for answers in ("given", "own")
    )
    assert given.digest == Recipe.model_validate(plain).digest
    assert own.digest != given.digest
