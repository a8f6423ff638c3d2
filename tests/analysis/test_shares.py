"""How layers are divided among processes, and what each of them reads and holds."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from calibrations import assert_same_numbers, calibrated, make_sequences

from analysis.calibration.loading import CalibrationSettings
from analysis.calibration.shares import LayerWork, divide, stored_sizes
from analysis.calibration.skeleton import HEAD, OUTPUT, Skeleton
from analysis.errors import CheckpointError
from analysis.model.opening import load_model_index
from analysis.stats.store import StatsStore
from families.built import HAND_ON_MORE
from families.configs import BY_NAME, DISTINCT
from families.headed import HEADED, Made
from families.tiny_models import tiny_model

GIB = 1 << 30


def loads(ends, amounts):
    return [sum(amounts[start:end]) for start, end in itertools.pairwise(ends)]


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("room", [100, 9, 7])
def test_the_largest_share_is_as_small_as_it_can_be(processes, room):
    costs, sizes = [3.0, 1, 4, 1, 5, 2, 2], [1, 5, 1, 2, 1, 3, 4]
    inner = itertools.combinations(range(1, len(costs)), processes - 1)
    every = [(0, *cuts, len(costs)) for cuts in inner]
    fitting = [ends for ends in every if max(loads(ends, sizes)) <= room]
    if not fitting:
        with pytest.raises(CheckpointError, match=f"the {processes} processes have room for"):
            divide(costs, sizes, [room] * processes)
        return
    ends = divide(costs, sizes, [room] * processes)
    assert tuple(ends) in fitting
    assert max(loads(ends, costs)) == min(max(loads(some, costs)) for some in fitting)


def test_a_process_with_less_room_gets_less():
    assert divide([1.0] * 4, [GIB] * 4, [GIB, 3 * GIB]) == [0, 1, 4]
    with pytest.raises(CheckpointError, match=r"take 4.0 GiB, and the 2 .* 3.0 GiB at most"):
        divide([1.0] * 4, [GIB] * 4, [GIB, 2 * GIB])
    with pytest.raises(CheckpointError, match="5 processes cannot share 4 layers; start at most 4"):
        divide([1.0] * 4, [1] * 4, [9] * 5)


def sizes_of(path, groups=("routed",)):
    model = load_model_index(str(path))
    settings = CalibrationSettings(seq_len=9, groups=groups, device="cpu")
    work = LayerWork([1.0] * model.depth, None, (HEAD, OUTPUT))
    return stored_sizes(model, Skeleton(model, settings), settings, work)


def with_head(headed, folder):
    """A checkpoint with a head, and the same one without."""
    plain = folder / "plain"
    tiny_model(BY_NAME[headed.case]).save_pretrained(plain, max_shard_size="40KB")
    return Made(lambda _: SimpleNamespace(paths={"experts": plain}), headed, folder), plain


@pytest.mark.parametrize("headed", [HEADED[0], HEADED[3]], ids=str)
def test_heads_take_room_in_the_last_process_if_they_are_run(headed, tmp_path):
    made, plain = with_head(headed, tmp_path)
    *others, last = sizes_of(plain)
    assert sizes_of(made.path) == [*others, last]
    heads = sum(tensor.nbytes for tensor in made.held.values())
    assert sizes_of(made.path, ("routed", "heads")) == [*others, last + heads]


def test_tied_embeddings_take_room_at_both_ends(tmp_path):
    case = BY_NAME["mixtral"]
    tied = replace(case, settings=case.settings | {"tie_word_embeddings": True})
    tiny_model(tied).save_pretrained(tmp_path)
    tensors = load_model_index(str(tmp_path)).checkpoint.tensors
    assert "lm_head.weight" not in tensors
    sizes = sizes_of(tmp_path)
    for layer, more in ((0, ("embed_tokens",)), (len(sizes) - 1, ("embed_tokens", "model.norm"))):
        parts = (f"layers.{layer}.", *more)
        wanted = [tensors[name].nbytes for name in tensors if any(part in name for part in parts)]
        assert sizes[layer] == sum(wanted)


@pytest.mark.slow  # test_distributed.py has two processes and two families
def test_three_processes_give_the_bits_of_one_for_every_kind_of_family(forks, tmp_path):
    cases = [param.values[0] for param in DISTINCT]
    asked = {str(case): ("routed", "router", "dense") for case in cases}
    for case in cases:
        tiny_model(case).save_pretrained(tmp_path / str(case))
    headed, _ = with_head(HEADED[0], tmp_path)
    asked[headed.path.name] = ("routed", "gradient", "heads")
    (tmp_path / "cases.json").write_text(json.dumps(list(asked.items())))
    forks.ranks(Path(__file__).parent / "three_processes.py", tmp_path, processes=3)
    refused = json.loads((tmp_path / "refused-0.json").read_text())
    few = {str(case) for case in cases if load_model_index(str(tmp_path / str(case))).depth < 3}
    handing = {str(case) for case in cases if case.model_type in HAND_ON_MORE}
    assert refused.keys() == few | handing
    assert all("cannot be divided among processes" in refused[name] for name in handing - few)
    for name in asked.keys() - refused.keys():
        described = load_model_index(str(tmp_path / name))
        sequences = make_sequences(vocabulary=described.config["vocab_size"])
        more = {"groups": asked[name], "batch_size": 2}
        alone = calibrated(described, tmp_path / "alone" / name, sequences, **more)
        shared = StatsStore(tmp_path / "stats" / name).get(alone.manifest.run_id)
        assert shared.manifest.made["processes"] == 3
        assert_same_numbers(shared, alone)
