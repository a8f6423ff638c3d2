"""The group `router` in every family, against sums over single tokens."""

import itertools
import math

import pytest
import torch

from analysis.calibration.experts import batch_mask, collecting
from analysis.calibration.sums import sums_of
from families.built import stock_load
from families.configs import EVERY, VOCAB
from families.physical import listening, router_of

IDS = torch.randint(3, VOCAB, (2, 8), generator=torch.Generator().manual_seed(13))
MASK = torch.ones(2, 8, dtype=torch.bool)
MASK[1, 3:] = False


def plain_logits(router, hidden):
    """The router's matrix times the hidden state: no bias that acts on the choice alone."""
    weight = router.wg.weight if hasattr(router, "wg") else router.weight
    logits = hidden.double() @ weight.detach().double().T
    bias = dict(router.named_parameters(recurse=False)).get("bias")
    return logits if bias is None else logits + bias.detach().double()


@pytest.mark.parametrize("case", EVERY)
def test_probabilities_entropy_and_pairs_token_by_token(built, case):
    source = built(case)
    model, described = stock_load(case, source.paths["experts"])[0].double(), source.described()
    sums = sums_of(described, ("router",))
    with torch.no_grad(), listening(model, case) as heard, collecting(model, described, sums):
        batch_mask(MASK)
        model(input_ids=IDS, attention_mask=MASK.long(), use_cache=False)
    for layer in case.sparse:
        (hidden, *_), (*_, ids) = heard.routed[layer]
        logits = plain_logits(router_of(model, case, layer), hidden.reshape(-1, hidden.shape[-1]))
        totals, entropy = [0.0] * case.experts, 0.0
        pairs = dict.fromkeys(itertools.product(range(case.experts), repeat=2), 0)
        for token in MASK.reshape(-1).nonzero()[:, 0].tolist():
            powers = [math.exp(value) for value in logits[token].tolist()]
            shares = [power / sum(powers) for power in powers]
            totals = [total + share for total, share in zip(totals, shares, strict=True)]
            entropy -= sum(share * math.log(share) for share in shares)
            for pair in itertools.product(ids[token].tolist(), repeat=2):
                pairs[pair] += 1
        # Some routers compute their logits in float32, whatever the model's dtype.
        found = sums.of("probabilities", layer).tolist()
        assert found == pytest.approx(totals, rel=1e-5)
        assert float(sums.of("entropy", layer)) == pytest.approx(entropy, rel=1e-5)
        assert int(sums.of("tokens", layer)) == int(MASK.sum())
        counts = sums.of("coactivation", layer)
        assert {pair: int(counts[pair]) for pair in pairs} == pairs
