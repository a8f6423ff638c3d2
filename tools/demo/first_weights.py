"""First weights of the demo model, in which two heads look up what followed a word before.

Answers about a story, and names in a function, are looked up in the text. A small model learns to
look up only after millions of tokens, suddenly. Here one head of the first layer looks at the
token before, and one of the second layer at the token that followed the same token, as in what is
known of induction heads (arXiv:2209.11895). Training changes them like all other weights.
"""

import torch
from torch import Tensor
from transformers import OlmoeForCausalLM

_SHARED = 0.06  # what all embeddings have in common, per dimension; the rest has about as much
_BEFORE = 0.6  # how sharply the first head looks
_SAME = 6.0  # and the second
_PASSED_ON = 0.7  # how much of the token before
_PREDICTED = 6.0  # how much of what followed
_OTHERS = 0.3  # of what the other heads and the experts of these layers write, or they drown it
_PAIRS = 6  # of rotated dimensions that turn fast enough to tell neighbours apart


@torch.no_grad()
def set_first_weights(model: OlmoeForCausalLM) -> None:
    """Change the first head of the first two layers, and what must be small beside them."""
    config = model.config
    size, width = config.hidden_size, config.hidden_size // config.num_attention_heads
    base = config.rope_parameters["rope_theta"]
    angles_P = base ** (-torch.arange(width // 2) / (width // 2))  # of pairs, per position
    # Of orthogonal directions: one that all tokens share, then those in which the token itself,
    # the token before it, and what to predict are written.
    directions_DD = torch.linalg.qr(torch.randn(size, size))[0]
    shared_D = directions_DD[:, 0]
    own_HD, before_HD, predicted_HD = directions_DD[:, 1 : 1 + 3 * width].T.split(width)
    # Only pairs that turn slowly compare tokens that are far apart.
    is_slow_H = (torch.arange(width) % (width // 2) >= width // 4)[:, None]
    own_HD = own_HD * is_slow_H
    _share(model, shared_D)
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.v_proj.weight.copy_(_without(attention.v_proj.weight, shared_D))
        layer.mlp.experts.down_proj.mul_(_OTHERS)
    for attention in (first, second):
        attention.o_proj.weight.mul_(_OTHERS)
    # A query turned back by one position is nearest to the key one position before.
    is_fast_P = (torch.arange(width // 2) < _PAIRS).float()
    query_H = torch.cat([angles_P.cos() * is_fast_P, -angles_P.sin() * is_fast_P])
    key_H = torch.cat([is_fast_P, torch.zeros(width // 2)])
    first.q_proj.weight[:width] = _BEFORE * torch.outer(query_H, shared_D)
    first.k_proj.weight[:width] = _BEFORE * torch.outer(key_H, shared_D)
    first.v_proj.weight[:width] = _PASSED_ON * own_HD
    first.o_proj.weight[:, :width] = before_HD.T
    second.q_proj.weight[:width] = _SAME * own_HD
    second.k_proj.weight[:width] = _SAME * before_HD * is_slow_H
    second.v_proj.weight[:width] = _PREDICTED * predicted_HD
    second.o_proj.weight[:, :width] = predicted_HD.T


def _without(weight_OD: Tensor, direction_D: Tensor) -> Tensor:
    """The same map, blind to this direction of its input."""
    return weight_OD - torch.outer(weight_OD @ direction_D, direction_D)


def _share(model: OlmoeForCausalLM, shared_D: Tensor) -> None:
    """Give all embeddings but that of the padding the same part in a direction."""
    weight_VD = model.get_input_embeddings().weight
    weight_VD.copy_(_without(weight_VD, shared_D) + _SHARED * len(shared_D) ** 0.5 * shared_D)
    weight_VD[model.config.pad_token_id].zero_()
