"""The pages written from the code: they say what `--help` says, and what is missing is an error."""

import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import cli
from app.cli.help import EVERYWHERE
from pruning.serving.engine_results import results
from tools.reference.commands import all_commands, commands, options_of
from tools.reference.compatibility import engine_matrix
from tools.reference.families import families
from tools.reference.pages import PARTS, stale, write

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "function"),
    list(all_commands()),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_reference_names_the_options_that_help_names(words, function):
    said = CliRunner().invoke(cli, [*words.split(), "--help"]).output
    rows = [line.strip() for line in said.splitlines() if line.startswith("  -")]
    words_of_rows = [re.split(" {2,}", row)[0].replace(",", "").split() for row in rows]
    named = {word for words in words_of_rows for word in words if word.startswith("-")}
    assert options_of(function) == named - {"--help", "-h", *EVERYWHERE}


def test_families_that_are_dense_as_a_whole_have_no_single_dense_layers():
    rows = families(ROOT).splitlines()
    whole = {row.split("`")[1] for row in rows if "in all layers or none" in row}
    assert whole == {"granitemoehybrid", "gemma4", "gemma4_text"}
    some = {row.split("`")[1] for row in rows if "some layers may be dense" in row}
    assert {"qwen3_moe", "jamba"} <= some
    assert not whole & some


def test_the_groups_that_help_names_are_the_ones_listed():
    said = CliRunner().invoke(cli, ["--help"]).output
    listed = {words.split()[0] for words, _ in all_commands()}
    named = {line.split()[0] for line in said.splitlines() if re.match(r"^  [a-z][a-z-]* ", line)}
    assert named == listed


def test_defaults_and_switches_are_as_a_person_types_them():
    section = commands(ROOT).partition("### moeprune calibrate\n")[2].partition("###")[0]
    assert "| `--resume`, `--no-resume` | | `--resume` |" in section
    assert "| `--batch-size` | `SEQUENCES` | `8` |" in section
    assert "| `--stream-layers` | | | Load one layer" in section
    assert re.search(r"\| `MODEL` \| \| required \|", section)
    assert re.search(r"\| `--corpus` \| `CORPUS` \| required \| .* Repeatable", section)


@pytest.fixture
def pages(tmp_path):
    """A copy of the pages."""
    for part in PARTS:
        (tmp_path / part.page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / part.page, tmp_path / part.page)
    return tmp_path


@pytest.mark.slow
def test_a_page_that_says_something_else_is_stale_until_it_is_written(pages):
    write(pages)
    assert stale(pages) == {}
    page = pages / "docs" / "reference" / "criteria.md"
    right = page.read_text()
    page.write_text(right.replace("| `reap` |", "| `reaper` |"))
    assert list(stale(pages)) == [page]
    assert write(pages) == [page]
    assert page.read_text() == right


def test_the_matrix_of_engines_has_a_word_for_every_family_and_the_counts_of_the_results():
    lines = [line.split(" | ") for line in engine_matrix(ROOT).splitlines()[2:]]
    rows = [row for row in results() if row.cut == "experts"]
    assert {line[0].strip("| `") for line in lines} == {row.case for row in rows}
    assert {word.strip(" |") for line in lines for word in line[1:]} == {
        *("works", "rounds", "wrong", "fails", "not tried")
    }
    works = sum(word.strip(" |") == "works" for line in lines for word in line[1:])
    assert works == sum(row.works for row in rows)
