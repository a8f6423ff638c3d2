"""A machine of which nothing is known: what a probe of it says, and when there is one."""

import itertools
import json
import math
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis.calibration import loading
from analysis.calibration import probe as calibration_probe
from analysis.calibration.probe import (
    ByteSeconds,
    byte_seconds,
    multiply_rate,
    read_part,
    reading_seconds,
)
from analysis.drain import drain
from analysis.model.layer_costs import output_weights
from analysis.model.opening import load_model_index
from analysis.progress import RATES, Progress, Whole
from analysis.stats.rates import (
    expected_seconds,
    keep_probed,
    keep_rates,
    known_rates,
    rates_file,
    run_rates,
)
from pruning.actions.expected import told
from pruning.measures import positions
from pruning.measures import probe as measures_probe
from pruning.measures.probe import compare_rate
from pruning.tasks.probing import probe, probed, probing

READ = Whole({"read": 100.0, "multiply": 900.0})


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model(checkpoint):
    return load_model_index(str(checkpoint("olmoe", shards=2).path))


def after(whole, model):
    """The steps of a task that states this work, and what is known when it goes on."""
    known = []

    def task():
        yield Progress("loading", 0, 1, whole=whole)
        known.append(known_rates())

    drain(probed(task(), lambda: (model, "float32", "cpu")))
    return known[0]


def test_a_probe_tells_what_this_work_depends_on(model):
    assert multiply_rate(model, "float32", "cpu") > 0
    seconds = byte_seconds(model)
    assert 0 < seconds.dropped == seconds.read < seconds.hashed  # as memory holds it
    drain(probing(Whole({"sum": 1.0, "compile": 0.5}), model))  # of bytes alone
    assert known_rates().keys() == {"hash"}
    drain(probing(READ, model))
    kept = json.loads(rates_file().read_text())
    assert kept.keys() == {"probed"}
    assert kept["probed"].keys() == {"read", "hash", "multiply"}
    verified = dict.fromkeys(("check", "read float32", "multiply float32", "allocate"), 1.0)
    drain(probing(Whole(verified), model))
    assert known_rates().keys() == {"read", "hash", "multiply"} | verified.keys()


def test_heads_are_probed_where_they_run(model):
    drain(probing(Whole({"compare": 1.0, "decode": 1.0}), model))
    assert known_rates().keys() == {"compare"}


def test_the_rate_of_heads_is_of_two_products_and_of_what_is_measured(model, monkeypatch):
    """4 s for a product of 3 rows and 1 of 8 columns, 5 s for the measures of 3 rows of all."""
    ran = []

    def seconds(run, on):
        ran.append(run(0))
        return 4.0 if len(ran) == 1 else 5.0

    monkeypatch.setattr(measures_probe, "fastest_seconds", seconds)
    monkeypatch.setattr(
        positions, "CHUNK_BYTES", 3 * 4 * output_weights(model) // model.hidden_size
    )
    monkeypatch.setattr(measures_probe, "LARGEST", 8 * model.hidden_size)
    rate, weights = compare_rate(model, "float32", "cpu"), output_weights(model)
    assert ran[0].shape == (3, 8)
    assert ran[1].shape == (3, 3)  # esap, kl and nll of each row
    assert rate == pytest.approx(
        RATES["compare"] * (2 * 4.0 / (3 * 8 * model.hidden_size) + 5.0 / (3 * weights))
    )


def test_parts_say_whether_the_page_cache_had_them_and_leave_it_as_it_was(tmp_path):
    content = np.random.default_rng(0).bytes(3 << 20)
    (tmp_path / "shard").write_bytes(content)
    with (tmp_path / "shard").open("rb", buffering=0) as file:
        os.fsync(file.fileno())
        part, _ = read_part(file, 1000, memoryview(bytearray(1 << 20)))
        assert part == content[1000 : 1000 + (1 << 20)]
        part, _ = read_part(file, 2 << 20, memoryview(bytearray(4 << 20)))
        assert part == content[2 << 20 :]  # the end
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        there = [memoryview(bytearray(1 << 20)) for _ in range(3)]
        first, second = (read_part(file, 1 << 20, each) for each in there[:2])
        assert first == second  # also of file systems in memory, which forget nothing
        os.pread(file.fileno(), 4096, 1 << 20)  # the beginning is there
        assert read_part(file, 1 << 20, there[2])[0] == first[0]
        file.read()
        has_flags = hasattr(os, "RWF_NOWAIT")
        assert read_part(file, 1 << 20, there[2]) == (first[0], has_flags)


def test_what_memory_cannot_hold_is_read_from_the_disk():
    """Seconds a byte: three of four parts cached, 0.75 * 1 + 0.25 * 5 = 2; medians of the disk."""
    cached, fresh = [1.0, 4.0, 2.0], [5.0]
    assert reading_seconds(cached, fresh, fits=True) == 2.0
    assert reading_seconds(cached, fresh, fits=False) == 5.0
    assert reading_seconds(cached, [], fits=False) == 1.0
    assert reading_seconds([], [7.0, 9.0, 6.0], fits=True) == 7.0


def test_cached_parts_count_where_pages_of_a_run_leave_the_cache(model, monkeypatch):
    """Half of a model that memory does not hold is cached; all other bytes come from the disk."""
    number = itertools.count()

    def part(_file, _start, there):
        was_cached = next(number) % 2 == 0
        time.sleep(0 if was_cached else 0.02)
        return there[:4096], was_cached

    monkeypatch.setattr(calibration_probe, "read_part", part)
    monkeypatch.setattr(calibration_probe, "free_memory", lambda: 0)
    monkeypatch.setattr(calibration_probe, "_SECONDS", math.inf)
    seconds = byte_seconds(model)
    assert 0 < seconds.dropped < 0.75 * seconds.read < seconds.hashed


@pytest.mark.parametrize(("device", "read"), [("cpu", 2e-9), ("cuda", 6e-9)])
def test_a_processor_runs_by_layers_what_memory_does_not_hold(model, monkeypatch, device, read):
    seconds = ByteSeconds(read=6e-9, dropped=2e-9, hashed=7e-9)
    monkeypatch.setattr(calibration_probe, "byte_seconds", lambda _: seconds)
    monkeypatch.setattr(calibration_probe, "loading_seconds", lambda *_, **__: 0.0)
    monkeypatch.setattr(loading, "resolve_device", lambda _: torch.device(device))
    drain(probing(Whole({"read": 1.0, "hash": 1.0}), model, "float32"))
    rates = {kind: rate / RATES[kind] for kind, rate in known_rates().items()}
    assert rates == {"read": pytest.approx(read), "hash": pytest.approx(7e-9)}


def test_a_probe_that_ends_early_has_seen_all_of_a_model(model, monkeypatch):
    """Of six places in each of three shards."""
    seen = []

    def part(file, start, there):
        seen.append((Path(file.name).name, start / os.fstat(file.fileno()).st_size))
        return there[:1], False

    monkeypatch.setattr(calibration_probe, "read_part", part)
    monkeypatch.setattr(calibration_probe, "_RUNS", 18)
    monkeypatch.setattr(calibration_probe, "_SECONDS", math.inf)
    byte_seconds(model)
    assert len(set(seen)) == len(seen) == 18
    half = seen[:9]
    counts = Counter(shard for shard, _ in half)
    assert len(counts) == 3
    assert min(counts.values()) >= 2
    assert sum(place < 0.5 for _, place in half) in (4, 5)


def test_the_fit_of_a_repair_is_probed_in_its_own_dtype(model):
    """In bfloat16 some processors multiply several times as fast."""
    repair = Whole({"observe": 1.0, "fit": 1.0, "invert": 1.0, "run repaired": 1.0})
    drain(probing(repair, model, "float32"))
    products = {kind: rate for kind, rate in known_rates().items() if kind != "invert"}
    assert len(set(products.values())) == 1  # measured once
    drain(probing(repair, model, "bfloat16"))
    rates = known_rates()
    assert rates.keys() == {"observe", "fit", "invert", "run repaired"}
    assert rates["fit"] != rates["observe"] == rates["run repaired"]


def test_what_runs_have_measured_is_not_probed(model):
    keep_probed({"multiply": 5.0, "read": 6.0})
    keep_rates({"multiply": 2.0})
    assert (run_rates(), known_rates()) == ({"multiply": 2.0}, {"multiply": 2.0, "read": 6.0})
    assert expected_seconds(READ) == 100 * 6.0 + 900 * 2.0
    keep_probed({"multiply": 9.0})  # later ones do not replace it either
    assert known_rates() == {"multiply": 2.0, "read": 6.0}
    keep_rates({"read": 3.0})
    assert probe(READ, model) == ""
    assert known_rates() == {"multiply": 2.0, "read": 3.0}


def test_long_work_is_preceded_by_a_probe_once(model):
    assert after(Whole({"multiply": 10.0}), model) == {}  # a second of it would be too much
    assert after(READ, model).keys() == {"read", "hash", "multiply"}
    known = known_rates()
    assert after(READ, model) == known
    rates_file().unlink()
    keep_rates({"multiply": 1.0})  # most of this work
    assert after(READ, model) == {"multiply": 1.0}
    rates_file().unlink()
    keep_rates({"read": 1.0})
    assert after(READ, model).keys() == {"read", "multiply"}


def test_a_dry_run_says_by_what_its_time_is_known(model):
    assert "by the rates of another machine" in told(READ, 0).sentence
    drain(probing(READ, model))
    assert "by a probe of this machine" in told(READ, 0).sentence
    keep_rates({"multiply": 2.0})
    assert "machine" not in told(READ, 0).sentence


def test_a_cache_that_takes_no_file_is_said(model, tmp_path):
    (tmp_path / "cache").write_text("no folder")
    steps = []
    drain(probing(READ, model), steps.append)
    assert ["cannot be kept" in step.note for step in steps] == [True]
