"""Memory of weights that are gone goes to the next ones, unless something still refers to it."""

import psutil
import pytest
import torch
from calibrations import make_settings

from analysis.calibration import weight_memory
from analysis.calibration.skeleton import Skeleton
from analysis.calibration.weight_memory import WeightMemory
from analysis.model.opening import load_model_index
from analysis.model.parts import stack_bytes
from builders import tiny_checkpoint

SIZE = 1 << 26


def resident():
    return psutil.Process().memory_info().rss


def test_memory_is_given_again_once_nothing_refers_to_it():
    memory = WeightMemory()
    memory.expect([SIZE] * 2)
    first = memory.empty(SIZE)
    place = first.data_ptr()
    view = first.fill_(7).view(torch.int64)[5:9]
    del first
    second = memory.empty(SIZE).fill_(1)
    assert second.data_ptr() != place
    assert (view.view(torch.uint8) == 7).all()
    memory.expect([SIZE])
    del view
    assert memory.empty(SIZE).data_ptr() == place


def test_what_is_not_expected_returns_to_the_system():
    memory, before = WeightMemory(), resident()
    memory.expect([SIZE])
    tensor = memory.empty(SIZE).fill_(1)
    assert resident() - before > SIZE // 2
    del tensor  # all that were expected have been given
    assert resident() - before < SIZE // 2
    memory.expect([SIZE] * 2)
    tensor = memory.empty(SIZE).fill_(1)
    del tensor  # is kept for the second
    assert resident() - before > SIZE // 2
    memory.expect([SIZE // 2])
    assert resident() - before < SIZE // 2


def test_memory_can_be_taken_before_it_is_asked_for():
    memory, before = WeightMemory(), resident()
    memory.expect([2 * SIZE, SIZE])
    assert sum(memory.take([SIZE, 2 * SIZE, 5])) == 3 * SIZE  # small tensors have the heap's
    there = resident()
    assert there - before > 2.5 * SIZE
    first, second = memory.empty(SIZE), memory.empty(2 * SIZE)
    for tensor in first, second:
        tensor.fill_(7)
    assert resident() - there < SIZE // 4
    memory.expect([SIZE, SIZE])
    del first, tensor
    assert sum(memory.take([SIZE, SIZE])) == SIZE


def test_smaller_tensors_take_the_memory_of_larger_ones_where_they_may():
    memory = WeightMemory(4)
    memory.expect([2 * SIZE, SIZE])
    large, small = memory.empty(2 * SIZE).fill_(1), memory.empty(SIZE).fill_(2)
    places = large.data_ptr(), small.data_ptr()
    memory.expect([SIZE, SIZE // 2, SIZE // 4])
    del large, small
    assert not sum(memory.take([SIZE, SIZE // 2]))
    second, first = memory.empty(SIZE // 2).fill_(4), memory.empty(SIZE).fill_(3)
    assert (first.data_ptr(), second.data_ptr()) == places  # what comes first has the largest
    assert (len(first), len(second)) == (SIZE, SIZE // 2)
    assert (first == 3).all() and (second == 4).all()
    assert memory.empty(SIZE // 4).data_ptr() not in places
    memory.expect([2 * SIZE, SIZE, SIZE])
    del first, second
    again = memory.empty(2 * SIZE), memory.empty(SIZE)
    assert tuple(tensor.data_ptr() for tensor in again) == places
    memory, before = WeightMemory(4), resident()
    memory.expect([SIZE])
    tensor = memory.empty(SIZE).fill_(1)
    memory.expect([SIZE // 4])
    del tensor
    assert resident() - before > SIZE // 2
    memory.expect([SIZE // 4 - 1])  # which may have four times its bytes
    assert resident() - before < SIZE // 2


@pytest.mark.parametrize("fused", [False, True])
def test_a_layer_takes_the_memory_of_the_one_before_unless_a_view_is_left(
    fused, tmp_path, monkeypatch
):
    monkeypatch.setattr(weight_memory, "_LEAST", 1)
    kind = {"model_type": "mixtral", "fused": True} if fused else {"model_type": "olmoe"}
    tiny_checkpoint(tmp_path / "model", **kind)
    skeleton = Skeleton(load_model_index(str(tmp_path / "model")), make_settings())
    layers, places, views, copies = skeleton.layers, [], [], []
    for layer in range(3):
        skeleton.load(layer)
        experts = layers[layer].mlp.experts.down_proj
        places.append(experts.data_ptr())
        if layer == 1:
            views.append(experts[1:])
            copies.append(experts[1:].clone())
        del experts
        skeleton.drop(layer)
    assert places[1] == places[0]
    assert places[2] != places[1]
    assert torch.equal(views[0], copies[0])


@pytest.mark.parametrize("fused", [False, True])
def test_layers_take_the_memory_that_was_stated(fused, tmp_path, monkeypatch):
    """Of three alike the first one's: 8 experts with three matrices; none if nothing is stacked."""
    monkeypatch.setattr(weight_memory, "_LEAST", 1)
    kind = {"model_type": "mixtral", "fused": True} if fused else {"model_type": "olmoe"}
    tiny_checkpoint(tmp_path / "model", **kind)
    model = load_model_index(str(tmp_path / "model"))
    skeleton, taken = Skeleton(model, make_settings()), []
    stated = skeleton.memory_to_take(range(3))
    item = next(skeleton.model.parameters()).element_size()
    stacks = stack_bytes(model, item)  # which tell it before there is a skeleton
    assert weight_memory.bytes_to_take([stacks.get(layer, 0)] for layer in range(3)) == stated
    for layer in range(3):
        taken.append(sum(skeleton.take_memory(layer)))
        skeleton.load(layer)
        skeleton.drop(layer)
    assert stated == sum(taken)
    assert [bool(size) for size in taken] == [not fused, False, False]
