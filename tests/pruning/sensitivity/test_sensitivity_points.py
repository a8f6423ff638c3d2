"""Points of curves: equal to the whole masked model, measured once, whoever measures them."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from curve_cases import CASE, measuring, points_at, units_of
from filelock import Timeout
from masked_cases import plans_of, sequences, subject_of

from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.drain import drain
from analysis.errors import PlanError
from analysis.model.opening import load_model_index
from families.configs import BY_NAME
from families.tiny_models import tiny_model
from pruning.engine.candidate import MeasureSettings, run_candidate
from pruning.measurements.table import Measurements
from pruning.measures.curves import curves_of
from pruning.measures.points import MEASURES, curve_points, moved_points, whole_point
from pruning.measures.samples import make_samples
from pruning.plan.plan import model_ref
from pruning.records.sensitivity import SensitivityStore
from pruning.search.fitness import StreamedRuns


def measured(folder, wanted, **options):
    work = measuring(folder, **options)
    drain(work.measure(wanted))
    return work


def shards(folder):
    return sorted(folder.rglob("*.jsonl"))


def values(work, points):
    return np.stack([work.points.values(point.removed, work.samples) for point in points])


# Every family is in test_search_prefix.py; these have layers to reuse, groups, and dense layers.
@pytest.mark.parametrize("case", [CASE, BY_NAME["deepseek_v3-groups"]], ids=str)
def test_points_equal_the_whole_masked_model_bit_for_bit(tmp_path, case):
    subject, units = subject_of(case, tiny_model(case)), units_of(case)
    base = units.nearest([1] * len(units.sizes))
    wanted = [*curve_points(units, 3), *moved_points(units, base, Fraction(1, 2))]
    work = measured(tmp_path, wanted, case=case)
    for point in wanted:
        plan, settings = subject.plan_of(point.removed), MeasureSettings(MEASURES)
        alone = drain(run_candidate(subject.loaded, subject.family, plan, subject.full, settings))
        wanted_means = [alone.samples[name].means for name in MEASURES]
        found = work.points.values(point.removed, work.samples)
        np.testing.assert_array_equal(found.T, wanted_means)


def test_two_that_finish_together_keep_the_points_of_both(tmp_path):
    points = points_at(5)
    first, second = measuring(tmp_path), measuring(tmp_path)
    drain(second.measure(points[:3]))
    drain(first.measure(points[2:6]))
    third = measuring(tmp_path)  # knows the numbers, and of no record
    first.finish()
    record = second.finish()
    assert record.plans.keys() == {*points[:6]}
    drain(third.measure(points[:4]))
    # It has nothing to add, so the record still says what ran.
    assert third.finish() == record and third.layers == 0


def test_a_record_leaves_out_points_whose_numbers_are_gone(tmp_path):
    points = points_at(3)
    work = measured(tmp_path, points)
    work.finish()
    (shard,) = [path for path in shards(tmp_path) if path.parent.name == "measurements"]
    gone = work.record.plans[points[-1]]
    lines = shard.read_bytes().splitlines(keepends=True)
    shard.write_bytes(b"".join(line for line in lines if gone.encode() not in line))
    problems = []
    assert SensitivityStore([tmp_path]).records(on_problem=problems.append) == []
    assert "has no numbers of" in str(*problems)
    again = measured(tmp_path, points[:-1])
    again.finish()
    assert again.layers == 0
    (record,) = SensitivityStore([tmp_path]).records()
    assert record.plans.keys() == {*points[:-1]}


def test_more_levels_and_more_samples_measure_what_is_missing(tmp_path):
    coarse, fine = points_at(2), points_at(5)
    assert set(coarse) - set(fine) and set(fine) - set(coarse)
    both = list(dict.fromkeys([*coarse, *fine]))
    first = measured(tmp_path, coarse, count=4)
    done = first.finish()
    assert len(done.points) == len(coarse)
    again = measured(tmp_path, coarse, count=4)
    assert (again.layers, again.loads) == (0, [])
    levels = measured(tmp_path, both, count=4)
    new = [point for point in fine if point not in coarse]
    # Of each batch the original runs again where several points begin as it does.
    assert levels.layers == 2 * (5 + sum(5 - point.position for point in new))
    levels.finish()
    samples = measured(tmp_path, both)
    assert samples.layers == 5 + sum(5 - p.position for p in both if p.position >= 0)
    samples.finish()
    whole_work = measured(tmp_path / "once", both)
    np.testing.assert_array_equal(values(samples, both), values(whole_work, both))
    store, once = SensitivityStore([tmp_path]), whole_work.points
    (record,) = store.records()
    assert record == whole_work.finish().model_copy(update={"made": record.made})
    stored = store.points(record)
    assert stored.samples() == once.samples() == samples.samples
    assert list(stored.on_all(samples.samples)) == list(once.on_all(samples.samples))
    for point in both:
        found, alone = (points.values(point.removed, samples.samples) for points in (stored, once))
        np.testing.assert_array_equal(found, alone)


def test_points_say_on_how_many_samples_they_were_measured(tmp_path):
    coarse, fine = points_at(2), points_at(5)
    few = measured(tmp_path, fine, count=4)
    few.finish()
    more = measured(tmp_path, coarse)
    record = more.finish()
    counts = {
        point: row.num_samples for point, row in zip(record.plans, record.points, strict=True)
    }
    assert counts == {point: 5 if point in coarse else 4 for point in {*fine, *coarse}}
    assert measuring(tmp_path).finish() == record  # nothing is new


def test_blocks_say_what_was_measured_and_how(tmp_path):
    work = replace(measuring(tmp_path), made={"device": "cpu", "batch_size": 2})
    drain(work.measure(points_at(2)))
    table, record = Measurements([tmp_path]), work.finish()
    assert [*record.plans] == points_at(2)
    for point, plan in record.plans.items():
        assert plan == plans_of(CASE)(point.removed).digest
        blocks = table.blocks(record.model.identity, plan, "float32")
        assert [len(block.samples) for block in blocks] == [2, 2, 1]
        for block in blocks:
            assert (block.where, block.num_samples) == (work.where, 5)
            assert set(block.sums) == {*MEASURES}
            assert block.kept == tuple(CASE.experts - gone for gone in point.removed)
            assert (block.made["device"], block.made["batch_size"]) == ("cpu", 2)
            first = max(point.position, 0)  # the layer that it starts at
            assert block.made["layers"] == 5 - first


def test_stopped_and_resumed_is_uninterrupted(tmp_path):
    wanted = points_at(3)
    steps = measuring(tmp_path).measure(wanted)
    for _ in range(len(wanted) + 3):
        next(steps)
    steps.close()
    # After two points of the second batch, what is left is measured, and nothing else.
    (shard,) = shards(tmp_path)
    assert len(shard.read_text().splitlines()) == len(wanted) + 2
    # As if it had been another process, whose last line had not reached the disk.
    shard = shard.rename(shard.with_name("a.jsonl"))
    with shard.open("ab") as file:
        file.write(b'{"model":"00')
    resumed, alone = (measured(path, wanted) for path in (tmp_path, tmp_path / "alone"))
    assert resumed.layers < alone.layers * 2 / 3 + 5
    np.testing.assert_array_equal(values(resumed, wanted), values(alone, wanted))
    assert len(resumed.finish().points) == len(wanted)


def test_two_that_measure_at_once_share_the_batches(tmp_path):
    wanted = points_at(2)
    alone = measured(tmp_path / "alone", wanted)
    works = [measuring(tmp_path) for _ in range(2)]
    running = [work.measure(wanted) for work in works]
    while running:  # a step of each in turn
        running = [steps for steps in running if next(steps, None) is not None]
    assert all(work.layers for work in works)
    assert sum(work.layers for work in works) == alone.layers  # nothing was measured twice
    together = measured(tmp_path, wanted)
    assert together.layers == 0
    np.testing.assert_array_equal(values(together, wanted), values(alone, wanted))


def test_points_know_the_documents_of_their_samples(tmp_path):
    numbers, wanted = (4, 4, 6, 6, 9), points_at(2)
    begun = measured(tmp_path, wanted, documents=numbers)
    assert begun.points.documents(begun.samples) == numbers
    begun.finish()
    points = SensitivityStore([tmp_path]).points(begun.record)
    curves = curves_of(points, 5, "nll")
    assert points.documents(begun.samples) == numbers
    assert curves.documents == numbers
    assert curves.count.words == "5 samples of 3 documents"
    blocks = Measurements([tmp_path]).blocks("00" * 32, begun.record.points[0].plan, "float32")
    assert [block.sums["nll"].documents for block in blocks] == [(4, 4), (6, 6), (9,)]
    unknown = measured(tmp_path / "unknown", wanted)
    unknown.finish()
    again = SensitivityStore([tmp_path / "unknown"]).points(unknown.record)
    assert again.documents(unknown.samples) is None


def test_a_batch_has_one_process_at_a_time(tmp_path):
    work = measuring(tmp_path)
    batch = {"record": work.record.digest, "samples": list(work.batches[0])}
    with Measurements([tmp_path]).claimed(**batch):
        with pytest.raises(Timeout), work.store.table.claimed(**batch):
            pass
        steps = work.measure([whole_point((0,) * 5)])
        said = [next(steps).phase for _ in range(20)]
    assert "waiting for other processes" in said
    drain(steps)
    assert work.points.knows((0,) * 5, work.samples)


def refuse():
    yield from ()
    raise PlanError("too large")


def test_points_of_a_record_that_was_never_written_are_found_again(tmp_path):
    coarse, fine = points_at(2), points_at(5)
    killed = measured(tmp_path, coarse)  # and no `finish`
    refused = replace(measuring(tmp_path), load=refuse)
    with pytest.raises(PlanError, match="too large"):
        drain(refused.measure(fine))
    assert not refused.finish().is_measured
    again = replace(measuring(tmp_path), load=refuse)
    drain(again.measure(coarse))
    record = again.finish()
    assert again.layers == 0 and [*record.plans] == coarse
    assert SensitivityStore([tmp_path]).records() == [record]
    np.testing.assert_array_equal(values(again, coarse), values(killed, coarse))


def test_damage_is_named_and_measured_again(tmp_path):
    wanted = points_at(2)
    work = measured(tmp_path, wanted)
    record = work.finish()
    (shard,) = shards(tmp_path)
    lines = shard.read_bytes().splitlines(keepends=True)
    shard.unlink()  # of another process
    other = shard.with_name("a.jsonl")
    other.write_bytes(
        b"".join([*lines[:2], lines[2].replace(b'"sum":[[', b'"sum":[[1'), *lines[3:]])
    )
    problems = []
    assert not SensitivityStore([tmp_path]).records(on_problem=problems.append)
    assert len(problems) == 2
    assert "Line 3 of the measurements a.jsonl cannot be read" in str(problems[0])
    assert "its sha256 differs" in str(problems[0])
    assert f"has no numbers of {record.points[2].plan} in the table" in str(problems[1])
    assert "moeprune sensitivity" in str(problems[1])
    again = measured(tmp_path, wanted)
    assert 0 < again.layers <= 5
    again.finish()
    assert [record.points for record in SensitivityStore([tmp_path]).records()] == [record.points]
    np.testing.assert_array_equal(values(again, wanted), values(work, wanted))


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
    wanted = points_at(3)
    whole_model, streamed = measuring(tmp_path / "a"), measuring(tmp_path / "b", stream=stream)
    drain(whole_model.measure(wanted))
    drain(streamed.measure(wanted[:4]))  # what is known is not measured again
    drain(streamed.measure(wanted))
    assert not streamed.loads and whole_model.loads
    np.testing.assert_array_equal(values(streamed, wanted), values(whole_model, wanted))
