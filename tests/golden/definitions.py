"""The papers' definitions as loops over tokens of a hand model, in float64; none of our code.

Nothing is summed before it is needed, and no identity is used.
"""

from collections.abc import Iterator
from itertools import pairwise, product
from math import exp, log, sqrt

import torch
from golden.hand_model import (
    EXPERTS,
    HADAMARD,
    IDS,
    LAYERS,
    TEXTS,
    TOP_K,
    VOCAB,
    Numbers,
    rows_saying,
)
from torch.nn import functional

PAIRS = tuple(product(LAYERS, range(EXPERTS)))


def chosen(numbers: Numbers, layer: int, token: int) -> dict:
    """Expert -> gate weight, as the router gives it."""
    shares = [float(share) for share in numbers.probabilities[layer][token]]
    first = sorted(range(EXPERTS), key=lambda j: -shares[j])[:TOP_K]
    return {j: shares[j] / sum(shares) for j in first}


def routed(numbers: Numbers, layer: int, expert: int, gate: str) -> Iterator[tuple]:
    """(g, f) of every token that chose the expert."""
    for token in (token for text in TEXTS for token in text):
        gates = chosen(numbers, layer, token)
        if expert in gates:
            whole = sum(gates.values()) if gate == "renormalized" else 1.0
            f = numbers.answers[layer][expert][token] * HADAMARD[token]
            yield gates[expert] / whole, f.tolist()


def norm(vector) -> float:
    return sqrt(sum(x * x for x in vector))


def unified(numbers, layer, expert, gate, exponents) -> float:
    b, alpha, beta = exponents
    terms = [g**alpha * norm(f) ** beta for g, f in routed(numbers, layer, expert, gate)]
    if not terms:
        return 0.0
    return sum(terms) / (len(terms) if b else 1)


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.square().mean().sqrt()


def activations(numbers, layer, expert, x) -> torch.Tensor:
    """(3,) of the neurons of one expert on one input."""
    ones = [[float(c == t) for t in IDS] for c in IDS]
    answers = [[float(c == t) * numbers.answers[layer][expert][c] for t in IDS] for c in IDS]
    return functional.relu(rows_saying(ones) @ x) * (rows_saying(answers) @ x)


def forward(numbers: Numbers, token: int, removed=frozenset()) -> torch.Tensor:
    """(vocabulary,) logits after one token; routers never had the (layer, expert) of `removed`."""
    hidden = HADAMARD[token]
    for layer in LAYERS:
        x = unit(hidden)
        left = [j for j in range(EXPERTS) if (layer, j) not in removed]
        shares = [[log(numbers.probabilities[layer][t][j]) for t in IDS] for j in left]
        probabilities = (rows_saying(shares) @ x).softmax(dim=0)
        aside = numbers.aside and layer == LAYERS[-1]
        columns = HADAMARD[[3, 3, 3]] if aside else HADAMARD[:3]
        for place in probabilities.topk(TOP_K).indices.tolist():
            f = activations(numbers, layer, left[place], x) @ columns
            hidden = hidden + probabilities[place] * f
    spoken = [[numbers.logits.get(t, {}).get(v, 0.0) for t in range(4)] for v in range(VOCAB)]
    return rows_saying(spoken) @ unit(hidden)


def path_weights(numbers: Numbers, text) -> dict[tuple[int, ...], float]:
    """Every path through the layers of one sample -> its weight (MoE Pathfinder, Eq. 1-12)."""
    a, r, e = (dict.fromkeys(PAIRS, 0.0) for _ in range(3))
    for layer in LAYERS:
        losses = []
        for j in range(EXPERTS):
            loss = 0.0
            for token in text:
                h = HADAMARD[token]
                gates = chosen(numbers, layer, token)
                y = sum(g * numbers.answers[layer][i][token] for i, g in gates.items()) * h
                own = numbers.answers[layer][j][token] * h
                a[layer, j] += norm(own.tolist()) / len(text)
                r[layer, j] += float(numbers.probabilities[layer][token][j]) / len(text)
                loss += norm((y - own).tolist()) ** 2 / len(text)
            losses.append(loss)
        whole = sum(exp(-loss) for loss in losses)
        for j, loss in enumerate(losses):
            e[layer, j] = exp(-loss) / whole
    for j in range(EXPERTS):
        e[LAYERS[0], j] *= r[LAYERS[0], j]
        e[LAYERS[-1], j] *= a[LAYERS[-1], j]
    weights = {}
    for path in product(range(EXPERTS), repeat=len(LAYERS)):
        nodes = list(zip(LAYERS, path, strict=True))
        weight = 1.0
        for node in nodes:
            weight *= e[node]
        for before, after in pairwise(nodes):
            weight *= a[before] * r[after]
        weights[path] = weight
    return weights


def on_paths(numbers: Numbers, count: int) -> dict:
    """(layer, expert) -> samples whose `count` heaviest paths hold it."""
    held = dict.fromkeys(PAIRS, 0)
    for text in TEXTS:
        weights = path_weights(numbers, text)
        first = sorted(weights, key=lambda path: (-weights[path], path))[:count]
        for layer, expert in PAIRS:
            held[layer, expert] += any(path[LAYERS.index(layer)] == expert for path in first)
    return held


def distributions(numbers: Numbers, token: int, removed) -> tuple[list[float], list[float]]:
    """What the full and the pruned model expect after a token."""
    full, pruned = (forward(numbers, token, gone) for gone in (frozenset(), removed))
    return full.softmax(dim=0).tolist(), pruned.softmax(dim=0).tolist()


def at_position(name: str, p: list[float], q: list[float], target: int, drawn: float) -> float:
    """One measure at one position, higher is better; `drawn` from [0, 1) draws y for SAP."""
    if name == "esap":
        return sum(min(a, b) for a, b in zip(p, q, strict=True))
    if name == "kl":
        return -sum(a * log(a / b) for a, b in zip(p, q, strict=True))
    if name == "nll":
        return log(q[target])
    y, below = 0, q[0]
    while drawn >= below:
        y += 1
        below += q[y]
    return min(1.0, p[y] / q[y])
