"""A corpus that is removed, cut short or replaced between two of the times that it is read."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from harness_index import one_index_of_the_harness  # noqa: F401

from analysis.drain import drain
from analysis.errors import UserError
from analysis.model.opening import load_model_index
from builders import tiny_checkpoint
from builders.tokens import random_ids
from pruning.plan.plan import keep_all
from pruning.requests.benchmark import BenchmarkRequest
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.evaluation import EvaluateRequest
from pruning.requests.model import WeightsRequest
from pruning.requests.recipe_steps import SearchRequest
from pruning.tasks.benchmark import benchmark_run
from pruning.tasks.calibration import calibrate_run, weights_run
from pruning.tasks.evaluation import evaluate_run
from pruning.tasks.search import search_run
from tools.reliability.kills import artifacts

ROWS = 40


class Opened:
    """Does something just before a file is opened for the so-manieth time.

    Python has no way to take an audit hook off again, so there is one for the rest of the process,
    from the first test on.
    """

    def __init__(self):
        self.path, self.count, self.number, self.act = None, 0, 0, None
        self._is_heard = False

    def listen(self):
        if not self._is_heard:
            sys.addaudithook(self._hear)
            self._is_heard = True

    def _hear(self, event, arguments):
        if event != "open" or self.path is None or arguments[0] != str(self.path):
            return
        self.count += 1
        if self.count == self.number:
            path, self.path = self.path, None  # what is done opens it, too
            self.act(path)
            self.path = path


OPENED = Opened()


@pytest.fixture(autouse=True)
def _watching_nothing_afterwards():
    OPENED.listen()
    yield
    OPENED.path = None


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    tiny_checkpoint(root / "model", "olmoe")
    rows(root / "text.jsonl", 0)
    drain(weights_run(WeightsRequest(model=str(root / "model"), stats_dir=root / "weights")))
    return root


def rows(path, seed):
    random_ids(path, (ROWS, 16), seed)


def calibrated(root, text, out):
    asked = {"model": str(root / "model"), "corpus": str(text), "stats_dir": out}
    drain(calibrate_run(CalibrateRequest(**asked, tokens=400, seq_len=16)))


def evaluated(root, text, out):
    plan = keep_all(load_model_index(str(root / "model")))
    plan = {**plan.to_dict(), "kept": {"0": [0, 1, 2], "1": [3, 4, 5]}}
    asked = {"model": str(root / "model"), "corpora": (str(text),), "stats_dir": out}
    drain(evaluate_run(EvaluateRequest(**asked, plans=(plan,), samples=24, seq_len=16)))


def searched(root, text, out):
    shutil.copytree(root / "weights", out, dirs_exist_ok=True)
    few = {"population": 4, "elites": 2, "generations": 1}
    recipe = {
        "model": str(root / "model"),
        "criterion": "aimer",
        "seq_len": 16,
        "budget": {"sparsity": "40%"},
        "search": {"corpus": str(text), "samples": 24, **few},
    }
    drain(search_run(SearchRequest(recipe=json.dumps(recipe), out=out / "search", stats_dir=out)))


def removed(path):
    path.unlink()


def cut_short(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])


def replaced(path):
    rows(path, 1)


# Each work and each damage once; the other pairs are slow.
@pytest.mark.parametrize(
    ("work", "damage"),
    [
        pytest.param(work, damage, marks=() if number == place else pytest.mark.slow)
        for number, work in enumerate((evaluated, searched, calibrated))
        for place, damage in enumerate((replaced, cut_short, removed))
    ],
)
def test_a_corpus_that_changes(world, tmp_path, work, damage):
    text = Path(shutil.copy(world / "text.jsonl", tmp_path))
    OPENED.path, OPENED.count, OPENED.number = text, 0, 0
    work(world, text, tmp_path / "once")
    times = OPENED.count
    assert times >= 2
    wanted = artifacts(tmp_path / "once")
    refused = 0
    for number in range(2, times + 1):
        shutil.copy(world / "text.jsonl", text)
        out = tmp_path / str(number)
        out.mkdir()
        if work is searched:
            shutil.copytree(world / "weights", out, dirs_exist_ok=True)
        given = artifacts(out)
        OPENED.count, OPENED.number, OPENED.act = 0, number, damage
        try:
            work(world, text, out)
        except (UserError, OSError) as error:
            assert "\n" not in str(error)
            assert artifacts(out) == given
            refused += 1
        else:
            assert artifacts(out) == wanted
    assert refused >= 1


@pytest.mark.slow
@pytest.mark.usefixtures("one_index_of_the_harness")
def test_local_benchmarks_that_vanish(tmp_path):
    request = BenchmarkRequest(
        model="demo", tasks="demo-code-mc", limit=2, stats_dir=tmp_path / "once"
    )
    steps = list(benchmark_run(request))
    (wanted,) = (tmp_path / "once").rglob("benchmarks/*.json")
    scores = json.loads(wanted.read_bytes())["scores"]
    ended = 0
    for step in range(min(len(steps), 4)):
        stats = tmp_path / str(step)
        task = benchmark_run(request.model_copy(update={"stats_dir": stats}))
        try:
            for number, _ in enumerate(task):
                if number == step:
                    shutil.rmtree(stats / "benchmark-tasks", ignore_errors=True)
        except (UserError, OSError) as error:
            assert "\n" not in str(error)
            assert not list(stats.rglob("benchmarks/*.json"))
            ended += 1
        else:
            (record,) = stats.rglob("benchmarks/*.json")
            assert json.loads(record.read_bytes())["scores"] == scores
    assert ended >= 1
