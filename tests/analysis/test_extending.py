"""Runs that gain groups: id, digest and old files stay; other texts and settings are refused."""

import json
from dataclasses import replace

import pytest
from calibrations import calibrated, describe, make_sequences

from analysis.content import file_sha256
from analysis.durable import write_durably
from analysis.errors import StatsError
from analysis.stats.merging import extend_run
from analysis.stats.store import (
    MANIFEST,
    SAMPLES,
    TRANSITIONS,
    Run,
    StatsStore,
    load_sample_stats,
    read_run,
)


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    return describe(tmp_path_factory.mktemp("tiny"), "olmoe")


@pytest.fixture
def run(described, tmp_path):
    return calibrated(described, tmp_path / "a")


@pytest.fixture(scope="module")
def other(described, tmp_path_factory):
    return calibrated(described, tmp_path_factory.mktemp("b"), groups=("routed", "router", "dense"))


def test_a_run_gains_groups_and_stays_the_same_run(run, other):
    before = {path.name: file_sha256(path) for path in run.path.iterdir()}
    extended = extend_run(run, other)
    again = read_run(run.path)
    assert again == extended
    assert (again.manifest.run_id, again.manifest.digest) == (
        run.manifest.run_id,
        run.manifest.digest,
    )
    assert again.manifest.groups == ("routed", "router", "dense")
    for name, digest in before.items():
        assert name == MANIFEST or file_sha256(run.path / name) == digest
    assert sorted(path.name for path in run.path.iterdir()) == sorted(
        [MANIFEST, *again.manifest.files]
    )
    StatsStore(run.path.parent).verify(again)
    assert (load_sample_stats(again).loss == load_sample_stats(other).loss).all()
    (added,) = again.manifest.made["added"]
    assert added["groups"] == ["router", "dense"]
    assert added["run"] == other.manifest.run_id
    assert added["made"] == other.manifest.made
    with pytest.raises(StatsError, match="has nothing to add"):
        extend_run(again, other)


@pytest.mark.parametrize("files", [0, 1])
def test_an_interruption_leaves_the_run_as_it_was(run, other, monkeypatch, files):
    """Stopped before the first file, and between two of them."""
    written = []

    def writing(path, data):
        if len(written) == files:
            raise KeyboardInterrupt
        written.append(path)
        write_durably(path, data)

    monkeypatch.setattr("analysis.stats.store.write_durably", writing)
    with pytest.raises(KeyboardInterrupt):
        extend_run(run, other)
    monkeypatch.undo()
    assert read_run(run.path) == run
    assert extend_run(run, other).manifest.groups == ("routed", "router", "dense")


def test_what_is_not_of_the_same_tokens_is_refused(described, run, other, tmp_path):
    tokens = calibrated(described, tmp_path, make_sequences(seed=9), groups=("routed", "dense"))
    dtype = calibrated(described, tmp_path, dtype="float64", groups=("routed", "dense"))
    for wrong, message in ((tokens, "another corpus"), (dtype, "another settings")):
        with pytest.raises(StatsError, match=message):
            extend_run(run, wrong)
    identity = replace(other.manifest.model, identity="0" * 64)
    with pytest.raises(StatsError, match="another model"):
        extend_run(run, Run(other.path, replace(other.manifest, model=identity)))


def test_a_damaged_file_is_not_taken_over(described, run, tmp_path):
    damaged = calibrated(described, tmp_path / "c", groups=("routed", "dense"))
    (damaged.path / TRANSITIONS).write_bytes(b"PAR1")
    with pytest.raises(StatsError, match=f"{TRANSITIONS} has changed"):
        extend_run(run, damaged)
    assert SAMPLES not in json.loads((run.path / MANIFEST).read_text())["files"]
