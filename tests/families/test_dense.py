"""The group `dense` in every family: each expert on each token, one by one, for each sample."""

import math
from itertools import pairwise

import pytest
import torch

from analysis.calibration.experts import batch_mask, collecting
from analysis.calibration.sums import sums_of
from families.built import stock_load
from families.configs import CASES, VOCAB
from families.physical import block_of, router_of
from families.plain import expert_output
from families.test_router_group import plain_logits

IDS = torch.randint(3, VOCAB, (2, 6), generator=torch.Generator().manual_seed(17))
MASK = torch.ones(2, 6, dtype=torch.bool)
MASK[1, 4:] = False
# The rows are the last two of four samples.
SAMPLES = torch.tensor([[2], [3]]).expand(2, 6)


def softmax(values):
    powers = [math.exp(value - max(values)) for value in values]
    return [power / math.fsum(powers) for power in powers]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_expert_on_every_token(built, case):
    source = built(case)
    model, described = stock_load(case, source.paths["experts"])[0].double(), source.described()
    routers, modules, inputs, chosen = {}, {}, {}, {}
    handles = []
    for layer in case.sparse:
        router = router_of(model, case, layer)
        handles.append(
            router.register_forward_hook(lambda _, args, out, at=layer: routers.update({at: args}))
        )
        handles.append(
            router.register_forward_hook(
                lambda _, args, out, at=layer: chosen.update({at: out[-1].reshape(12, -1).tolist()})
            )
        )
        modules[layer] = block_of(model, case, layer).experts
        handles.append(
            modules[layer].register_forward_hook(
                lambda _, args, out, at=layer: inputs.update({at: (args[0], out)})
            )
        )
    sums = sums_of(described, ("dense",), num_samples=4)
    with torch.no_grad(), collecting(model, described, sums):
        batch_mask(MASK, None, SAMPLES)
        model(input_ids=IDS, attention_mask=MASK.long(), use_cache=False)
    for handle in handles:
        handle.remove()
    for layer in case.sparse:
        hidden, routed = (each.reshape(12, -1) for each in inputs[layer])
        router_input = routers[layer][0].reshape(12, -1)
        logits = plain_logits(router_of(model, case, layer), router_input)
        wanted = {name: [[0.0] * case.experts for _ in range(4)] for name in ("a", "r", "loss")}
        for token in MASK.reshape(-1).nonzero()[:, 0].tolist():
            sample = 2 + token // 6
            shares = softmax(logits[token].tolist())
            for expert in range(case.experts):
                f = expert_output(case.model_type, modules[layer], expert, hidden[token])
                wanted["a"][sample][expert] += math.sqrt(math.fsum(v * v for v in f.tolist()))
                difference = (routed[token] - f).tolist()
                wanted["loss"][sample][expert] += math.fsum(v * v for v in difference)
                wanted["r"][sample][expert] += shares[expert]
        for name, key, accuracy in (
            ("dense_activation", "a", 1e-9),
            ("dense_loss", "loss", 1e-9),
            # Some routers compute their logits in float32, whatever the model's element type.
            ("dense_probability", "r", 1e-5),
        ):
            for sample in range(4):
                found = sums.of(name, layer)[sample].tolist()
                assert found == pytest.approx(wanted[key][sample], rel=accuracy)
        assert sums.of("dense_tokens", layer).tolist() == [0, 0, 6, 4]
    assert_transitions(sums, chosen, case)
    assert sums.chosen == {}


def assert_transitions(sums, chosen, case):
    """Counted pair by pair from what each router returned, token by token."""
    for before, layer in pairwise(case.sparse):
        counts = [[0] * case.experts for _ in range(case.experts)]
        for token in MASK.reshape(-1).nonzero()[:, 0].tolist():
            for expert in chosen[before][token]:
                for after in chosen[layer][token]:
                    counts[expert][after] += 1
        assert sums.of("transitions", layer).tolist() == counts
