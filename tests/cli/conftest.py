"""The command line in a folder of its own, and small models to use it on."""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from folder_tree import tree

from analysis.drain import drain
from analysis.stats.store import StatsStore
from app.cli import main
from app.progress_shown import Lines
from builders import VOCAB, tiny_checkpoint
from builders.tokens import write_ids
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.model import WeightsRequest
from pruning.tasks.calibration import calibrate_run, weights_run

# Tiny matrices: a second thread only waits for the first.
torch.set_num_threads(1)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def invoke(words, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["moeprune", *map(str, words)])
    # What a log says after ten seconds depends on how fast the machine is.
    monkeypatch.setitem(Lines.__init__.__kwdefaults__, "quiet_seconds", math.inf)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    return Outcome(int(ended.value.code or 0), printed.out, printed.err)


@pytest.fixture
def moeprune(here, capsys, monkeypatch):
    """Run a command in this process; it may use nothing of the user's."""
    return lambda *words: invoke(words, capsys, monkeypatch)


@pytest.fixture
def works(moeprune):
    """Run a command that should work; its standard output."""

    def run(*words):
        outcome = moeprune(*words)
        assert outcome.code == 0, outcome.err
        # Notes may stand there, such as that a run is in the cache already.
        assert "error" not in outcome.err
        return outcome.out

    return run


@pytest.fixture
def refused(moeprune, tmp_path):
    """Run a command that must be refused in one line and leave nothing; its message."""

    def run(*words, codes=(1,)):
        before = tree(tmp_path)
        outcome = moeprune(*words)
        assert outcome.code in codes, outcome
        assert outcome.out == ""
        assert outcome.err.startswith("error: ")
        assert outcome.err.count("\n") == 1
        assert outcome.err.endswith("\n")
        assert tree(tmp_path) == before
        return outcome.err

    return run


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, and a home and a state folder beside it."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name, value in user_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    return folder


def user_environment(root: Path) -> dict[str, str]:
    home = root / "home"
    return {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "MOEPRUNE_STATE_DIR": str(root / "state"),
        "MOEPRUNE_STATS_DIR": "",
        "MOEPRUNE_MODELS_ROOT": "",
        "MOEPRUNE_EXPORT_ROOT": str(root / "exports"),
        # Nothing here may reach for the network, should a name pass for one of the hub.
        "HF_HUB_OFFLINE": "1",
    }


def write_rows(path: Path, seed: int, rows: int = 6, length: int = 9) -> Path:
    """A pre-tokenised corpus; the rows differ in length, so batches are padded."""
    generator = np.random.default_rng(seed)
    return write_ids(path, (generator.integers(3, VOCAB, length - n % 3) for n in range(rows)))


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folder with `tiny`, Qwen3-MoE, and `other`, OLMoE; neither has a tokenizer."""
    root = tmp_path_factory.mktemp("models")
    tiny_checkpoint(root / "tiny", "qwen3_moe")
    tiny_checkpoint(root / "other", "olmoe", seed=1)
    return root


@pytest.fixture(scope="session")
def corpora(tmp_path_factory):
    root = tmp_path_factory.mktemp("corpora")
    return [write_rows(root / f"{name}.jsonl", seed) for seed, name in enumerate(("red", "blue"))]


@pytest.fixture
def tiny(models):
    """Sparse layers 0, 2, 3 of 6 experts, top-2; layer 1 is dense."""
    return models / "tiny"


@pytest.fixture
def other(models):
    """Layers 0, 1, 2 of 7 experts, top-2."""
    return models / "other"


@pytest.fixture
def recipe(tiny, corpora, here):
    """Write a recipe for `tiny` with these keys changed; None leaves one out."""

    def write(**changes):
        keys = {
            "model": str(tiny),
            "corpora": [str(corpora[0])],
            "tokens": 64,
            "seq_len": 16,
            "criterion": "frequency",
            "budget": {"sparsity": "50%"},
            **changes,
        }
        # JSON is YAML.
        text = json.dumps({key: value for key, value in keys.items() if value is not None})
        (here / "r.yaml").write_text(f"# mine\n{text}\n")
        return here / "r.yaml"

    return write


@pytest.fixture(scope="session")
def stats(models, corpora, tmp_path_factory):
    """Statistics of `tiny` on two corpora, of its weights, and of `other` on one corpus."""
    folder = tmp_path_factory.mktemp("stats")
    wanted = [("tiny", corpora[0]), ("tiny", corpora[1]), ("other", corpora[0])]
    for model, corpus in wanted:
        request = CalibrateRequest(
            model=str(models / model), corpus=str(corpus), tokens=64, seq_len=16, stats_dir=folder
        )
        drain(calibrate_run(request))
    drain(weights_run(WeightsRequest(model=str(models / "tiny"), stats_dir=folder)))
    return folder


@pytest.fixture
def run_ids(stats):
    """Ids of the runs by (model, corpus); the weights' corpus is empty."""
    return {
        (run.manifest.model.name, Path(run.manifest.corpus).stem): run.manifest.run_id
        for run in StatsStore(stats).runs()
    }
