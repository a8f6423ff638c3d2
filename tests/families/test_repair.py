"""Repairs of every family, against a dense least-squares solution by plain loops in float64."""

from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from exports import export, keeping_neurons, uneven
from safetensors.torch import load_file, save_file

from analysis.errors import UnsupportedModelError
from analysis.model import load_model_index
from builders.repairs import repaired, token_sequences
from families.built import HAND_ON_MORE, stock_load
from families.configs import BY_NAME, EVERY, tiny_model
from families.physical import block_of
from families.plain import activations, matrices_of
from pruning.masking import masked
from pruning.plan import PruningPlan, fit_plan, model_ref

SEQUENCES = token_sequences(10, 12)
IDS = torch.from_numpy(np.stack(SEQUENCES.rows)).long()
# A norm follows the experts' output, or streams mix it: only that output can be the target.
BEHIND_A_NORM = {"afmoe", "gemma4", "deepseek_v4"}


@dataclass
class Heard:
    """What one forward of a layer computes."""

    experts: list = field(default_factory=list)  # (hidden, ids, gate weights, output)
    layer: list = field(default_factory=list)  # its output


def heard(model, case, layer, ids=IDS):
    """One forward of a model over all tokens."""
    block, said = block_of(model, case, layer), Heard()
    experts = block.get_submodule("experts")
    decoder = next(
        module
        for name, module in model.named_modules()
        if name.endswith(f"layers.{layer}") and block in set(module.modules())
    )
    with ExitStack() as hooks, torch.no_grad():
        hooks.callback(
            experts.register_forward_hook(
                lambda _, inputs, out: said.experts.append((*inputs, out))
            ).remove
        )
        hooks.callback(
            decoder.register_forward_hook(
                lambda _, __, out: said.layer.append(out if torch.is_tensor(out) else out[0])
            ).remove
        )
        model(ids, use_cache=False)
    return said


def system_of(case, model, layer, kept, said):
    """(tokens, kept x neurons) in float64, and the neurons of an expert: one pair at a time."""
    experts = block_of(model, case, layer).get_submodule("experts")
    hidden, index, weights, _ = (each.detach().double() for each in said.experts[0])
    matrices = [matrices_of(case.model_type, experts, expert) for expert in kept]
    matrices = [
        type(each)(
            *(value.double() if torch.is_tensor(value) else value for value in vars(each).values())
        )
        for each in matrices
    ]
    width = matrices[0].down.shape[0]
    system = np.zeros((len(hidden), len(kept) * width))
    for token in range(len(hidden)):
        for expert, gate in zip(index[token].long().tolist(), weights[token], strict=True):
            place = kept.index(expert)
            a = activations(case.model_type, experts, matrices[place], hidden[token])
            system[token, place * width : (place + 1) * width] += float(gate) * a.numpy()
    return system, width


@pytest.mark.parametrize(
    "name",
    ["olmoe", "qwen3_moe", "deepseek_v3-groups", "gpt_oss", "nemotron_h", "granitemoe", "afmoe"],
)
def test_the_first_layer_is_nearly_the_best_that_least_squares_can_do(built, tmp_path, name):
    case = BY_NAME[name]
    source = built(case)
    model = source.described()
    plan, record = repaired(model, without_the_first(model), tmp_path / "stats", SEQUENCES)
    first = record.layers[0]
    layer, kept = first.layer, list(plan.kept[first.layer])
    assert len(kept) < next(each.num_experts for each in model.layers if each.index == layer)
    loaded, _ = stock_load(case, source.paths["experts"], dtype=torch.float32)
    original = heard(loaded, case, layer)
    with masked(loaded, model.family, plan.unrepaired):
        pruned = heard(loaded, case, layer)
    system, width = system_of(case, loaded, layer, kept, pruned)
    assert first.target == ("experts" if case.model_type in BEHIND_A_NORM else "layer")
    if first.target == "experts":
        lacking = original.experts[0][-1] - pruned.experts[0][-1]
    else:
        factor = getattr(loaded.config, "residual_multiplier", 1.0)
        lacking = (original.layer[0] - pruned.layer[0]) / factor
    lacking = lacking.reshape(len(system), -1).double().numpy()
    damping = first.damping or 1.0
    gram = system.T @ system
    penalty = damping * np.trace(gram) / len(gram)
    best = np.linalg.solve(gram + penalty * np.eye(len(gram)), system.T @ lacking)

    def cost(change):
        return ((lacking - system @ change) ** 2).sum() + penalty * (change**2).sum()

    export(model, plan, tmp_path / "out")
    pruned_model, _ = stock_load(case, tmp_path / "out", dtype=torch.float32)
    change = np.concatenate(
        [
            down_of(case, pruned_model, layer, place) - down_of(case, loaded, layer, expert)
            for place, expert in enumerate(kept)
        ]
    )
    assert change.shape == (len(kept) * width, lacking.shape[1])
    if first.damping is None:
        assert not change.any()
        return
    assert cost(best) <= cost(change) <= 1.05 * cost(best)
    assert cost(change) < cost(np.zeros_like(best))


def down_of(case, model, layer, expert):
    """(neurons, width) float64 of a loaded model's expert."""
    experts = block_of(model, case, layer).get_submodule("experts")
    return matrices_of(case.model_type, experts, expert).down.double().numpy()


def without_the_first(model):
    """Each group of each layer loses its first expert."""
    kept = {}
    for layer in model.layers:
        size = layer.num_experts // layer.num_groups
        kept[layer.index] = tuple(each for each in range(layer.num_experts) if each % size)
    return PruningPlan(model_ref(model), kept)


@pytest.mark.parametrize("case", EVERY)
def test_every_family_is_repaired_or_refused_by_name(built, tmp_path, case):
    model = built(case).described()
    plan = uneven(model)
    if case.model_type in HAND_ON_MORE:
        with pytest.raises(UnsupportedModelError, match="cannot be repaired layer by layer"):
            repaired(model, plan, tmp_path, SEQUENCES)
        assert not list(tmp_path.glob("repairs/*"))
        assert not list(tmp_path.glob("repairs/.*"))
        return
    plan, record = repaired(model, plan, tmp_path, SEQUENCES)
    assert [each.layer for each in record.layers] == [each.index for each in model.layers]
    loaded, _ = stock_load(case, built(case).paths["experts"], dtype=torch.float32)
    errors = {}
    for name, candidate in (("pruned", plan.unrepaired), ("repaired", plan)):
        with masked(loaded, model.family, candidate), torch.no_grad():
            errors[name] = loaded(IDS, use_cache=False).logits
    with torch.no_grad():
        whole = loaded(IDS, use_cache=False).logits
    pruned, new = (float((errors[each] - whole).square().mean()) for each in errors)
    if record.files:
        assert new < pruned


def test_neurons_that_stay_take_over_and_those_that_go_do_nothing(built, tmp_path):
    case = BY_NAME["olmoe"]
    model = built(case).described()
    layer = model.layers[0].index
    neurons = dict.fromkeys(range(model.layers[0].num_experts), (0, 2, 5))
    plan = keeping_neurons(model, {layer: neurons})
    plan, record = repaired(model, plan, tmp_path, token_sequences(60, 16))
    assert fit_plan(plan, model).kept_neurons[layer][1] == (0, 2, 5)
    assert record.files
    before = {}
    for shard in built(case).paths["experts"].glob("*.safetensors"):
        before |= load_file(shard)
    new = load_file(plan.repair.file(layer))
    name = next(each for each in new if ".experts.1." in each)
    changed = (new[name] != before[name]).any(dim=0)
    assert changed.nonzero().flatten().tolist() == [0, 2, 5]


def test_quantised_and_packed_projections_are_refused_before_anything_is_loaded(tmp_path):
    tiny_model(BY_NAME["olmoe"]).save_pretrained(tmp_path / "m", save_original_format=True)
    (shard,) = (tmp_path / "m").glob("*.safetensors")
    tensors = load_file(shard)
    name = next(each for each in tensors if "down_proj" in each)
    save_file({**tensors, name: tensors[name].to(torch.float8_e4m3fn)}, shard, {"format": "pt"})
    model = load_model_index(str(tmp_path / "m"))
    with pytest.raises(UnsupportedModelError, match=r"cannot be repaired: .*down_proj.* quantised"):
        repaired(model, uneven(model), tmp_path / "stats", SEQUENCES)
