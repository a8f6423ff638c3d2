"""A model whose every number can be computed by hand: two layers of four experts, three tokens.

The embeddings of the tokens A, B, C are three of the four rows of a Hadamard matrix, +1 or -1 in
four dimensions: orthogonal, of norm 2, and left alone by a norm without epsilon. Attention adds
nothing. So a row of a router or of an expert can give each token any number it likes, w = sum over
tokens of number * h / 4, and everything follows from two tables:

    p_j(t)   the router's probability of expert j for token t
    C_j(t)   expert j answers token t with f_j(t) = C_j(t) * h_t, so ||f_j(t)|| = 2 |C_j(t)|

Neuron c of an expert fires for token c only: gate_c . h_t = 1 if t = c, else 0, with ReLU; up_c
gives C_j(c), and column c of down is h_c. A layer's output is Y(t) * h_t with Y = sum of g C, which
changes the length of the hidden state and not its direction: the next layer sees h_t again.
"""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from transformers import OlmoeConfig, OlmoeForCausalLM

from analysis.corpora.sequences import TokenSequences

A, B, C = range(3)
# Token ids; the others, padding among them, look like A and are in no text.
IDS = {A: 4, B: 5, C: 6}
VOCAB, TOP_K, EXPERTS, LAYERS = 8, 2, 4, (0, 1)
HADAMARD = torch.tensor(
    [[1, 1, 1, 1], [1, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]], dtype=torch.float64
)


def share(whole: int, *parts: int) -> tuple[Fraction, ...]:
    """Parts of a whole, which they fill."""
    assert sum(parts) == whole
    return tuple(Fraction(part, whole) for part in parts)


@dataclass(frozen=True)
class Numbers:
    """What a hand model is made of."""

    # layer -> token -> p of each expert
    probabilities: tuple[tuple[tuple[Fraction, ...], ...], ...]
    answers: tuple[tuple[tuple[float, ...], ...], ...]  # layer -> expert -> C of each token
    # token -> token id -> logit of it after that token, 0 where nothing is said
    logits: dict[int, dict[int, float]]
    # Whether the last layer answers along the fourth row of the matrix, and not along h_t; that
    # row then has logits of its own, under the key 3.
    aside: bool = False


# The numbers of tests/golden/test_criteria.py.
NUMBERS = Numbers(
    probabilities=(
        (share(16, 8, 4, 3, 1), share(16, 4, 8, 1, 3), share(16, 1, 3, 8, 4)),
        (share(16, 8, 1, 4, 3), share(64, 13, 26, 14, 11), share(16, 4, 3, 8, 1)),
    ),
    answers=(
        ((1, 4, 1), (2, 4, 1), (1, 1, 3), (1, 1, 2)),
        ((3, 1, 4), (1, 8, 1), (2, 4, 1), (1, 1, 1)),
    ),
    logits={B: {IDS[B]: 8.0}, C: {IDS[C]: 16.0}},
)
# Two samples of two tokens. Token A is met twice, so four tokens in all.
TEXTS = ((A, B), (A, C))


def rows_saying(table) -> torch.Tensor:
    """(n, 4) rows w with w . h_t = table[n][t]."""
    numbers = torch.tensor([[float(x) for x in row] for row in table], dtype=torch.float64)
    return numbers @ HADAMARD[: numbers.shape[1]] / 4


def hand_model(numbers: Numbers) -> OlmoeForCausalLM:
    """The model of these numbers, in float64; routers work in float32, as OLMoE's do."""
    config = OlmoeConfig(
        vocab_size=VOCAB,
        hidden_size=4,
        intermediate_size=3,
        num_hidden_layers=len(LAYERS),
        num_attention_heads=2,
        num_key_value_heads=2,
        num_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        hidden_act="relu",
        rms_norm_eps=0.0,
        max_position_embeddings=8,
        norm_topk_prob=False,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = OlmoeForCausalLM(config).double().eval()
    model.set_experts_implementation("eager")  # the one that computes in float64
    with torch.no_grad():
        embedding = HADAMARD[[A] * VOCAB]
        for token, number in IDS.items():
            embedding[number] = HADAMARD[token]
        model.model.embed_tokens.weight.copy_(embedding)
        for layer in LAYERS:
            _fill(model, layer, numbers)
        spoken = [[numbers.logits.get(t, {}).get(v, 0.0) for t in range(4)] for v in range(VOCAB)]
        model.lm_head.weight.copy_(rows_saying(spoken))
    return model


def _fill(model: OlmoeForCausalLM, layer: int, numbers: Numbers) -> None:
    block = model.model.layers[layer]
    block.self_attn.o_proj.weight.zero_()
    probabilities = numbers.probabilities[layer]
    logits = [[np.log(float(probabilities[t][j])) for t in IDS] for j in range(EXPERTS)]
    block.mlp.gate.weight.copy_(rows_saying(logits))
    for expert, answers in enumerate(numbers.answers[layer]):
        gate = rows_saying([[float(c == t) for t in IDS] for c in IDS])
        up = rows_saying([[float(c == t) * answers[c] for t in IDS] for c in IDS])
        aside = numbers.aside and layer == LAYERS[-1]
        down = HADAMARD[[3, 3, 3]] if aside else HADAMARD[:3]
        block.mlp.experts.gate_up_proj[expert].copy_(torch.cat([gate, up]))
        block.mlp.experts.down_proj[expert].copy_(down.T)


def saved(path: Path, numbers: Numbers = NUMBERS) -> Path:
    """The model's checkpoint, one tensor for each matrix of each expert."""
    hand_model(numbers).save_pretrained(path)
    return path


def sequences(texts=TEXTS) -> TokenSequences:
    """Texts of tokens A, B, C as they are fed to the model; every token counts."""
    rows = tuple(np.array([IDS[token] for token in text], dtype=np.int32) for text in texts)
    return TokenSequences("by hand", rows, len(rows), 0)
