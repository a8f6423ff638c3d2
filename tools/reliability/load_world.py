"""Models and statistics of any size, made up in seconds, and the folders of a server on them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from servers import Server, an_unused_port, served

from analysis.calibration.weights import weight_statistics
from analysis.checkpoint.opening import open_checkpoint
from analysis.drain import drain
from analysis.files.naming import digest_of, run_name
from analysis.model.describing import describe_model
from analysis.model.moe_model import MoEModel
from analysis.stats.columns import EXPERT_COLUMNS, LARGEST
from analysis.stats.grid import Grid
from analysis.stats.manifest import CorpusRef, RunManifest, measured_model
from analysis.stats.store import StatsStore
from analysis.stats.writing import save_expert_stats
from tools.benchmarks.synthetic import write_checkpoint

MODEL = "large"
TEXTS = ("c4", "code", "math")
TOP_K = 8
TURNS = 3  # of what is timed
_WIDTHS = (16, 8)  # hidden size and expert width: no page reads weights
_VECTORS = 16


@dataclass(frozen=True)
class World:
    """The folders of a server; the model in it is called MODEL."""

    root: Path

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def stats(self) -> Path:
        return self.root / "stats"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def environment(self) -> dict[str, str]:
        """Of every process in this world."""
        return {
            **os.environ,
            "MOEPRUNE_STATE_DIR": str(self.state),
            "MOEPRUNE_STATS_DIR": str(self.stats),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
        }

    def printed(self, *words: object) -> str:
        """What a command prints in this world."""
        return subprocess.run(
            [sys.executable, "-m", "app.cli", *map(str, words)],
            env={**self.environment, "COLUMNS": "400"},
            cwd=self.root,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    @contextmanager
    def server(self) -> Iterator[Server]:
        words: Mapping[str, object] = {
            "--port": an_unused_port(),
            "--models-root": self.models,
            "--stats-dir": self.stats,
            "--export-root": self.root / "exports",
        }
        # Sessions that were left are forgotten at once, and not after two minutes.
        settings = self.root / ".streamlit" / "config.toml"
        settings.parent.mkdir(exist_ok=True)
        settings.write_text("[server]\ndisconnectedSessionTTL = 1\n")
        with served(
            ["app", *(word for item in words.items() for word in item)],
            log=self.root / "server.log",
            environment=self.environment,
            cwd=self.root,
        ) as server:
            yield server


def median_ms(action: Callable[[], object]) -> float:
    """Milliseconds that an action takes, the median of some turns."""
    seconds = []
    for _ in range(TURNS):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return median(seconds) * 1e3


def make_world(root: Path, layers: int, experts: int) -> World:
    """A model of so many layers and experts with three calibration runs and its weights' sums."""
    world = World(root)
    folder = world.models / MODEL
    folder.mkdir(parents=True)
    write_checkpoint(folder, layers, experts, _WIDTHS)
    model = describe_model(open_checkpoint(folder), name=MODEL)
    for seed, corpus in enumerate(TEXTS):
        store_run(world.stats, model, corpus, seed)
    drain(weight_statistics(model, StatsStore(world.stats)))
    return world


def store_run(stats_dir: Path, model: MoEModel, corpus: str, seed: int) -> None:
    """A calibration run with random sums, which no format can shrink."""
    grid = Grid(model.layers)
    generator = np.random.default_rng(seed)
    table = grid.index()
    columns = {
        name: generator.gamma(2.0, 500.0, len(table)) + 1
        for name in EXPERT_COLUMNS
        if name not in ("layer", "expert", "vector_sum_sq", LARGEST)
    }
    # At least what Cauchy and Schwarz allow: other sums are refused as damaged.
    columns["num_tokens"] = np.floor(columns["num_tokens"])
    least = columns["g0_f1"] ** 2 / columns["num_tokens"]
    columns["g0_f2"] = least * (1 + generator.random(len(table)))
    digest = digest_of({"corpus": corpus, "seed": seed})
    manifest = RunManifest(
        "routed",
        run_name(model.name, corpus, digest=digest),
        digest,
        measured_model(model),
        (CorpusRef(corpus, digest, 1, 1, 65536, 0, 0, 65536),),
        {"dtype": "bfloat16"},
        {},
        groups=("routed",),
    )
    vectors = generator.random((len(table), _VECTORS))
    save_expert_stats(stats_dir, manifest, table.assign(**columns), vectors)
