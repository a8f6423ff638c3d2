"""Runs on disk that no model made, and the demo's tokenizer."""

import pytest
from calibrations import describe
from threads import one_thread  # noqa: F401

from analysis.calibration.loading import load_tokenizer
from analysis.model.opening import load_model_index
from analysis.stats.columns import GROUP_COLUMNS
from analysis.stats.grid import Grid
from analysis.stats.writing import save_expert_stats
from builders.statistics import random_columns, run_manifest


@pytest.fixture(scope="module")
def tokenizer():
    """The demo's; a test that needs another chat template sets it."""
    return load_tokenizer(load_model_index("demo"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A Qwen3-MoE: sparse layers 0, 2, 3 of 6 experts, top-2; layer 1 is dense."""
    return describe(tmp_path_factory.mktemp("models") / "tiny", "qwen3_moe")


@pytest.fixture
def save_run(tmp_path):
    """A calibration run in a directory, made of random but consistent sums; without neurons."""

    def save(
        seed,
        *,
        counts=(5, 3),
        corpora=("prose",),
        identity="tiny",
        dtype="float32",
        parent=None,
        repeat=1,
    ):
        columns, vectors = random_columns(seed, sum(counts))
        manifest = run_manifest(counts, corpora, identity, dtype)
        columns = columns.drop(columns=list(GROUP_COLUMNS["gradient"]))
        table = Grid(manifest.model.layers).index().join(columns * repeat)
        return save_expert_stats(parent or tmp_path / "stats", manifest, table, vectors * repeat)

    return save
