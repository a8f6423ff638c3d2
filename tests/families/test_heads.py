"""Statistics of prediction heads (MTP), against a head put together by hand.

transformers runs no heads, so a stock model of only the head's layers stands in for them: it gets
what two norms and a projection, written out here, make of the trunk's last hidden states.
"""

import json
import shutil
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from calibrations import calibrated, calibration, make_sequences
from exports import verified
from safetensors.torch import load_file, save_file

from analysis.calibration.loading import Placement
from analysis.criteria import get_criterion
from analysis.drain import drain
from analysis.errors import ExportError, UnsupportedModelError
from analysis.head_parts import head_experts, runnable_heads
from analysis.model import load_model_index
from analysis.stats.merging import extend_run, merge_runs
from analysis.stats.store import StatsStore, load_expert_stats, load_head_stats
from builders import edit_json
from families.built import stock_load
from families.configs import BY_NAME, HIDDEN, VOCAB, redraw, tiny_model
from families.plain import COLUMNS, plain_experts
from families.test_quantised import to_fp8
from pruning import Model
from pruning.surgery.manifest import read_manifest

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


def tensors_of(path):
    files = path.glob("*.safetensors")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


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
    vectors = torch.cat([wanted[layer].vectors for layer in sorted(wanted)]).numpy()
    squares = (vectors**2).sum(axis=1)
    np.testing.assert_allclose(table["vector_sum_sq"], squares, rtol=1e-4, atol=1e-9)


@pytest.fixture
def glm(built, tmp_path):
    return Made(built, HEADED[0], tmp_path)


@pytest.mark.parametrize("headed", HEADED, ids=str)
def test_statistics_of_heads_equal_a_double_loop(built, tmp_path, headed):
    made = Made(built, headed, tmp_path)
    run = calibrated(
        made.described, tmp_path, SEQUENCES, seq_len=7, dtype="float64", groups=WITH_HEADS
    )
    table = heads_of(run, made.described)
    assert table["num_tokens"].sum() == made.case.top_k * (6 + 3 + 1 + 0 + 5)
    assert_sums(table, made.wanted(SEQUENCES.rows))
    # The trunk's own numbers are those of a run without heads.
    plain = calibrated(
        made.described, tmp_path, SEQUENCES, seq_len=7, dtype="float64", groups=ROUTED
    )
    assert load_expert_stats(plain).table.equals(load_expert_stats(run).table)


def test_a_second_head_gets_what_the_first_gives(built, tmp_path):
    made = Made(built, HEADED[0], tmp_path, heads=2)
    run = calibrated(
        made.described, tmp_path, SEQUENCES, seq_len=7, dtype="float64", groups=WITH_HEADS
    )
    assert_sums(heads_of(run, made.described), made.wanted(SEQUENCES.rows))


def test_a_head_of_single_experts_beside_a_stacked_trunk(built, tmp_path):
    """As Qwen3.5 is published."""
    made = Made(
        built, next(h for h in HEADED if h.case == "qwen3_5_moe"), tmp_path, layout="stacked"
    )
    names = made.described.checkpoint.tensors
    assert any(name.endswith("layers.2.mlp.experts.gate_up_proj") for name in names)
    assert "mtp.layers.0.mlp.experts.0.gate_proj.weight" in names
    model = Model(made.path, stats_dir=tmp_path)
    run = calibrated(
        made.described, tmp_path, SEQUENCES, seq_len=7, dtype="float64", groups=WITH_HEADS
    )
    assert_sums(heads_of(run, made.described), made.wanted(SEQUENCES.rows))
    model.export(model.plan("reap", "letters.jsonl", sparsity="40%"), tmp_path / "out", mtp="prune")
    verified(tmp_path / "out", level="bytes", source=made.path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_streamed_layers_give_the_same_bits(glm, tmp_path, dtype):
    tables = []
    for streams in (False, True):
        place = Placement(stream_layers=streams)
        asked = {"dtype": dtype, "groups": WITH_HEADS, "placement": place}
        run = calibrated(glm.described, tmp_path / str(streams), SEQUENCES, **asked)
        tables.append(heads_of(run, glm.described))
    assert tables[0].equals(tables[1])


def test_a_streamed_run_that_stops_before_the_heads_resumes(glm, tmp_path):
    asked = {"groups": WITH_HEADS, "placement": Placement(stream_layers=True)}
    asked["placement"] = replace(asked["placement"], hidden_states_dir=tmp_path / "hidden")
    whole = calibrated(glm.described, tmp_path / "whole", SEQUENCES, **asked)
    task = calibration(glm.described, tmp_path / "stopped", SEQUENCES, **asked)
    next(step for step in task if step.phase == "calibrating prediction heads")
    task.close()
    notes = []
    task = calibration(glm.described, tmp_path / "stopped", SEQUENCES, **asked)
    run = drain(noting(task, notes))
    assert any("resumed after 3 of 4 layers" in note for note in notes)
    assert run.manifest.files == whole.manifest.files


def noting(task, notes):
    """The same task, whose notes are kept."""
    result = None

    def steps():
        nonlocal result
        result = yield from task

    for step in steps():
        notes.append(step.note)
        yield step
    return result


def test_packed_documents_are_counted_as_if_alone(glm, tmp_path):
    rows = [np.concatenate(SEQUENCES.rows[:2])]
    places = (np.concatenate([np.arange(len(row)) for row in SEQUENCES.rows[:2]]).astype(np.int32),)
    packed = replace(SEQUENCES, rows=tuple(rows), positions=places)
    apart = replace(SEQUENCES, rows=SEQUENCES.rows[:2])
    asked = {"seq_len": 11, "dtype": "float64", "groups": WITH_HEADS}
    both = [
        calibrated(glm.described, tmp_path / n, each, **asked)
        for n, each in (("packed", packed), ("apart", apart))
    ]
    one, other = (heads_of(run, glm.described) for run in both)
    assert one["num_tokens"].tolist() == other["num_tokens"].tolist()
    np.testing.assert_allclose(one.to_numpy(), other.to_numpy(), rtol=1e-6)


@pytest.mark.parametrize("groups", ["routed,gradient,heads", "routed,router,damage,dense,heads"])
def test_heads_beside_other_groups(glm, tmp_path, groups):
    groups = tuple(groups.split(","))
    alone = calibrated(glm.described, tmp_path, SEQUENCES, dtype="float64", groups=WITH_HEADS)
    beside = calibrated(glm.described, tmp_path, SEQUENCES, dtype="float64", groups=groups)
    without = calibrated(
        glm.described, tmp_path / "without", SEQUENCES, dtype="float64", groups=groups[:-1]
    )
    table = heads_of(beside, glm.described)
    np.testing.assert_allclose(
        table.to_numpy(), heads_of(alone, glm.described).to_numpy(), rtol=1e-9
    )
    assert load_expert_stats(beside).table.equals(load_expert_stats(without).table)


def test_merges_blends_and_extended_runs_have_heads(glm, tmp_path):
    parts = [replace(SEQUENCES, corpus=f"{at}.jsonl", rows=SEQUENCES.rows[at::2]) for at in (0, 1)]
    asked = {"dtype": "float64", "groups": WITH_HEADS}
    runs = [calibrated(glm.described, tmp_path, part, **asked) for part in parts]
    whole = heads_of(calibrated(glm.described, tmp_path, SEQUENCES, **asked), glm.described)
    merged = heads_of(merge_runs(runs, tmp_path), glm.described)
    sums = whole.drop(columns="vector_sum_sq")
    assert list(merged) == list(sums)  # the norm of a sum of vectors does not add up
    np.testing.assert_allclose(merged.to_numpy(), sums.to_numpy(), rtol=1e-12)

    plain = calibrated(glm.described, tmp_path / "plain", parts[0], dtype="float64", groups=ROUTED)
    extended = extend_run(plain, runs[0])
    assert extended.manifest.groups == WITH_HEADS
    assert heads_of(extended, glm.described).equals(heads_of(runs[0], glm.described))


def without(name):
    def change(held):
        return {key: tensor for key, tensor in held.items() if name not in key}

    return change


def widened(held):
    return {k: t[:, :-1].contiguous() if "q_proj" in k else t for k, t in held.items()}


# What is done to the tensors of a head -> what the refusal says.
REFUSED = {
    "no head": (lambda held: {}, "has no prediction head with experts"),
    "no experts": (without(".mlp."), "has no prediction head with experts"),
    "no projection": (without("eh_proj"), "has no tensor eh_proj or fc"),
    "a part more": (
        lambda held: held | {"model.layers.3.gate.weight": torch.ones(3)},
        "model.layers.3.gate.weight does in it is not known",
    ),
    "other shapes": (widened, "no layer of source is built like its layer 3"),
    "eight bits": (
        lambda held: {
            k: t.to(torch.float8_e4m3fn) if "eh_proj" in k else t for k, t in held.items()
        },
        "eh_proj.weight is quantised",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_heads_that_cannot_be_run_are_refused_before_anything_is_loaded(glm, name):
    change, message = REFUSED[name]
    held = {key: tensor.contiguous() for key, tensor in change(glm.held).items()}
    save_file(held, glm.path / "heads.safetensors")
    index = glm.path / "model.safetensors.index.json"
    where = json.loads(index.read_text())["weight_map"]
    trunk = {key: file for key, file in where.items() if file != "heads.safetensors"}
    edit_json(index, weight_map=trunk | dict.fromkeys(held, "heads.safetensors"))
    with pytest.raises(UnsupportedModelError, match=message):
        runnable_heads(load_model_index(str(glm.path)))


def test_layers_that_hand_on_more_are_refused(built, tmp_path):
    made = Made(built, Headed("glm_moe_dsa", (2,), SPARSE), tmp_path)
    with pytest.raises(
        UnsupportedModelError, match=r"head model\.layers\.3 cannot be run: .*hidden"
    ):
        calibrated(made.described, tmp_path, SEQUENCES, groups=WITH_HEADS)


@pytest.mark.parametrize("criterion", ["reap", "frequency", "mone", "damage", "aimer"])
def test_heads_are_pruned_by_what_the_plan_was_ranked_by(glm, tmp_path, criterion):
    stats, out = tmp_path / "stats", tmp_path / "out"
    run = calibrated(glm.described, stats, SEQUENCES, groups=(*WITH_HEADS, "damage"))
    model = Model(str(glm.path), stats_dir=stats)
    corpus = () if criterion == "aimer" else "letters.jsonl"
    plan = model.plan(criterion, corpus, sparsity="40%")
    model.export(plan, out, mtp="prune")
    heads = read_manifest(out).heads
    ((layers),) = heads.kept.values()
    # sum g |f| / n; heads have no damage of their own, so REAP stands in for it.
    table = heads_of(run, glm.described)
    reap = table["applied_g1_f1"] / table["num_tokens"].clip(lower=1)
    scores = {"reap": reap, "damage": reap, "frequency": table["num_tokens"]}
    if criterion in scores:
        order = np.argsort(-scores[criterion].to_numpy(), kind="stable")
        assert list(layers[3]) == sorted(order[: len(plan.kept[1])].tolist())
    runs = () if criterion == "aimer" else (run.manifest.run_id,)
    said = {"damage": "reap"}.get(criterion, criterion)
    assert (heads.criterion, heads.runs) == (said, runs)
    assert f"pruned by {get_criterion(said).label}" in (out / "README.md").read_text()
    verified(out, level="logits", source=glm.path)
    (again,) = runnable_heads(load_model_index(str(out)))  # a head still, of fewer experts
    assert again.layers[0].experts.num_experts == len(layers[3])


def test_heads_that_the_plans_runs_did_not_measure_are_ranked_by_weights(glm, tmp_path):
    calibrated(glm.described, tmp_path / "stats", SEQUENCES, groups=ROUTED)
    model = Model(str(glm.path), stats_dir=tmp_path / "stats")
    model.export(model.plan("reap", "letters.jsonl", sparsity="40%"), tmp_path / "out", mtp="prune")
    heads = read_manifest(tmp_path / "out").heads
    assert (heads.criterion, heads.runs) == ("aimer", ())


def test_a_blend_of_runs_ranks_heads_too(glm, tmp_path):
    parts = [replace(SEQUENCES, corpus=f"{at}.jsonl", rows=SEQUENCES.rows[at::2]) for at in (0, 1)]
    for part in parts:
        calibrated(glm.described, tmp_path / "stats", part, groups=WITH_HEADS)
    model = Model(str(glm.path), stats_dir=tmp_path / "stats")
    plan = model.plan("frequency", ("0.jsonl:1", "1.jsonl:3"), sparsity="40%")
    model.export(plan, tmp_path / "out", mtp="prune")
    heads, store = read_manifest(tmp_path / "out").heads, StatsStore(tmp_path / "stats")
    counts = []
    for name in ("0.jsonl", "1.jsonl"):
        (run,) = [each for each in store.runs() if each.manifest.corpus == name]
        tokens = heads_of(run, glm.described)["num_tokens"].to_numpy()
        counts.append(tokens / tokens.sum())
    order = np.argsort(-(counts[0] + 3 * counts[1]), kind="stable")
    assert heads.kept["model.layers.3"][3] == tuple(sorted(order[: len(plan.kept[1])].tolist()))
    assert len(heads.runs) == 2


def test_heads_in_eight_bits_are_calibrated_and_cut(built, tmp_path):
    made = Made(built, Headed("deepseek_v3", (2,), SPARSE), tmp_path)
    plain = tmp_path / "plain"
    shutil.copytree(made.path, plain)
    where = {}
    for file in sorted(made.path.glob("*.safetensors")):
        eight = to_fp8(load_file(file))
        scaled = {
            n: t.float() * eight[f"{n}_scale_inv"] for n, t in eight.items() if t.itemsize < 2
        }
        kept = {n: t for n, t in eight.items() if not n.endswith("_scale_inv")}
        save_file(kept | scaled, plain / file.name)
        save_file(eight, file)
        where |= dict.fromkeys(eight, file.name)
    edit_json(made.path / "model.safetensors.index.json", weight_map=where)
    fp8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    edit_json(made.path / "config.json", quantization_config=fp8)
    asked = {"dtype": "float32", "groups": WITH_HEADS}
    tables = [
        heads_of(
            calibrated(load_model_index(str(path)), tmp_path / "stats", SEQUENCES, **asked),
            made.described,
        )
        for path in (made.path, plain)
    ]
    np.testing.assert_allclose(*(table.to_numpy() for table in tables), rtol=1e-6)

    model = Model(str(made.path), stats_dir=tmp_path / "stats")
    plan = model.plan("reap", "letters.jsonl", sparsity="40%")
    model.export(plan, tmp_path / "out", mtp="prune")
    assert read_manifest(tmp_path / "out").heads.criterion == "reap"
    verified(tmp_path / "out", level="bytes", source=made.path)
    bare = Model(str(made.path), stats_dir=tmp_path / "none")
    with pytest.raises(ExportError, match="the plan's runs measured no heads"):
        bare.export(plan, tmp_path / "again", mtp="prune")
