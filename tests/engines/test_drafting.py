"""A pruned prediction head (MTP) drafts in vLLM as the statistics of heads take it to compute.

vLLM drafts a token by the head and accepts it if it is the trunk's own. How many are accepted is
counted here as well, from what `analysis.calibration.heads` computes.
"""

import pytest
import torch
from engines.asking import ask_engine
from engines.checkpoints import PROMPTS, TOKENS, engine_case, save
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import rms_norm

from analysis.calibration.feed import run_trunk
from analysis.calibration.heads import Heads
from analysis.calibration.loading import CalibrationSettings, load_model
from analysis.calibration.sums import sums_of
from analysis.corpora.sequences import TokenSequences
from analysis.model.opening import load_model_index
from builders import edit_json
from builders.tokens import write_ids
from families.settings import VOCAB
from pruning import Model
from tools.engines.environments import python_of

HEAD = "model.layers.3"


def with_head(folder):
    """A model whose next token mostly follows from the last, so that drafts are right at times."""
    save(engine_case("glm4_moe"), folder)
    file = folder / "model.safetensors"
    tensors = {
        name: tensor * 0.15 if name.endswith(("o_proj.weight", "down_proj.weight")) else tensor
        for name, tensor in load_file(file).items()
    }
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"][3:] = embedding[3:].roll(5, 0)
    size = embedding.shape[1]
    generator = torch.Generator().manual_seed(3)
    entry = torch.cat([torch.eye(size), torch.randn(size, size, generator=generator) / size], 1)
    layer = {n.replace("layers.2.", "layers.3."): t.clone() for n, t in tensors.items()}
    head = {n: t.flip(-1) for n, t in layer.items() if n.startswith(HEAD)}
    head |= {f"{HEAD}.{name}.weight": torch.ones(size) for name in ("enorm", "hnorm")}
    head |= {f"{HEAD}.shared_head.norm.weight": torch.ones(size), f"{HEAD}.eh_proj.weight": entry}
    save_file({n: t.contiguous() for n, t in (tensors | head).items()}, file, {"format": "pt"})
    edit_json(folder / "config.json", num_nextn_predict_layers=1)


class WithoutFirst(nn.Module):
    """Embeddings as vLLM gives them to a head: zeros at the first position."""

    def __init__(self, embed):
        super().__init__()
        self.embed = embed

    def forward(self, ids):
        embedded = self.embed(ids)
        embedded[:, 0] = 0
        return embedded


def drafted(folder):
    """Drafts and accepted ones of greedy continuations, by what this program computes."""
    model = load_model_index(str(folder))
    settings = CalibrationSettings(seq_len=64, device="cpu", dtype="float32")
    loaded = load_model(model, settings)
    heads = Heads(model, settings, sums_of(model, ("routed", "heads")))
    drafts = accepted = 0
    for prompt in PROMPTS:
        more = {"max_new_tokens": TOKENS + 2, "min_new_tokens": TOKENS + 2, "do_sample": False}
        ids = loaded.generate(torch.tensor([prompt]), **more)
        (batch,) = TokenSequences("prompt", (ids[0].numpy(),), 1, 0).batches(1)
        with torch.no_grad():
            trunk = run_trunk(loaded, batch)
            embed = WithoutFirst(loaded.get_input_embeddings())
            (hidden,) = heads.feed(batch, trunk, embed)
            draft = loaded.lm_head(rms_norm(hidden, hidden.shape[-1:], eps=1e-5)).argmax(-1)[0]
        known = len(prompt) + 1  # the prompt, and the token that follows from it
        while known < len(prompt) + TOKENS:
            # The last known token but one and the last one give the draft of the next.
            right = bool(draft[known - 2] == ids[0, known])
            drafts, accepted, known = drafts + 1, accepted + right, known + 1 + right
    return drafts, accepted


@pytest.mark.engines
def test_a_pruned_head_drafts_in_vllm_as_it_was_calibrated(tmp_path):
    if python_of("vllm") is None:
        pytest.skip("no environment of vllm: python -m tools.engines vllm")
    with_head(tmp_path / "source")
    rows = torch.randint(3, VOCAB, (64, 48), generator=torch.Generator().manual_seed(1))
    corpus = write_ids(tmp_path / "ids.jsonl", rows)
    model = Model(tmp_path / "source", stats_dir=tmp_path / "stats")
    model.calibrate(str(corpus), groups="heads", tokens=3072)
    model.export(model.plan("reap", "ids.jsonl", sparsity="30%"), tmp_path / "out", mtp="prune")
    folders = [tmp_path / "source", tmp_path / "out"]
    _, answers = ask_engine("vllm", folders, tmp_path, drafts=True)
    for folder, answer in zip(folders, answers, strict=True):
        drafts, accepted = drafted(folder)
        assert answer["continuations"] == [{"drafts": drafts, "accepted": accepted}]
        assert 0 < accepted < drafts
