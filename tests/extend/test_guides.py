"""The guides for what is added most, followed to the letter in a copy of the project.

Their titled blocks are the patch: a block of code is a new file, a diff changes one that is there.
The first shell block after them has the tests that must pass then.
"""

import os
import re
import shlex
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from analysis.families.base import MoEFamily

ROOT = Path(__file__).parents[2]
# Guide, and the heading of its example where it has two -> how many product files it may touch: one
# of its own, and the table with its line; of an option what asks for it, and what uses it.
GUIDES = {
    ("an-action", ""): 2,
    ("a-criterion", ""): 2,
    ("a-chart", ""): 2,
    ("a-family", ""): 2,
    ("a-schedule", ""): 2,
    ("a-page", ""): 2,
    ("an-option", "One of a plan"): 2,
    ("an-option", "One of a command"): 2,
}
# What is compiled is copied too, as a copy would compile it anew; it fits sources of the same time.
# A name with more behind is of what another process is writing.
BEING_WRITTEN = shutil.ignore_patterns("*.pyc.*")
PRODUCT = ("app/", "analysis/", "pruning/")
COPIED = ("app", "analysis", "pruning", "tests", "tools", "docs")
RUN = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
BLOCK = re.compile(r'^```(python|diff) title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)


def text_of(guide, heading=""):
    """A guide from a heading on, up to the next."""
    page = (ROOT / f"docs/dev/adding-{guide}.md").read_text(encoding="utf-8")
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0] if heading else page


def blocks(guide, heading):
    """Kind, path and text of each titled block of an example."""
    return BLOCK.findall(text_of(guide, heading))


def command(guide, heading):
    """The first shell block of an example: one command."""
    text = text_of(guide, heading)
    return re.search(r"^```bash\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)[1]


def changed(text, diff):
    """A file's text with a block of lines changed, which must stand there once."""
    lines = diff.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] in " -")
    after = "".join(line[1:] for line in lines if line[0] in " +")
    assert text.count(before) == 1, before
    return text.replace(before, after)


@pytest.fixture
def copy(tmp_path):
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=BEING_WRITTEN)
    (tmp_path / "cached_stats").symlink_to(ROOT / "cached_stats")
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    return tmp_path


def without_mellum(copy):
    """Take out the family that its guide adds."""
    families = copy / "analysis/families"
    lineage = (families / "qwen_moe.py").read_text()
    start = lineage.index("MELLUM = replace(")
    end = lineage.index("\n)\n", start) + 3
    (families / "qwen_moe.py").write_text(lineage[:start] + lineage[end:])
    listing = (families / "listing.py").read_text()
    (families / "listing.py").write_text(listing.replace("    MELLUM,\n", ""))
    configs = copy / "tests/families/configs.py"
    text = configs.read_text()
    first = text.index('    _case(\n        *("mellum"')
    configs.write_text(text[:first] + text[text.index("    _case(", first + 9) :])
    physical = copy / "tests/families/physical.py"
    physical.write_text(physical.read_text().replace('"mellum", ', ""))


@pytest.mark.parametrize(("guide", "heading"), [key for key in GUIDES if key[0] != "a-family"])
def test_the_changes_of_a_guide_fit_what_is_there(guide, heading):
    texts = {}
    for kind, path, text in blocks(guide, heading):
        if kind == "python":
            assert not (ROOT / path).exists()
            compile(text, path, "exec")
        else:
            texts[path] = changed(texts.get(path, (ROOT / path).read_text()), text)
    assert texts


def test_the_guide_of_families_asks_for_every_field():
    page = text_of("a-family")
    names = {field.name for field in fields(MoEFamily)} - {"discovered", "assumptions"}
    assert [name for name in names if not re.search(rf"\b{name}\b", page)] == []


@pytest.mark.slow  # each copies the project and runs the tests of its registry there
@pytest.mark.parametrize(("guide", "heading"), GUIDES)
def test_a_guide_followed_to_the_letter_passes_conformance(guide, heading, copy, forks):
    if guide == "a-family":
        without_mellum(copy)
    touched = set()
    for kind, path, text in blocks(guide, heading):
        target = copy / path
        assert target.exists() == (kind == "diff"), path
        target.write_text(text if kind == "python" else changed(target.read_text(), text))
        touched.add(path)
    assert sum(path.startswith(PRODUCT) for path in touched) == GUIDES[guide, heading]
    assert any(path.startswith("tests/") for path in touched)
    program, *words = shlex.split(command(guide, heading))
    assert program == "pytest"
    # Each worker would import the libraries anew, too; plugins are among what is imported already.
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    # Without what this run of pytest has set.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    places = ours | {"PYTHONPATH": str(copy)}
    words = ["-c", RUN, *options, *words, "-n", "0"]
    ended = forks.run(*words, folder=copy, environment=places)
    assert ended.code == 0, ended.out[-3000:]
    assert " passed" in ended.out
