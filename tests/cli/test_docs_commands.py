"""Every command line of the README and of the user's pages runs as it stands, or says why not.

A shell expands the blocks of a page and hands the words of each command to the program in this
process. A tiny random model and small files stand for published models and datasets.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from published_models import QWEN3, hollow_checkpoint

from analysis.model import DEMO_CHECKPOINT, load_model_index
from analysis.stats.places import default_stats_dir
from analysis.stats.store import save_expert_stats
from analysis.stats.tables import measured_model
from builders import tiny_model
from builders.statistics import expert_stats
from pruning.plan import load_plan
from pruning.sizes import size_report

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
    shutil.copytree(prepared, here, dirs_exist_ok=True)
    text = document.read_text()
    for name, content in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", text, flags=re.S | re.M):
        Path(name).write_text(content)
    for words in commands_of(document, here):
        print("moeprune", *words)
        works(*offline(words))


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
            ran.append(works(*[each.replace("MODEL", folder.name) for each in offline(words)]))
    assert len(ran) == 5
    assert "128" in ran[0]
    plan = load_plan(here / "olmoe-small.json")
    assert len({len(kept) for kept in plan.kept.values()}) == 1
    sizes = size_report(model, plan)
    assert 0.59 < sizes.bytes_after / sizes.bytes_before <= 0.6
