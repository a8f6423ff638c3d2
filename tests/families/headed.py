"""Checkpoints with a prediction head (MTP), and the head put together by hand.

transformers runs no heads, so a stock model of only the head's layers stands in for them: it gets
what two norms and a projection, written out here, make of the trunk's last hidden states.
"""

import json
import shutil
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from calibrations import make_sequences
from exports import tensors_of
from safetensors.torch import save_file

from analysis.model.heads import head_experts
from analysis.model.opening import load_model_index
from analysis.stats.columns import LARGEST
from analysis.stats.reading import load_head_stats
from builders import edit_json
from families.built import stock_load
from families.configs import BY_NAME
from families.plain import COLUMNS, plain_experts
from families.settings import HIDDEN, VOCAB
from families.tiny_models import redraw, tiny_model

SEQUENCES = make_sequences((7, 4, 2, 1, 6), vocabulary=VOCAB)
ROUTED, WITH_HEADS = ("routed",), ("routed", "heads")
DEEPSEEK = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
QWEN = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")


@dataclass(frozen=True)
class Headed:
    """A family's case with a head."""

    case: str
    layers: tuple[int, ...]  # of the trunk that the head's layers are like
    # Settings of a model of these layers alone; in `text_config` of composite models.
    alone: dict
    own: bool = False  # whether heads lie under mtp, not beyond the last layer
    names: tuple[str, ...] = DEEPSEEK  # what DeepSeek names lies in a head's first layer
    zero_centred: bool = False  # whether norms multiply by 1 + weight

    def __str__(self):
        return self.case


SPARSE = {"num_hidden_layers": 1, "first_k_dense_replace": 0}
FULL = {"layer_types": ["full_attention"], "mlp_only_layers": []}
AS_QWEN = {"own": True, "names": QWEN}
ONE = {"num_hidden_layers": 1}
HEADED = (
    Headed("glm4_moe", (2,), SPARSE),
    Headed("deepseek_v3-groups", (2,), SPARSE),
    Headed("hy_v3", (3,), ONE | {"mlp_layer_types": ["sparse"]}),
    Headed("qwen3_next", (2,), ONE | FULL, **AS_QWEN, zero_centred=True),
    Headed("qwen3_5_moe", (2,), ONE | FULL, **AS_QWEN, zero_centred=True),
    # Its attention slides, as that of the trunk's layer of the same number does.
    Headed("exaone_moe-groups", (1,), SPARSE | {"layer_types": ["sliding_attention"]}, **AS_QWEN),
    Headed(
        *("nemotron_h-latent", (0, 2)),
        {"num_hidden_layers": 2, "layers_block_type": ["attention", "moe"]},
        own=True,
    ),
)


def layer_of(tensors, layer):
    """Names within a layer of the trunk -> names; and the trunk's prefix."""
    part = f"layers.{layer}."
    found = {name: name.split(part, 1) for name in tensors if part in name}
    (prefix,) = {before for before, _ in found.values()}
    return {after: name for name, (_, after) in found.items()}, prefix


class Made:
    """A checkpoint with heads, and a model of each head's layers alone."""

    def __init__(self, built, headed, path, heads=1, layout="experts"):
        self.headed, self.case = headed, BY_NAME[headed.case]
        self.path = path / "source"
        shutil.copytree(built(self.case).paths[layout], self.path)
        if self.case.model_type == "exaone_moe":
            edit_json(
                self.path / "config.json",
                layer_types=["sliding_attention"] * 2 + FULL["layer_types"],
            )
        source = tensors_of(self.path)
        depth = 1 + max(int(n.split("layers.")[1].split(".")[0]) for n in source if "layers." in n)
        generator = torch.Generator().manual_seed(11)
        self.heads, held = [], {}
        for number in range(heads):
            alone, tensors = self._alone(source, path / f"alone-{number}", generator)
            first = depth + number * len(headed.layers)
            place = number if headed.own else first
            _, prefix = layer_of(source, headed.layers[0])
            for at in range(len(headed.layers)):
                names, own = layer_of(tensors, at)[0], "mtp." if headed.own else prefix
                held |= {f"{own}layers.{place + at}.{s}": tensors[n] for s, n in names.items()}
            entry = (1 + torch.randn(HIDDEN, generator=generator) / 3 for _ in range(2))
            entry = (*entry, torch.randn(HIDDEN, 2 * HIDDEN, generator=generator) / 4)
            self.heads.append((alone, entry, first))
            inside = "" if headed.names == QWEN else f"{own}layers.{place}."
            last = torch.ones(HIDDEN)  # norm after the layers, which no statistics see
            for name, tensor in zip(headed.names, (*entry, last), strict=True):
                held[f"{inside}{name}.weight"] = tensor
        save_file({n: t.contiguous() for n, t in held.items()}, self.path / "heads.safetensors")
        index = self.path / "model.safetensors.index.json"
        where = json.loads(index.read_text())["weight_map"]
        edit_json(index, weight_map=where | dict.fromkeys(held, "heads.safetensors"))
        self.held = held
        self.described = load_model_index(str(self.path))

    def _alone(self, source, path, generator):
        """A stock model of only the head's layers, with weights of its own, and its tensors."""
        settings, alone = dict(self.case.settings), self.headed.alone
        if self.case.composite:
            alone = {"text_config": {**settings["text_config"], **alone}}
        made = tiny_model(replace(self.case, settings={**settings, **alone}))
        with torch.random.fork_rng():
            torch.manual_seed(int(torch.randint(1000, (1,), generator=generator)))
            redraw(made)
        made.save_pretrained(path, save_original_format=True)
        return made.double(), tensors_of(path)

    def norm(self, x, weight):
        text = self.described.config
        eps = text.get("rms_norm_eps", text.get("layer_norm_epsilon"))
        scale = 1 + weight.double() if self.headed.zero_centred else weight.double()
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * scale

    def wanted(self, rows):
        """Sums of the experts by layer, as a double loop over tokens finds them."""
        stock = stock_load(self.case, self.path)[0].double()
        stock.set_experts_implementation("eager")
        sums = {}
        for alone, _, first in self.heads:
            text = text_of(alone)
            for at, layer in enumerate(text.layers):
                block = getattr(layer, "mlp", None) or layer.mixer
                if hasattr(block, "experts"):
                    sums[first + at] = block.experts
        with torch.no_grad(), plain_experts(self.case.model_type, sums) as plain:
            for row in rows:
                ids = torch.from_numpy(row).long()[None]
                hidden = stock.base_model(input_ids=ids, use_cache=False).last_hidden_state
                for alone, (embedding_norm, hidden_norm, projection), _ in self.heads:
                    ids, hidden = ids[:, 1:], hidden[:, :-1]
                    if not ids.numel():
                        break
                    embedded = self.norm(stock.get_input_embeddings()(ids), embedding_norm)
                    both = torch.cat([embedded, self.norm(hidden, hidden_norm)], dim=-1)
                    entered = both @ projection.double().T
                    hidden = last_layer(text_of(alone), entered)
        return plain


def text_of(model):
    return getattr(model.base_model, "language_model", model.base_model)


def last_layer(text, entered):
    """What the last layer gives, before the model's last norm."""
    seen = []
    handle = text.layers[-1].register_forward_hook(lambda *call: seen.append(call[2]))
    text(inputs_embeds=entered, use_cache=False)
    handle.remove()
    return seen[0] if isinstance(seen[0], torch.Tensor) else seen[0][0]


def heads_of(run, described):
    return load_head_stats(run, tuple(layer for _, _, layer in head_experts(described))).table


def assert_sums(table, wanted, tolerance=2e-6):
    assert sorted(set(table["layer"])) == sorted(wanted)
    for (convention, alpha, beta), column in COLUMNS.items():
        expected = [
            wanted[layer].sums[expert][convention, alpha, beta]
            for layer, expert in zip(table["layer"], table["expert"], strict=True)
        ]
        assert table[column].tolist() == pytest.approx(expected, rel=tolerance, abs=0), column
    places = zip(table["layer"], table["expert"], strict=True)
    largest = [wanted[layer].largest[expert] for layer, expert in places]
    assert table[LARGEST].tolist() == pytest.approx(largest, rel=tolerance, abs=0)
    vectors = torch.cat([wanted[layer].vectors for layer in sorted(wanted)]).numpy()
    squares = (vectors**2).sum(axis=1)
    np.testing.assert_allclose(table["vector_sum_sq"], squares, rtol=1e-4, atol=1e-9)
