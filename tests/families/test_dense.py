"""The groups `router` and `dense` in every family, against sums over single tokens and experts."""

import math
from itertools import pairwise, product

import pytest
import torch

from analysis.calibration import dense
from analysis.calibration.experts import batch_mask, collecting
from analysis.calibration.sums import sums_of
from families.built import stock_load
from families.configs import EVERY
from families.physical import block_of, listening, router_of
from families.plain import expert_output
from families.settings import VOCAB

IDS = torch.randint(3, VOCAB, (2, 6), generator=torch.Generator().manual_seed(17))
MASK = torch.ones(2, 6, dtype=torch.bool)
MASK[1, 4:] = False
NUM_TOKENS = MASK.numel()
# The rows are the last two of four samples.
SAMPLES = torch.tensor([[2], [3]]).expand(2, 6)
# Some routers compute their logits in float32, whatever the model's dtype.
ACCURACY = {"dense_activation": 1e-9, "dense_loss": 1e-9, "dense_probability": 1e-5}

# Whose activation works in float32 in a float64 model too.
ROUNDED = {"beam": 1e-6}


def plain_logits(router, hidden):
    """The router's matrix times the hidden state: no bias that acts on the choice alone."""
    hidden = hidden.double()
    if hasattr(router, "per_expert_scale"):  # Gemma 4: normalised and scaled first
        mean = (hidden**2).mean(dim=-1, keepdim=True) + router.eps
        scale = router.scale.detach().double() / math.sqrt(hidden.shape[-1])
        return hidden / mean.sqrt() * scale @ router.proj.weight.detach().double().T
    held = next((name for name in ("wg", "gate") if hasattr(router, name)), "")
    weight = router.get_submodule(held).weight
    logits = hidden @ weight.detach().double().T
    if cap := getattr(router, "router_logit_softcapping", 0):  # Laguna
        logits = cap * torch.tanh(logits / cap)
    bias = dict(router.named_parameters(recurse=False)).get("bias")
    return logits if bias is None else logits + bias.detach().double()


def softmax(values):
    powers = [math.exp(value - max(values)) for value in values]
    return [power / math.fsum(powers) for power in powers]


def squares(vector):
    return math.fsum(value * value for value in vector.tolist())


def plain_sums(model, case, layer, heard):
    """Of each sample and expert: sums of ||f||, ||Y - f||^2 and the softmax; and the entropy."""
    router, experts = router_of(model, case, layer), block_of(model, case, layer).experts
    logits = plain_logits(router, heard.routed[layer][0][0].reshape(NUM_TOKENS, -1))
    (hidden, *_), output = heard.ran[layer]
    hidden, output = hidden.reshape(NUM_TOKENS, -1), output.reshape(NUM_TOKENS, -1)
    sums, entropy = {name: [[0.0] * case.experts for _ in range(4)] for name in ACCURACY}, 0.0
    for token in MASK.reshape(-1).nonzero()[:, 0].tolist():
        sample = 2 + token // 6
        shares = softmax(logits[token].tolist())
        entropy -= sum(share * math.log(share) for share in shares)
        for expert in range(case.experts):
            f = expert_output(case.model_type, experts, expert, hidden[token])
            sums["dense_activation"][sample][expert] += math.sqrt(squares(f))
            sums["dense_loss"][sample][expert] += squares(output[token] - f)
            sums["dense_probability"][sample][expert] += shares[expert]
    return sums, entropy


def pairs(first, second, case):
    """Counted pair by pair from what routers returned, token by token."""
    counts = [[0] * case.experts for _ in range(case.experts)]
    for token in MASK.reshape(-1).nonzero()[:, 0].tolist():
        for expert, other in product(first[token], second[token]):
            counts[expert][other] += 1
    return counts


@pytest.mark.parametrize("case", EVERY)
def test_routers_and_every_expert_token_by_token(built, case, monkeypatch):
    monkeypatch.setattr(dense, "_ROWS", 4)  # ten tokens that count: the last block is shorter
    source = built(case)
    model, described = stock_load(case, source.paths["experts"])[0].double(), source.described()
    sums = sums_of(described, ("router", "dense"), num_samples=4)
    with torch.no_grad(), listening(model, case) as heard, collecting(model, described, sums):
        batch_mask(MASK, None, SAMPLES)
        model(input_ids=IDS, attention_mask=MASK.long(), use_cache=False)
    for layer in case.sparse:
        wanted, entropy = plain_sums(model, case, layer, heard)
        for name, accuracy in ACCURACY.items():
            for sample in range(4):
                found = sums.of(name, layer)[sample].tolist()
                allowed = max(accuracy, ROUNDED.get(case.model_type, 0))
                assert found == pytest.approx(wanted[name][sample], rel=allowed)
        assert sums.of("dense_tokens", layer).tolist() == [0, 0, 6, 4]
        totals = [sum(column) for column in zip(*wanted["dense_probability"], strict=True)]
        assert sums.of("probabilities", layer).tolist() == pytest.approx(totals, rel=1e-5)
        assert float(sums.of("entropy", layer)) == pytest.approx(entropy, rel=1e-5)
        assert int(sums.of("tokens", layer)) == int(MASK.sum())
    routed = heard.routed.items()
    chosen = {layer: out[-1].reshape(NUM_TOKENS, -1).tolist() for layer, (_, out) in routed}
    for layer, own in chosen.items():
        assert sums.of("coactivation", layer).tolist() == pairs(own, own, case)
    for before, layer in pairwise(case.sparse):
        counted = pairs(chosen[before], chosen[layer], case)
        assert sums.of("transitions", layer).tolist() == counted
    assert sums.chosen == {}
