"""Every command line of the README and of the user's pages runs as it stands, or says why not.

A shell expands the blocks of a page and hands the words of each command to the program in this
process. A tiny random model and small files stand for published models and datasets.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from published_models import QWEN3, hollow_checkpoint

from analysis.files.shipped import DEMO_CHECKPOINT
from analysis.model.opening import load_model_index
from analysis.stats.manifest import measured_model
from analysis.stats.places import default_stats_dir
from analysis.stats.writing import save_expert_stats
from builders import tiny_model
from builders.statistics import expert_stats
from pruning.plan.plan_file import load_plan
from pruning.plan.sizes import size_report

ROOT = Path(__file__).parents[2]
# What stands before a block that is not run: it is part of the page.
REASON = re.compile(r"\*(Needs|Takes) [^*]+:\*\s*$")
# CI runs the one; tests/test_wheel.py starts the other's demo.
INSTALLATION = re.compile(r"<!-- tests -->\s*$|From a clone of this\s+repository:\s*$")
RECORDING = """
python() { echo "a page runs python $*" >&2; return 1; }  # it might install something
moeprune() { printf '%s\\x1f' "$@" >> commands; printf '\\n' >> commands; }
torchrun() { while [ "$1" != app.cli ]; do shift; done; shift; moeprune "$@"; }
set -eu
"""
HUB_ID = re.compile(r"[\w-]+/[\w.-]+\w")
COPIES = {"c4": "c4=copies", "evol-codealpaca": "evol-codealpaca=copies"}
# Half a minute and more; the other pages stand for them, and tests/test_docs.py reads every line.
LONG = ("evaluation", "pathfinder", "search", "sensitivity")
# They measure for long on the demo. README has the commands of the last, and what those of the
# others write is asked in test_shipped_records.py.
MEASURING = ("evaluation", "sensitivity", "repair")


def blocks(page):
    """The blocks of shell of a page that can be run here."""
    text = page.read_text()
    for found in re.finditer(r"^```bash\n(.*?)^```", text, flags=re.S | re.M):
        before = text[: found.start()]
        if not REASON.search(before) and not INSTALLATION.search(before):
            yield found[1]


def pages():
    for folder in (".", "docs/guide", "docs/concepts", "docs/reference"):
        for page in sorted((ROOT / folder).glob("*.md")):
            if list(blocks(page)):
                slow = [pytest.mark.slow] * (page.stem in LONG)
                yield pytest.param(page, id=page.stem, marks=slow)


def commands_of(page, folder):
    """The words of each command of a page, as a shell expands them."""
    subprocess.run(["bash", "-c", RECORDING + "".join(blocks(page))], cwd=folder, check=True)
    return [line.split("\x1f")[:-1] for line in (folder / "commands").read_text().splitlines()]


def offline(words):
    """The words with what only the hub has replaced by what is here."""
    reads = words[0] in ("calibrate", "evaluate")
    words = ["MODEL" if HUB_ID.fullmatch(word) else word for word in words]
    return [COPIES.get(word, word) if reads else word for word in words]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with what the pages name: a tiny model, corpora, the shipped searches."""
    root = tmp_path_factory.mktemp("docs")
    model = tiny_model("olmoe", vocab_size=2048, num_experts=16, intermediate_size=128)
    model.save_pretrained(root / "MODEL")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(DEMO_CHECKPOINT / name, root / "MODEL")
    texts = [f"Document {number} is about the number {number * 7}. " * 9 for number in range(48)]
    for name in ("text.jsonl", "c4-copy/part.jsonl"):
        write(root / name, [{"text": text} for text in texts])
    write(root / "held-out.jsonl", [{"text": f"Held out. {text}"} for text in texts])
    write(
        root / "rows.jsonl",
        [{"prompt": text[:40], "response": text, "content": text} for text in texts],
    )
    write(
        root / "copies" / "part.jsonl",
        [{"text": text, "instruction": text[:40], "output": text} for text in texts],
    )
    pd.DataFrame({"question": texts, "answer": texts}).to_parquet(root / "pairs.parquet")
    shutil.copytree(ROOT / "cached_stats" / "searches", root / "cached_stats" / "searches")
    return root


def write(path, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize("document", list(pages()))
def test_the_commands_of_a_page_run(document, prepared, here, works):
    for words in lines_in(here, document, prepared):
        print("moeprune", *words)
        works(*words)


def lines_in(folder, document, prepared):
    """The words of each command of a page, for a folder that gets what the page names."""
    shutil.copytree(prepared, folder, dirs_exist_ok=True)
    text = document.read_text()
    for name, content in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", text, flags=re.S | re.M):
        (folder / name).write_text(content)
    return [offline(words) for words in commands_of(document, folder)]


# Folders with lines, in turn: in one process, as each would compile and import the program anew.
RUN = """
import json, os, sys
import app.cli
_, clone, *folders = sys.argv
assert app.cli.__file__.startswith(clone), app.cli.__file__
for folder in folders:
    os.chdir(folder)
    for words in json.load(open("lines.json")):
        sys.argv = ["moeprune", *words]
        try:
            app.cli.main()
        except SystemExit as ended:
            if ended.code:
                raise
"""
# The recipe that README shows the end of, and a calibration as large as the shipped one and newer.
MORE = (
    ("recipe", "init", "demo"),
    ("prune", "recipe.yaml"),
    ("calibrate", "demo", "--corpus", "demo-code", "--seq-len", "128", "--dtype", "float32"),
)


@pytest.fixture
def clones(tmp_path):
    """Two clones of the program as it is here, with nothing else but what is compiled of it.

    Each would compile it anew; it fits a source of the same time.
    """
    first = tmp_path / "first"
    for package in ("analysis", "app", "cached_stats", "pruning"):
        shutil.copytree(ROOT / package, first / package, ignore=shutil.ignore_patterns("*.pyc.*"))
    shutil.copy(ROOT / ".gitignore", first)
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "all")):
        subprocess.run([*git, *words], cwd=first, check=True)
    second = tmp_path / "second"
    subprocess.run(["git", "clone", "-q", first, second], check=True)
    for path in second.rglob("*.py"):
        shutil.copystat(first / path.relative_to(second), path)
    for cache in first.rglob("__pycache__"):
        shutil.copytree(cache, second / cache.relative_to(first))
    return first, second


def files_of(clone):
    """Each file of a clone but git's own, with its size and the time of its last change."""
    paths = [path for path in clone.rglob("*") if ".git" not in path.relative_to(clone).parts]
    stats = {path: path.stat() for path in paths if path.is_file()}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


@pytest.mark.slow  # test_shipped_records.py runs a command of each kind, in one tree
def test_clones_side_by_side_stay_as_they_are(forks, prepared, here, clones):
    """The commands on the demo of README and of pages, from two clones and with one home."""
    before = [files_of(clone) for clone in clones]
    readme, *others = (page for (page,), _, _ in pages() if page.stem not in MEASURING)
    assert readme.name == "README.md"
    ran = set()  # a page without a command that is new has nothing to show here
    folders = {clone: [] for clone in clones}
    for number, document in enumerate((readme, *others, readme)):
        is_again = number > len(others)
        folder, clone = here / str(number), clones[1 if is_again else number % 2]
        lines = [line for line in lines_in(folder, document, prepared) if "MODEL" not in line]
        commands = {words[0] for words in lines if "demo" in words}
        if not (is_again or commands - ran):
            continue
        ran |= commands
        (folder / "lines.json").write_text(json.dumps([*lines, *(() if number else MORE)]))
        folders[clone].append(folder)
    for clone in clones:
        places = {"PYTHONPATH": str(clone), "PYTHONDONTWRITEBYTECODE": "1"}
        words, environment = ("-c", RUN, clone, *folders[clone]), {**os.environ, **places}
        ended = forks.run(*words, folder=here, environment=environment)
        assert ended.code == 0, ended.err
    assert [files_of(clone) for clone in clones] == before
    for clone in clones:
        for cache in [*clone.rglob("__pycache__")]:
            shutil.rmtree(cache)
        words = ("git", "status", "--porcelain", "--ignored")
        assert subprocess.check_output(words, cwd=clone) == b""
    for name in ("reap.json", "reap-repaired.json", "reap.result.json", "demo.json"):
        first, again = ((here / str(number) / name).read_bytes() for number in (0, number))
        assert first == again


@pytest.mark.slow
def test_the_guide_plans_a_checkpoint_of_30b(here, works):
    """Word for word, but for what needs weights: real shapes, a hole for the data."""
    guide = ROOT / "docs" / "guide" / "prune-your-own-model.md"
    folder = here / "Qwen3-30B-A3B"
    hollow_checkpoint(folder, QWEN3)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_CHECKPOINT / name, folder)
    write(here / "copies" / "part.jsonl", [{"text": f"Document {n}. " * 99} for n in range(99)])
    model = load_model_index(str(folder))
    stats = expert_stats(0, "c4", measured_model(model))
    vectors = np.ones((len(stats.table), 2))
    save_expert_stats(default_stats_dir(), stats.manifest, stats.table, vectors)
    ran = []
    for words in commands_of(guide, here):
        if words[0] in ("inspect", "plans") or "--dry-run" in words or "reap" in words:
            print("moeprune", *words)
            ran.append(works(*[word.replace("MODEL", folder.name) for word in offline(words)]))
    assert len(ran) == 5
    assert "128" in ran[0]
    plan = load_plan(here / "olmoe-small.json")
    assert len({len(kept) for kept in plan.kept.values()}) == 1
    sizes = size_report(model, plan)
    assert 0.59 < sizes.bytes_after / sizes.bytes_before <= 0.6
