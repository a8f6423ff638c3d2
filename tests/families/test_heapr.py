"""HEAPr and CAMERA-P against the papers' own definitions, for every family.

The definition of HEAPr (Eq. 15 and 16) is written out here: each token and each expert by itself,
an explicit d x d covariance of the gradient at the expert's output in one pass, e^T G e in a
second. The program has neither the matrix nor the second pass.
"""

import math
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from calibrations import calibrated, make_sequences
from torch.nn import functional

from analysis.criteria import get_criterion
from analysis.ranking.experts import rank_experts
from analysis.stats.neurons import load_neuron_stats
from analysis.stats.reading import load_expert_stats
from families.built import stock_load
from families.configs import DISTINCT
from families.physical import block_of
from families.plain import activations, matrices_of
from families.settings import VOCAB

LENGTHS = (7, 4, 6, 2, 5)
# Of the numbers of both; where it is not 1e-6, why.
TOLERANCE = {
    # Its router works in float32 in a float64 model, and so does the gradient through it.
    "hunyuan_v1_moe": 1e-5,
    "beam-groups": 3e-5,  # its activation
}


SEQUENCES = make_sequences(LENGTHS, vocabulary=VOCAB)


@dataclass
class Heard:
    """What one layer's experts saw: for each expert the inputs and the outputs, in the graph."""

    inputs: dict = field(default_factory=lambda: defaultdict(list))
    outputs: dict = field(default_factory=lambda: defaultdict(list))


@contextmanager
def one_by_one(model, case):
    """Inside the block the experts compute token by token, and every output keeps its gradient."""
    modules = {layer: block_of(model, case, layer).experts for layer in case.sparse}
    heard = {layer: Heard() for layer in case.sparse}

    def forward_of(layer, module):
        def forward(hidden, index, weights):
            rows = []
            for x, ids, gates in zip(hidden, index.tolist(), weights, strict=True):
                total = torch.zeros_like(x)
                for expert, gate in zip(ids, gates, strict=True):
                    m = matrices_of(case.model_type, module, expert)
                    f = activations(case.model_type, module, m, x) @ m.down + m.down_bias
                    f.retain_grad()
                    heard[layer].inputs[expert].append(x.detach())
                    heard[layer].outputs[expert].append(f)
                    total = total + gate * f
                rows.append(total)
            return torch.stack(rows)

        return forward

    for layer, module in modules.items():
        module.forward = forward_of(layer, module)
    try:
        yield heard, modules
    finally:
        for module in modules.values():
            del module.forward


def definition(model, case):
    """(layer, expert) -> [HEAPr scores of its neurons], [CAMERA-P energies], tokens."""
    scores = {}
    with one_by_one(model, case) as (heard, modules):
        for row in SEQUENCES.rows:
            ids = torch.from_numpy(row).long()
            logits = model(input_ids=ids[None], use_cache=False).logits[0]
            functional.cross_entropy(logits[:-1], ids[1:], reduction="sum").backward()
    for layer, module in modules.items():
        for expert in range(case.experts):
            xs, fs = heard[layer].inputs[expert], heard[layer].outputs[expert]
            m = matrices_of(case.model_type, module, expert)
            width = m.down.shape[0]
            if not xs:
                scores[layer, expert] = ([0.0] * width, [0.0] * width, 0)
                continue
            # What no loss depends on has no gradient at all: the last layer at a last token.
            gradients = [torch.zeros_like(f) if f.grad is None else f.grad for f in fs]
            covariance = sum(torch.outer(g, g) for g in gradients) / len(gradients)
            a = torch.stack([activations(case.model_type, module, m, x) for x in xs])
            heapr, energies = [], []
            for neuron in range(width):
                e = a[:, neuron, None] * m.down[neuron]  # (tokens, d)
                terms = [float(0.5 * one @ covariance @ one) for one in e]
                heapr.append(math.fsum(terms) / len(terms))
                norm, peak = a[:, neuron].norm(), a[:, neuron].abs().max()
                energies.append(float((norm + peak) * m.down[neuron].norm()))
            scores[layer, expert] = (heapr, energies, len(xs))
    return scores


@pytest.mark.parametrize("case", DISTINCT)
def test_scores_equal_the_papers_definition(case, built, tmp_path):
    source = built(case)
    # Routers round to float32, also in a float64 model: the same rows at a time in both.
    how = {"seq_len": 7, "batch_size": 1, "dtype": "float64", "groups": ("routed", "gradient")}
    run = calibrated(source.described(), tmp_path, SEQUENCES, **how)
    table = load_neuron_stats(run).table
    heapr, camera = get_criterion("heapr"), get_criterion("camera-p")
    table = table.assign(heapr=heapr.neuron_score(table), camera=camera.neuron_score(table))
    model = stock_load(case, source.paths["experts"])[0].double().requires_grad_(True)
    wanted = definition(model, case)
    found = dict(iter(table.groupby(["layer", "expert"])))
    tolerance = TOLERANCE.get(case.name, 1e-6)
    assert found.keys() == wanted.keys()
    for key, (scores, energies, tokens) in wanted.items():
        rows = found[key]
        assert rows["neuron"].tolist() == list(range(len(scores)))
        assert set(rows["num_tokens"]) == {tokens}
        assert rows["heapr"].tolist() == pytest.approx(scores, rel=tolerance, abs=0), key
        assert rows["camera"].tolist() == pytest.approx(energies, rel=tolerance, abs=0), key
    # The number of a whole expert is the sum of its neurons', also where it is not read from them.
    stats = load_expert_stats(run)
    for criterion, column in ((heapr, 0), (camera, 1)):
        ranking = rank_experts(criterion, stats, "applied")
        sums = [math.fsum(row[column]) for row in wanted.values()]
        assert ranking["score"].tolist() == pytest.approx(sums, rel=tolerance, abs=0)
