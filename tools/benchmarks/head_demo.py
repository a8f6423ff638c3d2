"""Loss of a prediction head (MTP) without some of its experts, by what ranked them.

`OMP_NUM_THREADS=1 python tools/benchmarks/head_demo.py [training steps]`

No published model of a size for a CPU has a head, so one is trained on the demo, whose weights stay
as they are: two norms, a projection, and a decoder layer that starts as the demo's last. It
predicts the token after the next. The trunk is whole in every row, so only the head's experts
differ; the loss is that of the head, on held-out text.
"""

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoTokenizer, OlmoeForCausalLM
from transformers.models.olmoe.modeling_olmoe import OlmoeDecoderLayer, OlmoeRMSNorm

from analysis.checkpoint.index import SINGLE_NAME
from analysis.demo.listing import DEMO_CORPORA
from analysis.files.shipped import DEMO_CHECKPOINT
from analysis.model.heads import head_experts
from analysis.model.opening import load_model_index
from analysis.stats.store import StatsStore
from pruning import Model
from pruning.plan.heads import HeadChoice
from pruning.plan.plan import fit_plan
from pruning.surgery.head_ranking import WeighedHeads, head_ranking
from pruning.surgery.heads import plan_heads
from tools.benchmarks.neurons_demo import held_out
from tools.demo.build import Ids, Training, mixed_batches, packed, training_tokens

CORPORA = ("demo-code", "demo-stories", "demo-math")
CRITERIA = ("reap", "frequency", "ean")
SPARSITIES = ("25%", "50%", "75%")
NAME = "model.layers.6"
RANDOM_DRAWS = 8
TRAINING = Training()
HELD_OUT = 64  # sequences of each corpus


class Head(nn.Module):
    """As DeepSeek-V3's, with a layer of the demo."""

    def __init__(self, trunk: OlmoeForCausalLM) -> None:
        super().__init__()
        self.trunk = (trunk,)  # not a part: its weights stay
        size = trunk.config.hidden_size
        self.enorm, self.hnorm, self.norm = (OlmoeRMSNorm(size) for _ in range(3))
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        with torch.no_grad():
            self.eh_proj.weight.copy_(torch.eye(size).repeat(1, 2) / 2)
        self.layer = OlmoeDecoderLayer(trunk.config, layer_idx=0)
        self.layer.load_state_dict(trunk.model.layers[-1].state_dict())

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Mean loss, in nats, of the tokens after the next."""
        trunk = self.trunk[0]
        with torch.no_grad():
            hidden = trunk.model(input_ids=ids_BT, use_cache=False).last_hidden_state[:, :-2]
            embedded = trunk.get_input_embeddings()(ids_BT[:, 1:-1])
        entered = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], dim=-1))
        places = torch.arange(entered.shape[1])[None]
        rotary = trunk.model.rotary_emb(entered, places)
        given = self.layer(entered, position_embeddings=rotary, position_ids=places)
        given = given if isinstance(given, Tensor) else given[0]
        logits = trunk.lm_head(self.norm(given))
        return functional.cross_entropy(logits.flatten(0, 1), ids_BT[:, 2:].flatten())


def train(head: Head, rows: dict[str, Ids], steps: int) -> None:
    """Train the head on the demo's own training text."""
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=0.01)
    batches = mixed_batches(rows, TRAINING)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 50) * (1 - step / steps)
        loss = head(torch.from_numpy(next(batches)).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)


def write(head: Head, path: Path) -> None:
    """The demo with the head, named as heads are."""
    shutil.copytree(DEMO_CHECKPOINT, path)
    held = {
        f"{NAME}.{name}.weight": getattr(head, name).weight
        for name in ("enorm", "hnorm", "eh_proj")
    }
    held[f"{NAME}.shared_head.norm.weight"] = head.norm.weight
    for name, tensor in head.layer.state_dict().items():
        if name.endswith("gate_up_proj"):
            for expert, both in enumerate(tensor):
                gate, up = both.chunk(2)
                block = f"{NAME}.mlp.experts.{expert}"
                held |= {f"{block}.gate_proj.weight": gate, f"{block}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            for expert, down in enumerate(tensor):
                held[f"{NAME}.mlp.experts.{expert}.down_proj.weight"] = down
        else:
            held[f"{NAME}.{name}"] = tensor
    narrow = {
        name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in held.items()
    }
    save_file(load_file(path / SINGLE_NAME) | narrow, path / SINGLE_NAME, {"format": "pt"})
    config = json.loads((path / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (path / "config.json").write_text(json.dumps(config))


@torch.no_grad()
def loss_without(head: Head, kept: tuple[int, ...], rows: dict[str, np.ndarray]) -> float:
    """Mean held-out loss over the corpora with these experts only."""
    whole = head.layer.mlp.state_dict()
    block, ids = head.layer.mlp, list(kept)
    try:
        for module, name in (
            (block.gate, "weight"),
            (block.experts, "gate_up_proj"),
            (block.experts, "down_proj"),
        ):
            setattr(module, name, nn.Parameter(getattr(module, name)[ids]))
            module.num_experts = len(ids)
        losses = [
            torch.stack([head(torch.from_numpy(part).long()) for part in np.split(row, 8)]).mean()
            for row in rows.values()
        ]
    finally:
        for module, name in ((block.gate, "gate.weight"), (block.experts, "experts.gate_up_proj")):
            module.num_experts = len(whole[name])
        for name, tensor in whole.items():
            owner, _, last = name.rpartition(".")
            setattr(block.get_submodule(owner), last, nn.Parameter(tensor))
    return float(torch.stack(losses).mean())


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    torch.manual_seed(0)
    trunk = OlmoeForCausalLM.from_pretrained(DEMO_CHECKPOINT, dtype=torch.float32).eval()
    trunk.requires_grad_(False)
    head, words = Head(trunk), AutoTokenizer.from_pretrained(DEMO_CHECKPOINT)
    seen = {
        name: packed(training_tokens(corpus, words), TRAINING.seq_len)
        for name, corpus in DEMO_CORPORA.items()  # all, as the shares of batches are of all
    }
    train(head, seen, steps)
    head.eval()
    rows = {name: held_out(load_model_index("demo"), name, HELD_OUT) for name in CORPORA}
    with TemporaryDirectory() as folder:
        path, stats = Path(folder) / "headed", Path(folder) / "stats"
        write(head, path)
        model, described = Model(path, stats_dir=stats), load_model_index(str(path))
        for corpus in CORPORA:
            model.calibrate(corpus, groups="heads", tokens=16384)
        ((_, _, layer),) = head_experts(described)
        everything = loss_without(head, tuple(range(layer.num_experts)), rows)
        print(f"loss of the whole head: {everything:.3f}")
        rng = np.random.default_rng(0)
        for sparsity in SPARSITIES:
            found = {}
            for criterion in CRITERIA:
                plan = fit_plan(model.plan(criterion, CORPORA, sparsity=sparsity), described)
                ranking = head_ranking(described, plan, StatsStore(stats))
                heads = plan_heads(described, plan, HeadChoice.PRUNE, None, ranking)
                assert heads.criterion == criterion
                found[criterion] = heads.kept[NAME][6]
            heads = plan_heads(described, plan, HeadChoice.PRUNE, None, WeighedHeads())
            found["aimer, of weights"] = heads.kept[NAME][6]
            count = len(found["reap"])
            costs = {
                name: loss_without(head, ids, rows) - everything for name, ids in found.items()
            }
            drawn = [
                loss_without(head, tuple(rng.permutation(layer.num_experts)[:count]), rows)
                for _ in range(RANDOM_DRAWS)
            ]
            costs["random"] = float(np.mean(drawn)) - everything
            words = ", ".join(f"{name} {cost:+z.3f}" for name, cost in costs.items())
            print(f"{sparsity}, {count} of {layer.num_experts} stay: {words}", flush=True)


if __name__ == "__main__":
    main()
