"""Mistakes that are told before torch is imported, and so within a second or two."""

import json
import shlex
import sys

import pytest

from analysis.model.opening import load_model_index

RECIPE = "model: demo\ncorpora: [demo-code]\ncriterion: reap\nbudget: {sparsity: 50%}\n"
FILES = {
    "short.txt": "A short text.\n\nAnd another.\n",
    "plan.json": json.dumps(
        {
            "schema_version": 1,
            "model": {"name": "demo", "identity": load_model_index("demo").identity},
            "kept": {"0": list(range(16))},
        }
    ),
    "hides.yaml": RECIPE + "export: {out: demo}\n",
    "empty.yaml": RECIPE + "export: {out: ''}\n",
    "gguf.yaml": RECIPE + "export: {out: new, gguf: q8_0}\n",
    "short.yaml": RECIPE + "evaluate: {corpus: short.txt}\n",
}
NO_FOLDER = "--stats-dir short.txt/stats"
TAKES_NOTHING = ["Nothing can be written to the statistics folder", "short.txt is a file)", "-dir"]
EARLY = {
    "calibrate demo --corpus short.txt": ["about 10 tokens, less than one sequence of 256; use a"],
    "evaluate demo --corpus short.txt": ["about 10 tokens, less than one sequence of 256; use a"],
    "prune short.yaml": ["about 10 tokens, less than one sequence of 256"],
    "calibrate {tiny} --corpus short.txt": [
        "no readable tokenizer; copy tokenizer.json",
        "or use a corpus of input_ids",
    ],
    "evaluate {tiny} --corpus demo-code": [
        "no readable tokenizer; copy tokenizer.json",
        "or use a corpus of input_ids",
    ],
    "calibrate demo --corpus demo-code --seq-len 1000000 --tokens 4000000": [
        "Sequences of 1,000,000 tokens are longer than the context of demo",
        "use a sequence length of 1024 or less",
    ],
    f"calibrate {{tiny}} --corpus {{red}} {NO_FOLDER}": TAKES_NOTHING,
    f"evaluate {{tiny}} --corpus {{red}} {NO_FOLDER}": TAKES_NOTHING,
    f"sweep {{tiny}} --corpus {{red}} --criterion random --sparsity 50% {NO_FOLDER}": TAKES_NOTHING,
    f"sensitivity {{tiny}} --corpus {{red}} --criterion random {NO_FOLDER}": TAKES_NOTHING,
    f"bins {{tiny}} --corpus {{red}} --criterion random {NO_FOLDER}": TAKES_NOTHING,
    f"variance {{tiny}} --corpus {{red}} {NO_FOLDER}": TAKES_NOTHING,
    f"weights {{tiny}} {NO_FOLDER}": TAKES_NOTHING,
    f"subsets demo --criterion reap --sparsity 50% --corpus demo-math {NO_FOLDER}": TAKES_NOTHING,
    f"repair demo --plan plan.json {NO_FOLDER}": TAKES_NOTHING,
    f"ask demo --prompt Hello {NO_FOLDER}": TAKES_NOTHING,
    "prune hides.yaml": ["a folder demo would be read in place of the model", "demo-pruned"],
    "prune empty.yaml": ["line 5: export.out: it is empty; name a folder"],
    "prune gguf.yaml": ["There is no convert_hf_to_gguf.py"],
}


@pytest.fixture
def files(here, monkeypatch):
    for name, content in FILES.items():
        (here / name).write_text(content)
    for name in ("LLAMA_CPP", "PATH"):
        monkeypatch.delenv(name, raising=False)
    return here


@pytest.fixture
def no_torch(monkeypatch):
    """Importing torch, or a module of ours that does, is an error."""
    for name, module in list(sys.modules.items()):
        is_ours = name.startswith(("analysis.", "pruning."))
        if name == "torch" or (is_ours and "torch" in vars(module)):
            monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("words", EARLY)
def test_a_mistake_is_told_before_torch_is_imported(refused, files, no_torch, words, tiny, corpora):
    message = refused(*shlex.split(words.format(tiny=tiny, red=corpora[0])))
    for part in EARLY[words]:
        assert part in message


def test_a_recipe_does_not_export_over_another_model(works, refused, files, other, monkeypatch):
    works("plan", other, "--criterion", "random", "--sparsity", "50%", "-o", "other.json")
    works("export", other, "done", "--plan", "other.json")
    (files / "over.yaml").write_text(RECIPE + "export: {out: done}\n")
    assert "done holds an export of other, not of demo" in refused("prune", "over.yaml")


def test_a_statistics_folder_that_is_read_only_still_gives_what_it_holds(
    works, moeprune, tiny, corpora, stats, monkeypatch
):
    def refuse(folder):
        return f"{folder} is read-only"

    monkeypatch.setattr("analysis.stats.store.unwritable", refuse)
    sizes = ("--tokens", 64, "--seq-len", 16, "--stats-dir", stats)
    assert "from the cache" in works("calibrate", tiny, "--corpus", corpora[0], *sizes)
