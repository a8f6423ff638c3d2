"""Every file that the program writes, with every step of its writing failing in turn.

Whatever fails: what was there stays or what is new is whole, everything else has a name that says
that it is unfinished, the person gets one line, and the next attempt succeeds and tidies up.
"""

import errno
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from calibrations import make_sequences
from exports import export

from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.calibration.partial import PartialRun, RunState
from analysis.calibration.run import calibrate
from analysis.drain import drain
from analysis.errors import UserError
from analysis.files.durable import PARTIAL
from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index
from analysis.stats.store import StatsStore
from analysis.stats.writing import save_expert_stats
from app.charts.files import write_figure
from app.cli.files import write_csv, write_table
from app.jobs.store import JobStore
from builders import tiny_checkpoint
from builders.measured import sums as summed
from builders.statistics import expert_stats
from pruning.measurements.block import SampleSet
from pruning.measurements.table import Measurements, PlanSums
from pruning.plan.plan import keep_all
from pruning.records.variances import VarianceStore
from pruning.requests.recipe_file import recipe_from_yaml, save_recipe
from pruning.surgery.export import export_checkpoint
from tests.reliability.faults import DISK, full_at

LIMITS = 6
RECIPE = "model: demo\ncriterion: aimer\nbudget: {{sparsity: 50%}}\nseed: {}\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model"
    tiny_checkpoint(path, "olmoe")
    return load_model_index(str(path))


def write_plan(folder, version, model):
    plan = keep_all(model)
    said = replace(plan.provenance, sparsity=version)
    replace(plan, provenance=said).save(folder / "p.json")


def write_recipe(folder, version, _model):
    save_recipe(recipe_from_yaml(RECIPE.format(len(version))), folder / "r.yaml")


@cache
def shipped_record():
    return VarianceStore([SHIPPED_STATS]).records()[0]


def write_record(folder, version, _model):
    changes = {"record_id": "one", "made": {"version": version}}
    VarianceStore([folder]).save(shipped_record().model_copy(update=changes))


def write_measurements(folder, version, _model):
    sums = PlanSums((4,) * 3, tuple("abcdefgh"), {"nll": summed(range(8))})
    where = SampleSet("text", "d" * 64, "float32", 42)
    Measurements([folder]).add_plans("a" * 64, {version: sums}, where, {})


def write_csv_table(folder, version, _model):
    write_csv(pd.DataFrame({"a": [version]}), folder / "t.csv")


def write_parquet(folder, version, _model):
    write_table(pd.DataFrame({"a": [version] * 50}), folder / "t.parquet")


def write_run(folder, version, _model):
    stats = expert_stats(len(version), version)
    vectors = np.ones((len(stats.table), 4))
    save_expert_stats(folder, stats.manifest, stats.table, vectors)


def remove_run(folder, version, _model):
    """The older version puts a run there, the newer one removes it."""
    if version == "old":
        write_run(folder, version, _model)
    else:
        for run in StatsStore(folder).runs():
            StatsStore(folder).remove(run)


def write_export(folder, version, model):
    out = folder / version
    if not out.exists():
        export(model, keep_all(model), out)


WRITERS = (
    *(write_plan, write_recipe, write_record, write_measurements, write_csv_table),
    write_parquet,
    *(write_run, remove_run, write_export),
)


def content_of(folder):
    """What looks complete below a folder, with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and PARTIAL not in str(path.relative_to(folder))
    }


@pytest.fixture
def attempts(tmp_path, model):
    """`attempts(write, faults)` writes a newer version over an older one under each of some faults.

    After each the folder must hold one of both, and the newer one after another attempt. It
    returns how many attempts failed.
    """

    def run(write, faults):
        def do(folder, version):
            folder.mkdir(exist_ok=True)
            write(folder, version, model)

        given, wanted = tmp_path / "given", tmp_path / "wanted"
        do(given, "old")
        shutil.copytree(given, wanted)
        do(wanted, "newer")
        old, new = content_of(given), content_of(wanted)
        assert old != new
        failures = 0
        for number, fault in enumerate(faults(wanted)):
            folder = tmp_path / str(number)
            shutil.copytree(given, folder)
            try:
                with fault(folder):
                    do(folder, "newer")
            except (UserError, OSError) as error:  # the command line shows both as one line
                assert "\n" not in str(error)
                failures += 1
            found = content_of(folder)
            assert found in (old, new), (number, sorted(found))
            do(folder, "newer")
            assert content_of(folder) == new
            left = [path for path in folder.rglob("*") if path.name.endswith(PARTIAL)]
            assert left == [], number
        return failures

    return run


@pytest.mark.parametrize("stays", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_any_step_may_fail(attempts, tmp_path, model, write, stays):
    counted = tmp_path / "counted"
    counted.mkdir()
    write(counted, "old", model)
    with DISK.failing(counted, 0, 0, stays=False):
        write(counted, "newer", model)
    steps = DISK.steps
    assert steps >= 1

    def faults(_wanted):
        number = errno.EROFS if stays else errno.EIO
        for step in range(1, steps + 1):
            yield lambda folder, step=step: DISK.failing(folder, step, number, stays=stays)

    # A removal that fails once need not be an error, and parquet is not opened by Python.
    assert attempts(write, faults) >= steps // 2


@pytest.mark.parametrize(
    "write",
    [writer for writer in WRITERS if writer is not remove_run],
    ids=lambda write: write.__name__,
)
def test_the_disk_may_be_full_at_any_size(attempts, write):
    def faults(wanted):
        largest = max(len(content) for content in content_of(wanted).values())
        for size in range(0, largest, max(1, largest // LIMITS)):
            yield lambda _folder, size=size: full_at(size)

    assert attempts(write, faults) >= LIMITS


def test_the_state_of_a_run_is_the_older_or_the_newer_one(tmp_path):
    partial = PartialRun(tmp_path, expert_stats().manifest)

    def save(done):
        partial.save({"sums": torch.full((100,), float(done))}, RunState(done=done))

    with partial.locked():
        save(1)
        with DISK.failing(tmp_path, 0, 0, stays=False):
            save(1)
        for step in range(1, DISK.steps + 1):
            save(1)
            with pytest.raises(OSError), DISK.failing(tmp_path, step, errno.EIO, stays=True):
                save(2)
            state, sums = partial.restore()
            assert state.done in (1, 2)
            assert (sums["sums"] == state.done).all()
        for size in (0, 100, 500):
            save(1)
            with pytest.raises(Exception, match=r"too large|os error 27"), full_at(size):
                save(2)
            state, sums = partial.restore()
            assert (state.done, float(sums["sums"][0])) == (1, 1.0)


def test_a_job_table_that_cannot_grow_keeps_its_jobs(tmp_path):
    store = JobStore(tmp_path / "jobs.sqlite")
    before = [store.submit("count", {"n": n}, "title", "command", "me") for n in range(3)]
    with full_at(20_000), pytest.raises(UserError, match=r"job table .* cannot be used"):
        for n in range(100):
            store.submit("count", {"n": n, "pad": "x" * 3000}, "title", "command", "me")
    found = store.list(limit=200)
    assert [job.id for job in found][-3:] == [job.id for job in reversed(before)]
    store.submit("count", {"n": 4}, "title", "command", "me")


@pytest.mark.parametrize(("streams", "gone"), [(False, "everything"), (True, "shards")])
def test_a_model_that_vanishes(tmp_path, model, streams, gone):
    place = Placement(stream_layers=streams)
    settings = CalibrationSettings(seq_len=9, batch_size=3, device="cpu", placement=place)
    once = drain(calibrate(model, make_sequences(), settings, StatsStore(tmp_path / "once")))
    ended = 0
    for step in range(4):
        copy = Path(shutil.copytree(model.checkpoint.path, tmp_path / f"{step}" / "model"))
        store = StatsStore(tmp_path / f"stats{step}")
        task = calibrate(load_model_index(str(copy)), make_sequences(), settings, store)
        try:
            for number, _ in enumerate(task):
                if number == step:
                    vanish(copy, gone)
        except (UserError, OSError) as error:
            assert "\n" not in str(error)
            assert store.runs() == []
            ended += 1
        else:
            (run,) = store.runs()
            assert run.manifest.files == once.manifest.files
    assert ended >= streams


def vanish(folder, what):
    for path in folder.iterdir():
        if what == "everything" or path.suffix == ".safetensors":
            path.unlink()


def test_a_source_that_vanishes_leaves_nothing(tmp_path, model):
    for step in range(3):
        copy = Path(shutil.copytree(model.checkpoint.path, tmp_path / f"{step}" / "model"))
        described = load_model_index(str(copy))
        out = tmp_path / f"out{step}" / "pruned"
        task = export_checkpoint(described, keep_all(described), out)
        for _ in range(step):
            next(task)
        vanish(copy, "everything")
        try:
            drain(task)
        except (UserError, OSError) as error:
            assert "\n" not in str(error)
            assert not out.parent.exists() or not list(out.parent.iterdir())
        else:
            assert (out / "moeprune_manifest.json").exists()


def test_a_figure_is_whole_or_not_there(tmp_path):
    import plotly.graph_objects as go

    path = tmp_path / "figure.html"
    path.write_text("older")
    with full_at(10_000), pytest.raises(OSError, match="File too large"):
        write_figure(go.Figure(), path)
    assert [path.name for path in tmp_path.iterdir()] == ["figure.html"]
    assert path.read_text() == "older"
