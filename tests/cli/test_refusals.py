"""Refusals, word by word: a mistake gets the answer that a transcript of `refusals` has.

With --write-refusals, answers that differ are put into the transcripts.
"""

import shlex
import sys
from pathlib import Path

import pytest
import yaml
from folder_tree import tree
from transcripts import Case, answer_of, read_cases, rewrite
from wrong_files import write_recipe, write_wrong_files

from analysis.files.shipped import SHIPPED_STATS

PATHS = sorted(Path(__file__).parent.glob("refusals/*.txt"))
CASES = [case for path in PATHS for case in read_cases(path)]
EARLY = "before-torch"


def named(cases):
    return [pytest.param(case, id=f"{case.path.stem}: {case.command}") for case in cases]


@pytest.fixture
def places(here, tmp_path, models, corpora, stats, tiny, monkeypatch):
    """The places that transcripts name; the working directory has the files of `wrong_files`."""
    # Read when the library is first imported: a session with a network asks in vain as well.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("LLAMA_CPP", "PATH"):
        monkeypatch.delenv(name, raising=False)
    write_wrong_files(here)
    (here / "model").symlink_to(tiny)
    red, blue = corpora
    folders = {"here": here, "root": tmp_path, "shipped": SHIPPED_STATS, "stats": stats}
    folders["cache"] = tmp_path / "home" / "cache"
    return {**folders, "tiny": tiny, "other": models / "other", "red": red, "blue": blue}


@pytest.fixture
def answer(moeprune, places, tmp_path):
    """Run a command that must be refused and leave nothing; its answer as a transcript has it."""

    def run(command):
        for name, place in places.items():
            command = command.replace(f"{{{name}}}", str(place))
        command, _, changes = command.partition(" # ")
        if changes:
            write_recipe(places["here"], yaml.safe_load(changes))
        before = tree(tmp_path), tree(places["stats"])
        outcome = moeprune(*shlex.split(command))
        assert outcome.code in (1, 2), outcome
        assert outcome.out == ""
        assert outcome.err.startswith("error: ")
        assert outcome.err.endswith("\n") and not outcome.err.endswith("..\n")
        assert (tree(tmp_path), tree(places["stats"])) == before
        return answer_of(outcome.code, outcome.err, places)

    return run


@pytest.fixture
def no_torch(monkeypatch):
    """Importing torch, or a module of ours that does, is an error."""
    for name, module in list(sys.modules.items()):
        is_ours = name.startswith(("analysis.", "pruning."))
        if name == "torch" or (is_ours and "torch" in vars(module)):
            monkeypatch.setitem(sys.modules, name, None)


def check(case, answer, request):
    lines = answer(case.command)
    if case.fits(lines):
        return
    if not request.config.getoption("--write-refusals"):
        pytest.fail("\n".join(["The transcript has", *case.answer, "and now it is", *lines]))
    rewrite(case, lines)


@pytest.mark.parametrize("case", named(case for case in CASES if case.path.stem != EARLY))
def test_a_mistake_gets_the_answer_of_the_transcript(case, answer, request):
    check(case, answer, request)


@pytest.mark.parametrize("case", named(case for case in CASES if case.path.stem == EARLY))
def test_a_mistake_is_told_before_torch_is_imported(case, answer, no_torch, request):
    check(case, answer, request)


def test_no_command_is_in_the_transcripts_twice():
    commands = [case.command for case in CASES]
    assert len(commands) == len(set(commands)) > 300


def test_an_answer_fits_line_by_line_and_takes_the_place_of_another(tmp_path):
    path = tmp_path / "some.txt"
    path.write_text("# A head.\n$ moeprune a\nerror: b ...\n[2]\n$ moeprune c\n")
    first, second = read_cases(path)
    assert first.fits(("error: b 1", "[2]"))
    for answer in (("error: b 1",), ("error: (b) 1", "[2]"), ("error: b 1", "[3]"), ()):
        assert not first.fits(answer)
    assert second == Case(path, "c", ()) and not second.fits(("error: d",))
    rewrite(first, ("error: e",))
    rewrite(second, answer_of(2, f"error: {tmp_path}\n", {"here": tmp_path}))
    assert path.read_text().splitlines()[1:] == [
        *("$ moeprune a", "error: e", "$ moeprune c", "error: {here}", "[2]"),
    ]
