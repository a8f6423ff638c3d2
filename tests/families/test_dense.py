"""The group `dense` in every family: each expert on each token, one by one, for each sample."""

import math
from itertools import pairwise

import pytest
import torch

from analysis.calibration.experts import batch_mask, collecting
from analysis.calibration.sums import sums_of
from families.built import stock_load
from families.configs import EVERY, VOCAB
from families.physical import block_of, listening, router_of
from families.plain import expert_output
from families.test_router_group import plain_logits

IDS = torch.randint(3, VOCAB, (2, 6), generator=torch.Generator().manual_seed(17))
MASK = torch.ones(2, 6, dtype=torch.bool)
MASK[1, 4:] = False
NUM_TOKENS = MASK.numel()
# The rows are the last two of four samples.
SAMPLES = torch.tensor([[2], [3]]).expand(2, 6)
# Some routers compute their logits in float32, whatever the model's dtype.
ACCURACY = {"dense_activation": 1e-9, "dense_loss": 1e-9, "dense_probability": 1e-5}


def softmax(values):
    powers = [math.exp(value - max(values)) for value in values]
    return [power / math.fsum(powers) for power in powers]


def squares(vector):
    return math.fsum(value * value for value in vector.tolist())


def plain_sums(model, case, layer, heard):
    """Of each sample and expert: sums of ||f||, ||Y - f||^2 and the softmax, token by token."""
    router, experts = router_of(model, case, layer), block_of(model, case, layer).experts
    logits = plain_logits(router, heard.routed[layer][0][0].reshape(NUM_TOKENS, -1))
    (hidden, *_), output = heard.ran[layer]
    hidden, output = hidden.reshape(NUM_TOKENS, -1), output.reshape(NUM_TOKENS, -1)
    sums = {name: [[0.0] * case.experts for _ in range(4)] for name in ACCURACY}
    for token in MASK.reshape(-1).nonzero()[:, 0].tolist():
        sample = 2 + token // 6
        shares = softmax(logits[token].tolist())
        for expert in range(case.experts):
            f = expert_output(case.model_type, experts, expert, hidden[token])
            sums["dense_activation"][sample][expert] += math.sqrt(squares(f))
            sums["dense_loss"][sample][expert] += squares(output[token] - f)
            sums["dense_probability"][sample][expert] += shares[expert]
    return sums


@pytest.mark.parametrize("case", EVERY)
def test_every_expert_on_every_token(built, case):
    source = built(case)
    model, described = stock_load(case, source.paths["experts"])[0].double(), source.described()
    sums = sums_of(described, ("dense",), num_samples=4)
    with torch.no_grad(), listening(model, case) as heard, collecting(model, described, sums):
        batch_mask(MASK, None, SAMPLES)
        model(input_ids=IDS, attention_mask=MASK.long(), use_cache=False)
    for layer in case.sparse:
        wanted = plain_sums(model, case, layer, heard)
        for name, accuracy in ACCURACY.items():
            for sample in range(4):
                found = sums.of(name, layer)[sample].tolist()
                assert found == pytest.approx(wanted[name][sample], rel=accuracy)
        assert sums.of("dense_tokens", layer).tolist() == [0, 0, 6, 4]
    routed = heard.routed.items()
    chosen = {layer: out[-1].reshape(NUM_TOKENS, -1).tolist() for layer, (_, out) in routed}
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
