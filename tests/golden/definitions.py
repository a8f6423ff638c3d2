"""The papers' definitions as loops over tokens of a hand model, in float64; none of our code.

What is measured twice is measured in two ways: here nothing is summed before it is needed, no
identity is used, and the gradient is torch's own of a plain forward.
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


def chosen(numbers: Numbers, layer: int, token: int, without: int | None = None) -> dict:
    """Expert -> gate weight, as the router gives it where one expert may never have been."""
    left = [j for j in range(EXPERTS) if j != without]
    shares = {j: float(numbers.probabilities[layer][token][j]) for j in left}
    first = sorted(left, key=lambda j: -shares[j])[:TOP_K]
    return {j: shares[j] / sum(shares.values()) for j in first}


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


def mone(numbers, layer, expert, gate) -> float:
    """Mean gate times the norm of the standard deviations, element by element."""
    tokens = list(routed(numbers, layer, expert, gate))
    if len(tokens) < 2:
        return 0.0
    variances = []
    for axis in range(4):
        values = [f[axis] for _, f in tokens]
        mean = sum(values) / len(values)
        variances.append(sum((x - mean) ** 2 for x in values) / (len(values) - 1))
    return sum(g for g, _ in tokens) / len(tokens) * sqrt(sum(variances))


def damage(numbers, layer, expert) -> float:
    """Sum over its tokens of || y - y of a router that never had it ||."""
    answers, total = numbers.answers[layer], 0.0
    for token in (token for text in TEXTS for token in text):
        if expert in chosen(numbers, layer, token):
            parts = []
            for without in (None, expert):
                gates = chosen(numbers, layer, token, without)
                weighted = (g * answers[j][token] * HADAMARD[token] for j, g in gates.items())
                parts.append(torch.stack(list(weighted)).sum(dim=0))
            total += norm((parts[0] - parts[1]).tolist())
    return total


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.square().mean().sqrt()


def activations(numbers, layer, expert, x) -> torch.Tensor:
    """(3,) of the neurons of one expert on one input."""
    ones = [[float(c == t) for t in IDS] for c in IDS]
    answers = [[float(c == t) * numbers.answers[layer][expert][c] for t in IDS] for c in IDS]
    return functional.relu(rows_saying(ones) @ x) * (rows_saying(answers) @ x)


def forward(numbers: Numbers, token: int, heard: list, removed=frozenset()) -> torch.Tensor:
    """(vocabulary,) logits after one token; `heard` gets (layer, expert, a, f in the graph).

    The routers never had the experts (layer, expert) of `removed`.
    """
    hidden = HADAMARD[token].clone().requires_grad_()
    for layer in LAYERS:
        x = unit(hidden)
        left = [j for j in range(EXPERTS) if (layer, j) not in removed]
        shares = [[log(numbers.probabilities[layer][t][j]) for t in IDS] for j in left]
        probabilities = (rows_saying(shares) @ x).softmax(dim=0)
        aside = numbers.aside and layer == LAYERS[-1]
        columns = HADAMARD[[3, 3, 3]] if aside else HADAMARD[:3]
        for place in probabilities.topk(TOP_K).indices.tolist():
            a = activations(numbers, layer, left[place], x)
            f = a @ columns
            f.retain_grad()
            heard.append((layer, left[place], a.detach(), f))
            hidden = hidden + probabilities[place] * f
    spoken = [[numbers.logits.get(t, {}).get(v, 0.0) for t in range(4)] for v in range(VOCAB)]
    return rows_saying(spoken) @ unit(hidden)


def neurons(numbers: Numbers) -> dict:
    """(layer, expert) -> for each neuron (HEAPr, CAMERA-P with lambda 1).

    HEAPr as the paper has it (Eq. 15-16): the mean over tokens of 1/2 e^T G e, with G the mean of
    g g^T over tokens, four by four, g the gradient of the loss by the expert's own output.
    """
    inputs = {pair: ([], []) for pair in PAIRS}
    for text in TEXTS:
        for place, token in enumerate(text):
            heard: list = []
            logits = forward(numbers, token, heard)
            if place + 1 < len(text):
                target = torch.tensor([IDS[text[place + 1]]])
                functional.cross_entropy(logits[None], target).backward()
            for layer, expert, a, f in heard:
                gradient = torch.zeros(4, dtype=torch.float64) if f.grad is None else f.grad
                inputs[layer, expert][0].append(a)
                inputs[layer, expert][1].append(gradient)
    return {pair: [_neuron(c, *both) for c in range(3)] for pair, both in inputs.items()}


def _neuron(c: int, activity: list, gradients: list) -> tuple[float, float]:
    if not activity:
        return 0.0, 0.0
    column = HADAMARD[c]
    matrix = sum(torch.outer(g, g) for g in gradients) / len(gradients)
    terms = [0.5 * (a[c] * column) @ matrix @ (a[c] * column) for a in activity]
    energy = (norm([a[c] for a in activity]) + max(abs(a[c]) for a in activity)) * norm(column)
    return float(sum(terms)) / len(terms), float(energy)


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


def weight_scores(matrices) -> dict[str, float]:
    """Of one expert from its matrices, number by number."""
    numbers = [x for matrix in matrices for row in matrix for x in row]
    count, l1, l2 = len(numbers), 0.0, 0.0
    for x in numbers:
        l1 += abs(x)
        l2 += x * x
    l2 = sqrt(l2)
    return {
        "aimer": l1 / (sqrt(count) * l2),
        "magnitude": l1 / count,
        "hoyer": (sqrt(count) - l1 / l2) / (sqrt(count) - 1),
    }


def neuron_norms(gate, up, down) -> list[float]:
    return [norm(gate[c]) * norm(up[c]) * norm(row[c] for row in down) for c in range(len(gate))]


def distributions(numbers: Numbers, token: int, removed) -> tuple[list[float], list[float]]:
    """What the full and the pruned model expect after a token."""
    full, pruned = (forward(numbers, token, [], gone) for gone in (frozenset(), removed))
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
