"""Runs of several processes that share the layers, started by torchrun."""

import json
import os
import signal
import time
import weakref
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from calibrations import assert_same_numbers, calibrated
from launching import torchrun

from analysis.calibration.distributed import Processes, folded, join
from analysis.model.opening import load_model_index
from analysis.stats.store import StatsStore
from builders import VOCAB, tiny_checkpoint, tiny_model
from builders.tokens import random_ids, token_sequences

HERE = Path(__file__).parent


def random_rows(seed, lengths):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCAB, size=n).tolist() for n in lengths]


ROWS = random_rows(0, [9, 5, 7, 3, 9, 2, 6, 9, 9, 4, 8, 1, 9, 9, 3, 7, 6])


def run_alone(root, model, stats, **chosen):
    sequences = token_sequences(*ROWS, corpus="rows.jsonl")
    described = load_model_index(str(root / model))
    return calibrated(described, stats, sequences, batch_size=2, **chosen)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Folder with what two processes did, and `seen-RANK.json`."""
    root = tmp_path_factory.mktemp("two")
    for model in ("olmoe", "qwen3_moe"):
        tiny_checkpoint(root / model, model)
    for layer in (0, 2):
        broken = tiny_model("olmoe")
        with torch.no_grad():
            broken.model.layers[layer].mlp.experts.down_proj.fill_(torch.inf)
        broken.save_pretrained(root / f"broken-{layer}")
    (root / "rows.json").write_text(json.dumps(ROWS))
    (root / "other.json").write_text(json.dumps(random_rows(1, [4, 4])))
    with torchrun(HERE / "two_processes.py", root) as launcher:
        _, complaints = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, complaints
    return root


def seen_by(root, rank):
    return json.loads((root / f"seen-{rank}.json").read_text())


@pytest.mark.parametrize(
    ("name", "model", "groups"),
    [
        ("both", "olmoe", ("routed",)),
        ("neurons", "qwen3_moe", ("routed", "gradient")),
        ("samples", "qwen3_moe", ("routed", "router", "damage", "dense")),
    ],
)
def test_two_processes_give_the_bits_of_one(both, tmp_path, name, model, groups):
    alone = run_alone(both, model, tmp_path, groups=groups)
    shared = StatsStore(both / name).get(alone.manifest.run_id)
    assert shared.manifest.made["processes"] == 2
    assert shared.manifest.made["way"] == "batches"
    assert_same_numbers(shared, alone)


def test_each_process_reads_and_holds_its_layers_alone(both):
    stored = load_model_index(str(both / "olmoe")).checkpoint.tensors
    (last, *end), (first, *start) = (seen_by(both, rank)["share"] for rank in (0, 1))
    assert (first, last) in (([0], [1, 2]), ([0, 1], [2]))
    for layers, (names, held) in ((last, end), (first, start)):
        assert {int(name.split(".")[2]) for name in names if ".layers." in name} == set(layers)
        assert held == sum(stored[name].nbytes for name in names)
        assert held < 0.75 * sum(entry.nbytes for entry in stored.values())
    assert sorted(start[0] + end[0]) == sorted(stored)  # each tensor is read once


def test_an_interrupted_run_of_two_goes_on_with_the_same_bits(both):
    first, second = (StatsStore(both / name).runs()[0].manifest for name in ("both", "continued"))
    notes = [seen_by(both, rank)["continued"] for rank in (0, 1)]
    assert notes == ["resumed after 35 of 106 tokens"] * 2
    assert first.run_id == second.run_id
    assert first.files == second.files
    # Both know a finished run.
    assert [seen_by(both, rank)["again"] for rank in (0, 1)] == [["cached"], ["cached"]]


def test_one_process_goes_on_where_two_were_stopped(both, tmp_path):
    run = run_alone(both, "olmoe", both / "stopped")
    assert run.manifest.made["processes"] == 1
    assert_same_numbers(run, run_alone(both, "olmoe", tmp_path))


def test_sums_travel_whole_and_in_order(both):
    first, second = (seen_by(both, rank)["round_trip"] for rank in (0, 1))
    assert (first["parts"], second["parts"]) == ([[[1.0] * 3] * 2, [[10.0] * 3] * 2], [])
    assert first["spread"] == second["spread"] == [[1.0] * 3] * 2
    assert first["total"] == second["total"] == [[11.0] * 3] * 2
    assert first["shared"] == second["shared"] == {"rank": 0}


def test_a_failure_in_one_process_reaches_the_other(both):
    own = "UserError: no room here"
    told = "OtherProcessError: Process {} of 2 failed: no room here"
    assert seen_by(both, 0)["failure"] == [own, told.format(1)]
    assert seen_by(both, 1)["failure"] == [told.format(0), own]


def test_a_failure_on_the_way_stops_all_in_the_line(both):
    # The first process has the last layers.
    for place, rank in enumerate((1, 0)):
        own, told = (seen_by(both, process)["broken"][place] for process in (rank, 1 - rank))
        assert "StatsError: Expert" in own
        reason = own.partition(": ")[2]
        assert told == f"OtherProcessError: Process {rank} of 2 failed: {reason}"
    assert StatsStore(both / "broken").runs() == []


def test_a_failure_while_others_save_stops_all(both):
    assert seen_by(both, 1)["backward"] == "UserError: no room for gradients"
    told = "OtherProcessError: Process 1 of 2 failed: no room for gradients"
    assert seen_by(both, 0)["backward"] == told
    assert StatsStore(both / "backward").runs() == []


def test_what_takes_the_room_decides_what_a_refusal_advises(both):
    layers, activations = seen_by(both, 0)["small"]
    assert "processes have room for 0.0 GiB at most" in layers
    assert layers.endswith("or use one process with --stream-layers.")
    assert "for the activations that backward needs" in activations
    assert activations.endswith("a shorter --seq-len, or --checkpoint-activations.")


def test_one_process_measures_the_weights_and_the_others_wait(both):
    assert seen_by(both, 0)["weights"] == [["reading weights"], 1]
    assert seen_by(both, 1)["weights"] == [["cached"], 1]
    assert seen_by(both, 0)["alone"] == "UserError: no weights here"
    assert seen_by(both, 1)["alone"] == "OtherProcessError: Process 0 of 2 failed: no weights here"


def test_processes_that_read_different_tokens_are_stopped(both):
    assert "another run than the first process" in seen_by(both, 1)["differ"]
    assert seen_by(both, 0)["differ"].startswith("OtherProcessError: Process 1 of 2")
    assert StatsStore(both / "differ").runs() == []


def rank_pid(launcher, rank):
    for child in psutil.Process(launcher.pid).children(recursive=True):
        if child.environ().get("RANK") == str(rank):
            return child.pid
    return None


def wait_for(condition, seconds):
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        if found := condition():
            return found
        time.sleep(0.05)
    pytest.fail(f"waited {seconds} s in vain")


@pytest.mark.slow
def test_a_dead_process_ends_the_command_with_a_message(tmp_path):
    tiny_checkpoint(tmp_path / "model", "olmoe")
    corpus = random_ids(tmp_path / "rows.jsonl", (20_000, 16))
    words = ["calibrate", tmp_path / "model", "--corpus", corpus, "--tokens", 320_000]
    words += ["--seq-len", 16, "--batch-size", 1, "--stats-dir", tmp_path / "stats"]
    with torchrun("-m", "app.cli", *words, cwd=tmp_path) as launcher:
        wait_for(lambda: list(tmp_path.glob("stats/*.partial")), 60)
        os.kill(rank_pid(launcher, 1), signal.SIGKILL)
        printed, complaints = launcher.communicate(timeout=120)
    assert launcher.returncode != 0
    assert printed == ""
    # Whichever comes first: the survivor misses its peer, or the launcher stops the survivor.
    lines = [line for line in complaints.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, complaints
    assert "same command" in lines[0]
    assert "resume" in lines[0]
    assert not [noise for noise in ("Exception ignored", "SystemExit") if noise in complaints]
    assert StatsStore(tmp_path / "stats").runs() == []


def test_the_parts_of_a_sum_are_added_one_at_a_time():
    alive = []

    def parts():
        for rank in range(4):
            part = torch.full((3,), 10.0**rank, dtype=torch.float64)
            alive.append(weakref.ref(part))
            yield {"a": part}
            del part
            # The one that was just added may still be held, those before it not.
            assert all(reference() is None for reference in alive[:-1])

    assert folded(parts())["a"].tolist() == [1111.0] * 3
    assert folded([]) == {}


def test_without_a_launcher_there_is_one_process():
    processes = join()
    assert processes == Processes(0, 1)
    assert (processes.gather({}), processes.spread({})) == ([{}], {})
    with pytest.raises(OSError, match="full"), processes.together():
        raise OSError("full")
