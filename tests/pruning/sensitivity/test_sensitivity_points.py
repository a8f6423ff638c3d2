"""Points of curves: equal to the whole masked model, measured once, whoever measures them."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from filelock import Timeout
from masked_cases import DEEP, plans_of, sequences, subject_of

from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.drain import drain
from analysis.errors import PlanError, StatsError
from analysis.families.listing import FAMILIES
from analysis.model.moe_model import ModelRef
from analysis.model.opening import load_model_index
from families.configs import BY_NAME
from families.tiny_models import tiny_model
from pruning.engine.candidate import MeasureSettings, run_candidate
from pruning.measures.curves import curves_of
from pruning.measures.points import MEASURES, curve_points, moved_points, sample_ids, whole_point
from pruning.measures.samples import make_samples
from pruning.plan.constraints import Constraints, rooms_of
from pruning.plan.plan import model_ref
from pruning.records.sensitivity import SensitivityRecord, SensitivityStore
from pruning.search.fitness import MaskedRuns, StreamedRuns
from pruning.search.sensitivity import Measuring

CASE = DEEP[0]


def rooms(case):
    layers = FAMILIES[case.model_type].layers(tiny_model(case).config.to_dict())
    return rooms_of(layers, Constraints())


def record_of(case):
    layers = tuple((layer, case.experts) for layer in case.sparse)
    return SensitivityRecord.begun(
        ("sensitivity", "reap"),
        {"case": str(case)},
        model=ModelRef("tiny", "00" * 32),
        order={"criterion": "reap", "granularity": "expert", "digest": "aa"},
        corpus={"name": "text"},
        layers=layers,
        settings={"dtype": "float32"},
    )


def measuring(folder, case=CASE, count=5, max_bytes=None, stream=None):
    """Of the first `count` samples, in batches of two; loads are counted."""
    loads = []

    def load():
        yield from ()
        if stream is not None:
            return stream
        loads.append(1)
        subject = subject_of(case, tiny_model(case))
        samples = subject.full.samples
        rows = samples.sequences.rows[:count]
        counted = samples.sequences.counted[:count]
        few = replace(samples.sequences, rows=rows, counted=counted)
        subject = replace(subject, full=replace(subject.full, samples=make_samples(few, 2)))
        return MaskedRuns(subject, MeasureSettings(MEASURES), max_bytes)

    ids = sample_ids(sequences())[:count]
    work = Measuring(SensitivityStore([folder]), record_of(case), ids, 2, load)
    work.loads = loads
    return work


def values(work, points):
    return np.stack([work.points.values(point.removed, work.samples) for point in points])


# Every family is in test_search_prefix.py; these have layers to reuse, groups, and dense layers.
@pytest.mark.parametrize("case", [CASE, BY_NAME["deepseek_v3-groups"]], ids=str)
def test_points_equal_the_whole_masked_model_bit_for_bit(tmp_path, case):
    subject, wanted = subject_of(case, tiny_model(case)), curve_points(rooms(case), 3)
    base = tuple(room.nearest(1) for room in rooms(case))
    wanted += moved_points(rooms(case), base, Fraction(1, 2))
    work = measuring(tmp_path, case)
    drain(work.measure(wanted))
    for point in wanted:
        plan, settings = subject.plan_of(point.removed), MeasureSettings(MEASURES)
        alone = drain(run_candidate(subject.loaded, subject.family, plan, subject.full, settings))
        for place, name in enumerate(MEASURES):
            found = work.points.values(point.removed, work.samples)[:, place]
            np.testing.assert_array_equal(found, alone.samples[name].means)


def test_layers_in_front_of_a_loss_run_once(tmp_path):
    wanted, work = curve_points(rooms(CASE), 3), measuring(tmp_path)
    drain(work.measure(wanted))
    # 3 batches: the original through 5 layers, and each point from its own layer on.
    each = 5 + sum(5 - point.position for point in wanted if point.position >= 0)
    assert work.layers == 3 * each
    nothing = measuring(tmp_path / "whole", max_bytes=0)
    drain(nothing.measure(wanted))
    assert nothing.layers == 3 * 5 * len(wanted)
    np.testing.assert_array_equal(values(work, wanted), values(nothing, wanted))


def test_more_levels_and_more_samples_measure_what_is_missing(tmp_path):
    coarse, fine = curve_points(rooms(CASE), 2), curve_points(rooms(CASE), 5)
    assert set(coarse) - set(fine) and set(fine) - set(coarse)
    both = list(dict.fromkeys([*coarse, *fine]))
    first = measuring(tmp_path, count=4)
    drain(first.measure(coarse))
    done = first.finish({})
    assert done.points == len(coarse)
    assert not list(tmp_path.rglob("*.jsonl"))
    again = measuring(tmp_path, count=4)
    drain(again.measure(coarse))
    assert (again.layers, again.loads) == (0, [])
    levels = measuring(tmp_path, count=4)
    drain(levels.measure(both))
    new = [point for point in fine if point not in coarse]
    # Of each batch the original runs again where several points begin as it does.
    assert levels.layers == 2 * (5 + sum(5 - point.position for point in new))
    levels.finish({})
    samples = measuring(tmp_path)
    drain(samples.measure(both))
    assert samples.layers == 5 + sum(5 - p.position for p in both if p.position >= 0)
    samples.finish({})
    whole_work = measuring(tmp_path / "once")
    drain(whole_work.measure(both))
    np.testing.assert_array_equal(values(samples, both), values(whole_work, both))
    stored = SensitivityStore([tmp_path]).points(record_of(CASE))
    table, once = stored.table(), whole_work.points.table()
    names = ["base", "layer", "removed", "sample"]
    stored, once = (each.sort_values(names, ignore_index=True) for each in (table, once))
    assert stored.equals(once)


def test_stopped_and_resumed_is_uninterrupted(tmp_path):
    wanted = curve_points(rooms(CASE), 3)
    steps = measuring(tmp_path).measure(wanted)
    for _ in range(len(wanted) + 3):
        next(steps)
    steps.close()
    # After two points of the second batch, what is left is measured, and nothing else.
    logs = sorted(tmp_path.rglob("*.jsonl"), key=lambda path: path.stat().st_size)
    assert [len(log.read_text().splitlines()) for log in logs] == [3, 1 + len(wanted)]
    with logs[0].open("ab") as file:
        file.write(b'{"base": [0, 0')  # as if the last line had not reached the disk
    resumed, alone = measuring(tmp_path), measuring(tmp_path / "alone")
    drain(resumed.measure(wanted))
    drain(alone.measure(wanted))
    assert resumed.layers < alone.layers * 2 / 3 + 5
    np.testing.assert_array_equal(values(resumed, wanted), values(alone, wanted))
    assert resumed.finish({}).points == len(wanted)


def test_two_that_measure_at_once_share_the_batches(tmp_path):
    wanted, alone = curve_points(rooms(CASE), 2), measuring(tmp_path / "alone")
    drain(alone.measure(wanted))
    works = [measuring(tmp_path) for _ in range(2)]
    running = [work.measure(wanted) for work in works]
    while running:  # a step of each in turn
        running = [steps for steps in running if next(steps, None) is not None]
    assert all(work.layers for work in works)
    assert sum(work.layers for work in works) == alone.layers  # nothing was measured twice
    together = measuring(tmp_path)
    drain(together.measure(wanted))
    assert together.layers == 0
    np.testing.assert_array_equal(values(together, wanted), values(alone, wanted))


def test_points_know_the_documents_of_their_samples(tmp_path):
    work, wanted = measuring(tmp_path), curve_points(rooms(CASE), 2)
    numbers = dict(zip(work.samples, (4, 4, 6, 6, 9), strict=True))
    drain(replace(work, documents=numbers).measure(wanted))
    begun = measuring(tmp_path)  # from the logs, then from the parquet
    assert begun.points.documents(begun.samples) == (4, 4, 6, 6, 9)
    begun.finish({})
    points = SensitivityStore([tmp_path]).points(begun.record)
    curves = curves_of(points, 5, "nll")
    assert points.documents(begun.samples) == (4, 4, 6, 6, 9)
    assert sorted(curves.documents) == [4, 4, 6, 6, 9]
    assert curves.count.words == "5 samples of 3 documents"
    unknown = measuring(tmp_path / "unknown")
    drain(unknown.measure(wanted))
    unknown.finish({})
    again = SensitivityStore([tmp_path / "unknown"]).points(unknown.record)
    assert again.documents(unknown.samples) is None


def test_a_batch_has_one_process_at_a_time(tmp_path):
    store, work = SensitivityStore([tmp_path]), measuring(tmp_path)
    with store.block(work.record, work.batches[0], work.points):
        with pytest.raises(Timeout), store.block(work.record, work.batches[0], work.points):
            pass
        steps = work.measure([whole_point((0,) * 5)])
        said = [next(steps).phase for _ in range(20)]
    assert "waiting for other processes" in said
    drain(steps)
    assert work.points.knows((0,) * 5, work.samples)


def test_what_fails_before_the_first_point_leaves_no_record(tmp_path):
    def refuse():
        yield from ()
        raise PlanError("too large")

    work = replace(measuring(tmp_path), load=refuse)
    with pytest.raises(PlanError, match="too large"):
        drain(work.measure(curve_points(rooms(CASE), 2)))
    assert not work.finish({}).is_measured
    again = measuring(tmp_path)
    drain(again.measure(curve_points(rooms(CASE), 2)))
    assert again.finish({}).is_measured


def test_damage_is_named(tmp_path):
    work = measuring(tmp_path)
    drain(work.measure(curve_points(rooms(CASE), 2)))
    log = next(tmp_path.rglob("*.jsonl"))
    lines = log.read_text().splitlines()
    log.write_text("\n".join([*lines[:2], json.dumps({"base": [0]}), *lines[3:]]) + "\n")
    with pytest.raises(PlanError, match="damaged in line 3"):
        measuring(tmp_path)
    log.unlink()
    work.finish({})
    curves = tmp_path / "sensitivity" / f"{work.record.record_id}.parquet"
    table = pq.read_table(curves)
    halves = pc.divide(table["kl"], 2.0)
    pq.write_table(table.set_column(table.column_names.index("kl"), "kl", halves), curves)
    with pytest.raises(StatsError, match="its sha256 differs"):
        measuring(tmp_path)
    curves.write_bytes(b"no parquet")
    with pytest.raises(StatsError, match="measure again"):
        measuring(tmp_path)


def test_points_of_streamed_layers_are_the_same(tmp_path):
    model = tiny_model(CASE)
    model.save_pretrained(tmp_path / "model")
    described = load_model_index(str(tmp_path / "model"))
    settings = CalibrationSettings(
        seq_len=12, dtype="float32", device="cpu", placement=Placement(stream_layers=True)
    )
    stream = StreamedRuns(
        described,
        make_samples(sequences(), 2),
        settings,
        plans_of(CASE, model_ref(described)),
        MeasureSettings(MEASURES),
        tmp_path / "unfinished",
    )
    wanted = curve_points(rooms(CASE), 3)
    whole_model, streamed = measuring(tmp_path / "a"), measuring(tmp_path / "b", stream=stream)
    drain(whole_model.measure(wanted))
    drain(streamed.measure(wanted[:4]))  # what is known is not measured again
    drain(streamed.measure(wanted))
    assert not streamed.loads and whole_model.loads
    np.testing.assert_array_equal(values(streamed, wanted), values(whole_model, wanted))
