"""Layer-streamed runs: the numbers of the whole model, bit for bit; what interruptions leave."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from calibrations import calibrated, calibration, describe, make_sequences, make_settings
from safetensors.torch import load_file, save_file

from analysis.calibration import blocks, hidden, memory, partial, weight_memory
from analysis.calibration.blocks import (
    FreeMemory,
    LayerSizes,
    RunSizes,
    experts_that_fit,
    largest_block,
    layer_sizes,
)
from analysis.calibration.experts import collecting
from analysis.calibration.feed import run_trunk
from analysis.calibration.loading import Placement
from analysis.calibration.memory import check_fits, memory_needs, run_sizes
from analysis.calibration.relay import Relay
from analysis.calibration.skeleton import EMBEDDINGS, Skeleton, StoredTensor
from analysis.calibration.sums import sums_of
from analysis.errors import CheckpointError, StatsError, UnsupportedModelError
from analysis.families.listing import FAMILIES
from analysis.model.forwards import decoder_stack
from analysis.model.layer_costs import layer_costs
from analysis.model.opening import load_model_index
from builders import VOCAB, tiny_checkpoint, tiny_model
from families.built import HAND_ON_MORE
from families.configs import BY_NAME, CASES, DISTINCT, KINDS
from families.tiny_models import tiny_model as family_model

STREAMED = Placement(stream_layers=True)
IN_BLOCKS = replace(STREAMED, experts_at_once=3)
EVERY_GROUP = {"groups": ("routed", "router", "damage", "dense")}


@pytest.fixture
def olmoe(tmp_path):
    return describe(tmp_path / "model")


@pytest.fixture
def _saved_at_every_step(monkeypatch):
    monkeypatch.setattr(partial, "_SAVE_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(partial, "_TIMES_THE_SAVE", 0.0)


def run(described, stats, placement=Placement(), **changes):  # noqa: B008 - frozen
    sequences = make_sequences(vocabulary=described.config["vocab_size"])
    return calibrated(described, stats, sequences, placement=placement, **changes)


def assert_same(streamed, whole):
    assert streamed.manifest.digest == whole.manifest.digest
    assert streamed.manifest.files == whole.manifest.files
    assert streamed.manifest.made["way"] == "layers"
    assert sorted(file.name for file in streamed.path.iterdir()) == sorted(
        file.name for file in whole.path.iterdir()
    )


@pytest.mark.parametrize("case", DISTINCT)
def test_every_kind_of_family_gives_the_bits_of_the_whole_model(case, tmp_path):
    """By layers, in blocks of experts, and in one family of each kind in blocks of one."""
    family_model(case).save_pretrained(tmp_path / "model", max_shard_size="40KB")
    described = load_model_index(str(tmp_path / "model"))
    if case.model_type in HAND_ON_MORE:
        with pytest.raises(UnsupportedModelError, match="a layer hands on more than hidden states"):
            run(described, tmp_path / "streamed", STREAMED)
        return
    whole = run(described, tmp_path / "whole", **EVERY_GROUP)
    for at_once in (0, 3, 1) if case in KINDS else (0, 3):
        place = replace(STREAMED, experts_at_once=at_once)
        assert_same(run(described, tmp_path / f"in {at_once}", place, **EVERY_GROUP), whole)


# A model on disk, and what is asked of its runs.
WAYS = {
    "experts stacked on disk": ({"model_type": "mixtral", "fused": True}, {}),
    "in bfloat16": ({"dtype": torch.bfloat16}, {"dtype": "auto"}),
    "to bfloat16": ({}, {"dtype": "bfloat16"}),
    "every group": ({}, EVERY_GROUP),
    "hidden states on disk": ({}, {"hidden": True}),
    "blocks in bfloat16": ({"dtype": torch.bfloat16}, {"dtype": "auto", "place": IN_BLOCKS}),
    "blocks of experts stacked on disk": (
        {"model_type": "mixtral", "fused": True},
        {"place": IN_BLOCKS},
    ),
    "states inside of layers on disk": ({}, {"place": IN_BLOCKS, "hidden": True}),
}


@pytest.mark.parametrize(("stored", "asked"), WAYS.values(), ids=WAYS)
def test_layers_give_the_bits_of_the_whole_model(stored, asked, tmp_path, monkeypatch):
    # As for large tensors: layers take each other's memory.
    monkeypatch.setattr(weight_memory, "_LEAST", 1)
    described = describe(tmp_path / "model", **{"model_type": "qwen3_moe", **stored})
    asked = {"place": STREAMED, "hidden": None, **asked}
    hidden_states = asked.pop("hidden") and tmp_path / "hidden"
    place = replace(asked.pop("place"), hidden_states_dir=hidden_states)
    whole = run(described, tmp_path / "whole", **asked)
    assert_same(run(described, tmp_path / "streamed", place, **asked), whole)
    assert not hidden_states or list(hidden_states.iterdir()) == []


@pytest.mark.parametrize(
    ("groups", "times"), [(("routed", "router", "damage"), 1), (("routed", "dense"), 2)]
)
def test_blocks_are_read_once_and_once_more_for_the_group_dense(
    groups, times, olmoe, tmp_path, monkeypatch
):
    read, most = Counter(), 0
    whole, fill = StoredTensor.read_into, Skeleton.load_experts

    def noted(self, target):
        read[self.entry.name] += 1
        whole(self, target)

    def held(self, layer, experts):
        nonlocal most
        fill(self, layer, experts)
        module = self.model.model.layers[layer].mlp.experts
        most = max(most, sum(parameter.numel() for parameter in module.parameters()))

    monkeypatch.setattr(StoredTensor, "read_into", noted)
    monkeypatch.setattr(Skeleton, "load_experts", held)
    run(olmoe, tmp_path / "stats", IN_BLOCKS, groups=groups)
    # The head gives no statistics, nor does the norm before it.
    wanted = {
        name: times if ".experts." in name else 1
        for name in olmoe.checkpoint.tensors
        if name not in ("lm_head.weight", "model.norm.weight")
    }
    assert read == wanted
    assert most == 3 * sum(
        entry.numel
        for name, entry in olmoe.checkpoint.tensors.items()
        if "layers.1.mlp.experts.0." in name
    )


# Two ways to run, and the place of the first at whose third step it stops.
ANOTHER_WAY = [
    *((IN_BLOCKS, STREAMED, f"layer {layer}") for layer in (0, 1)),
    *((STREAMED, IN_BLOCKS, f"layer {layer}") for layer in (0, 1)),
    *((STREAMED, Placement(), "layer 1"), (Placement(), STREAMED, "")),
]


@pytest.mark.parametrize(("first", "second", "at"), ANOTHER_WAY)
@pytest.mark.usefixtures("_saved_at_every_step")
def test_a_run_that_stopped_is_finished_in_another_way(first, second, at, olmoe, tmp_path):
    """Blocks and layers resume each other; batches start anew. Nothing is left behind."""
    once, stats = run(olmoe, tmp_path / "once"), tmp_path / "stats"
    task = calibration(olmoe, stats, placement=first)
    steps = (step for step in task if step.at == at)
    next(steps), next(steps), next(steps)
    task.close()
    # Within the first layer there is nothing to save.
    assert at == "layer 0" or list(stats.glob("*.partial/state.safetensors"))
    finished = run(olmoe, stats, second)
    assert finished.manifest.files == once.manifest.files
    assert list(stats.iterdir()) == [finished.path]


def test_a_layer_that_does_not_fit_is_run_in_the_largest_blocks_that_do(olmoe, monkeypatch):
    """Hand arithmetic: layers of 7 experts of 3 x 16 x 24 float32, 4,608 bytes each."""
    settings = make_settings(placement=STREAMED)
    sizes = layer_sizes(olmoe, settings)
    assert sizes.expert == 3 * 16 * 24 * 4
    # The embeddings are larger than what a layer holds beside its experts.
    assert sizes.around == VOCAB * 16 * 4
    tensors = olmoe.checkpoint.tensors
    layer = [name for name in tensors if name.startswith("model.layers.1.")]
    assert sizes.whole == 4 * sum(tensors[name].numel for name in layer)
    sizes_of_run = RunSizes(running=200, states=800, paused=2700, kept=100)

    def fitting(free, **changes):
        monkeypatch.setattr(blocks, "free_memory", lambda: free)
        return experts_that_fit(olmoe, settings, replace(sizes_of_run, **changes))

    whole = (sizes.whole + 1000) / 0.8
    assert fitting(whole + 2) == 0
    assert fitting(whole - 2) == 6
    five = (3000 + sizes.around + 5 * sizes.expert) / 0.8
    assert (fitting(five + 2), fitting(five - 2)) == (5, 4)
    assert fitting(five + 2, copies=1) == 2
    assert fitting(0) == 1  # which is refused, see below
    for at_once, found in ((4, 4), (7, 0)):  # all seven are the whole layer
        asked = replace(settings, placement=replace(STREAMED, experts_at_once=at_once))
        assert experts_that_fit(olmoe, asked, sizes_of_run) == found


def test_a_gpu_has_room_for_weights_whatever_the_hidden_states_take():
    """Hand arithmetic: 10 experts of 10 bytes and 20 around them; 80% of 125 and of 1,000 count."""
    sizes = LayerSizes(whole=120, around=20, expert=10)
    run = RunSizes(running=5, states=700, paused=790, kept=15)
    assert largest_block(sizes, 10, run, FreeMemory(device=157, host=1000)) == 0
    assert largest_block(sizes, 10, run, FreeMemory(device=125, host=1000)) == 6
    assert largest_block(sizes, 10, run, FreeMemory(device=125)) == 1
    for free, fits in (
        (FreeMemory(device=100, host=790), True),
        (FreeMemory(device=99, host=790), False),
        (FreeMemory(device=100, host=789), False),
        (FreeMemory(device=890), True),
        (FreeMemory(device=889), False),
    ):
        assert free.holds(100, 790) == fits


@pytest.mark.parametrize("at_once", [0, 2])
def test_blocks_that_do_not_fit_are_refused_before_anything_runs(
    olmoe, tmp_path, monkeypatch, at_once
):
    monkeypatch.setattr(blocks, "free_memory", lambda: 8000)
    place = replace(STREAMED, experts_at_once=at_once)
    refused = rf"not even with {at_once or 1} of a layer's experts at once: it needs about .* free"
    with pytest.raises(CheckpointError, match=refused) as error:
        run(olmoe, tmp_path / "stats", place)
    assert "\n" not in str(error.value)


def test_forwards_that_pause_are_written_without_waiting_for_the_disk(tmp_path, monkeypatch):
    """Nothing resumes from them."""
    synced = []
    monkeypatch.setattr("os.fsync", synced.append)
    states = hidden.ForwardStates(hidden.HiddenStates(tmp_path, on_disk=True))
    for value in (1.0, 2.0):
        states.put("a", torch.full((2, 3), value))
    assert torch.equal(states.get("a"), torch.full((2, 3), 2.0))
    assert not synced


def test_what_surrounds_experts_counts_twice_in_blocks(olmoe, tmp_path):
    """And what is done adds up to what was stated."""
    wholes = []
    for number, place in enumerate((STREAMED, IN_BLOCKS)):
        steps = list(calibration(olmoe, tmp_path / str(number), placement=place))
        shown = [step.whole for step in steps if step.whole]
        assert shown[-1].done == pytest.approx(shown[-1].total)
        assert shown[-2].done["multiply"] < shown[-1].total["multiply"]
        wholes.append(shown[-1].total["multiply"])
    around = layer_costs(olmoe).running_around(make_sequences().num_tokens, 0, 1, 2)
    assert wholes[1] - wholes[0] == pytest.approx(around)
    assert around > 0


def test_forwards_that_pause_keep_routes_and_what_damage_needs(olmoe):
    sequences = make_sequences()
    # 60 bytes for each of a token's two experts; eight for its place among the outputs of each of
    # seven, and the outputs of three in 16 numbers of float32.
    for groups, each in (("routing",), 60 * 2), (("damage",), 60 * 2 + 8 * 7 + 3 * 16 * 4):
        settings = make_settings(groups=groups)
        tokens = sequences.num_tokens + sequences.num_padded(settings.batch_size)
        assert run_sizes(olmoe, sequences, settings).kept == each * tokens


def test_only_a_run_by_layers_is_estimated_with_what_runs_twice(olmoe, monkeypatch):
    sequences = make_sequences()
    whole, streamed = (make_settings(placement=place) for place in (Placement(), STREAMED))
    much = [memory.estimate(olmoe, sequences, settings).costs for settings in (whole, streamed)]
    assert much[0] == much[1]
    needs = memory_needs(olmoe, sequences, streamed)
    monkeypatch.setattr(blocks, "free_memory", lambda: needs.streamed - 1)
    little = [memory.estimate(olmoe, sequences, settings) for settings in (whole, streamed)]
    assert all(0 < estimate.needs.experts_at_once < 7 for estimate in little)
    assert little[0].costs == much[0]
    assert much[0]["multiply"] < little[1].costs["multiply"]


def test_large_hidden_states_go_to_disk_by_themselves(olmoe, monkeypatch, tmp_path):
    monkeypatch.setattr(hidden, "free_memory", lambda: 1000)
    task = calibration(olmoe, tmp_path / "stats", placement=STREAMED)
    next(step for step in task if step.at == "layer 1")
    assert list((tmp_path / "stats").glob("*.partial/hidden-1/0.safetensors"))


@pytest.mark.parametrize("placement", [Placement(), STREAMED], ids=["whole", "layers"])
@pytest.mark.usefixtures("_saved_at_every_step")
def test_the_whole_is_known_from_the_start_and_resumes_where_it_stands(placement, tmp_path):
    described = describe(tmp_path / "model", "qwen3_moe")
    costs, tokens = layer_costs(described), make_sequences().num_tokens
    assert sum(costs.num_bytes.values()) == described.checkpoint.nbytes

    def wholes(task, until):
        seen = []
        for step in task:
            if step.whole:
                seen.append(step.whole)
                if step.whole.done["multiply"] >= until * step.whole.total["multiply"]:
                    task.close()
        return seen

    stopped = wholes(calibration(described, tmp_path / "stats", placement=placement), 0.6)
    resumed = wholes(calibration(described, tmp_path / "stats", placement=placement), 2.0)
    for seen in (stopped, resumed):
        shares = [whole.fraction for whole in seen]
        assert shares == sorted(shares)
    trunk = range(described.depth)
    assert stopped[0].total["multiply"] == pytest.approx(costs.running(tokens, *trunk))
    assert stopped[0].fraction == 0
    # What was saved is done from the start, and is no work of the second run.
    assert 0 < resumed[0].before["multiply"] <= stopped[-1].done["multiply"]
    assert resumed[0].done["multiply"] == resumed[0].before["multiply"]
    assert resumed[-1].fraction == pytest.approx(1)


def test_only_one_layer_is_held_at_a_time(tmp_path):
    settings = make_settings(placement=STREAMED)
    skeleton = Skeleton(describe(tmp_path / "model", "qwen3_moe"), settings)

    def held():
        return {name for name, value in skeleton.model.named_parameters() if not value.is_meta}

    assert held() == set()
    skeleton.load(EMBEDDINGS)
    assert {name.split(".")[1] for name in held()} == {"embed_tokens"}
    skeleton.drop(EMBEDDINGS)
    skeleton.load(2)
    assert {name.split(".")[2] for name in held()} == {"2"}
    assert len(held()) == len(list(skeleton.layers[2].parameters()))
    skeleton.drop(2)
    assert held() == set()


def test_a_layer_that_overflows_is_named(tmp_path):
    model = tiny_model("qwen3_moe")
    with torch.no_grad():
        model.get_submodule("model.layers.1.mlp").down_proj.weight[:] = torch.inf
    model.save_pretrained(tmp_path / "model")
    described = load_model_index(str(tmp_path / "model"))
    with pytest.raises(StatsError, match=r"Layer 1 gave values .* in float32; look for"):
        run(described, tmp_path / "stats", STREAMED)


@pytest.mark.parametrize(
    ("name", "is_cut", "says"),
    [
        ("layers.1.self_attn.q_proj.weight", False, ""),
        ("layers.1.input_layernorm.weight", False, ""),
        ("embed_tokens.weight", False, ""),
        ("layers.1.mlp.experts.3.up_proj.weight", True, r" .* \(24, 15\), .* \(24, 16\);"),
    ],
)
def test_a_tensor_that_is_missing_or_of_another_shape_is_named(name, is_cut, says, tmp_path):
    tiny_checkpoint(tmp_path / "model", "olmoe", shards=1)
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    whole = tensors.pop(f"model.{name}")
    cut = {f"model.{name}": whole[:, :-1].contiguous()} if is_cut else {}
    save_file(tensors | cut, file, metadata={"format": "pt"})
    described = load_model_index(str(tmp_path / "model"))
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.") + says):
        run(described, tmp_path / "stats", STREAMED)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_recorded_of_layers_that_do_not_run_alone_is_what_running_them_shows(case):
    model, family = family_model(case), FAMILIES[case.model_type]
    config = family.text_config(model.config.to_dict())
    recorded = family.inseparable(config)
    assert bool(recorded) == (case.model_type in HAND_ON_MORE)
    relay = Relay(model, decoder_stack(model, family)[1], family.label, run_trunk)
    shown = ""
    with torch.no_grad():
        try:
            relay.embed(next(make_sequences(vocabulary=config["vocab_size"]).batches(3)))
        except UnsupportedModelError as error:
            shown = str(error)
    assert shown == (str(relay.refusal(recorded)) if recorded else "")


def test_what_would_be_refused_is_not_advised(tmp_path, monkeypatch):
    family_model(BY_NAME["glm_moe_dsa"]).save_pretrained(tmp_path / "joined")
    tiny_checkpoint(tmp_path / "apart", "olmoe")
    for name, refused in ("joined", True), ("apart", False):
        described, settings = load_model_index(str(tmp_path / name)), make_settings()
        needs = memory_needs(described, make_sequences(), settings)
        little = replace(needs, free=needs.whole_model - 1)
        for way in ("--stream-layers", "torchrun"):
            assert (way in little.advice) is not refused
        assert "--device-map auto" in little.advice
        with monkeypatch.context() as patched:
            patched.setattr(blocks, "free_memory", lambda most=little.free: most)
            with pytest.raises(CheckpointError, match="--device-map auto") as error:
                check_fits(described, make_sequences(), settings)
            assert ("--stream-layers" in str(error.value)) is not refused


@pytest.mark.parametrize("name", ["gemma4_text", "gemma4"])
def test_layers_that_get_more_than_hidden_states_are_refused(name, tmp_path):
    """Gemma 4's small models give each layer embeddings of its own."""
    case = BY_NAME[name]
    own = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB}
    changed = {**case.settings, **own}
    if case.composite:
        changed = {**case.settings, "text_config": {**case.settings["text_config"], **own}}
    family_model(replace(case, settings=changed)).save_pretrained(tmp_path / "model")
    described = load_model_index(str(tmp_path / "model"))
    run(described, tmp_path / "whole")
    message = r"streamed layer by layer: each layer also gets what .*per_layer.* --device-map auto"
    with pytest.raises(UnsupportedModelError, match=message) as recorded:
        run(described, tmp_path / "stats", STREAMED)
    skeleton = Skeleton(described, make_settings(placement=STREAMED))
    skeleton.load(EMBEDDINGS)
    relay = Relay(skeleton.model, skeleton.layers, described.family.label, run_trunk)
    with pytest.raises(UnsupportedModelError) as shown:
        relay.embed(next(make_sequences(vocabulary=described.config["vocab_size"]).batches(3)))
    assert str(recorded.value) == str(shown.value)
    assert not list((tmp_path / "stats").rglob("*.safetensors"))


def test_hidden_states_changed_between_layers_are_refused(olmoe):
    skeleton = Skeleton(olmoe, make_settings(placement=STREAMED))
    skeleton.load(EMBEDDINGS)
    relay = Relay(skeleton.model, skeleton.layers, "OLMoE")
    skeleton.layers[1].register_forward_pre_hook(lambda _, args: (args[0] * 2, *args[1:]))
    batch = next(make_sequences().batches(3))
    refused = pytest.raises(UnsupportedModelError, match=r"OLMoE cannot be streamed .* changes")
    with collecting(skeleton.model, olmoe, sums_of(olmoe)), refused:
        relay.embed(batch)
