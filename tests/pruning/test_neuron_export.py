"""Exports of plans that remove neurons: every family, in every width mode that it allows."""

import json
import shutil

import pytest
import torch
from exports import export, failed, keeping_neurons, tensors_of, verified
from neuron_cases import TIED, Exported, allowed, zeroed
from safetensors.torch import load_file, save_file

from analysis.drain import drain
from analysis.errors import CheckpointError, PlanError
from analysis.model.opening import load_model_index
from builders import edit_json
from families.built import stock_load
from families.configs import BY_NAME, CASES, KINDS
from families.physical import block_of, logits_of
from families.tiny_models import tiny_model
from pruning import load_pruned
from pruning.plan.heads import HeadPlan
from pruning.plan.plan import PruningPlan, fit_plan, model_ref
from pruning.plan.widths import WidthChoice, WidthMode, plan_widths
from pruning.serving.engines import contents_of, verdicts
from pruning.surgery.config import pruned_config
from pruning.surgery.export import ExportSettings, export_checkpoint
from pruning.surgery.width_sizes import width_option, width_options

MODES = ("uniform", "per-layer", "ragged")
ALL = [(case, mode) for case in CASES for mode in MODES]
# One family of each kind; `tests/families/test_load_pruned.py` loads them all.
ALLOWED = [(case, mode) for case, mode in ALL if case in KINDS and allowed(case, mode)]
CLOSE = 1e-5  # of logits of order 1 to 100, in float32: sums over fewer neurons, in another order


@pytest.fixture
def exported(request, width_export) -> Exported:
    return width_export(*request.param)


def of_exports(exports):
    return pytest.mark.parametrize(
        "exported", exports, indirect=True, ids=["-".join(map(str, export)) for export in exports]
    )


def text_part(path):
    config = json.loads((path / "config.json").read_text())
    return config.get("text_config", config)


def widths_of(model, case):
    down = {layer: block_of(model, case, layer).experts.down_proj for layer in case.sparse}
    transposed = case.model_type in ("gpt_oss", "aria", "aria_text")
    return [projection.shape[1 if transposed else 2] for projection in down.values()]


class TestFamilies:
    @of_exports(ALLOWED)
    def test_stock_classes_read_one_width_and_refuse_others(self, exported):
        if exported.mode == "uniform":
            model, info = stock_load(exported.case, exported.path)
            assert not any(info.values()), info
            assert (logits_of(model) - exported.source.logits).abs().max() <= CLOSE
        else:
            with pytest.raises(RuntimeError):
                stock_load(exported.case, exported.path)

    @pytest.mark.parametrize(
        ("case", "mode"), [pair for pair in ALL if not allowed(*pair)], ids=str
    )
    def test_what_is_not_possible_is_refused_with_what_is(
        self, neuron_source, case, mode, tmp_path
    ):
        source = neuron_source(case)
        options = ExportSettings(widths=WidthChoice(WidthMode(mode)))
        why = "is also the width of" if case.fused_too else "stacked"
        assert case.model_type in TIED or not case.fused_too
        with pytest.raises(PlanError, match=f"{why}.*use the width mode per-layer"):
            drain(export_checkpoint(source.described, source.plan, tmp_path / "out", options))
        assert list(tmp_path.iterdir()) == []


class TestBytes:
    @pytest.mark.parametrize(
        ("name", "key", "count"),
        [
            ("deepseek_v2", "n_shared_experts", 3),
            ("ernie4_5_moe", "moe_num_shared_experts", 3),
            ("aria_text", "moe_num_shared_experts", 3),
        ],
    )
    def test_shared_experts_stay_whole_beside_a_smaller_width(self, width_export, name, key, count):
        # Two of width 24 are 48 neurons: three of width 16.
        exported = width_export(BY_NAME[name], "uniform")
        assert text_part(exported.path)[key] == count
        before, after = tensors_of(exported.source.path), tensors_of(exported.path)
        shared = [tensor_name for tensor_name in before if "shared_experts" in tensor_name]
        assert shared
        assert all(torch.equal(before[tensor_name], after[tensor_name]) for tensor_name in shared)

    @pytest.mark.parametrize("name", ["deepseek_v3", "aria_text"])
    def test_shared_experts_grow_by_zeros_to_a_multiple_of_the_width(
        self, neuron_source, tmp_path, name
    ):
        # The 48 shared neurons become three times the width of 20.
        source, out = neuron_source(BY_NAME[name]), tmp_path / "out"
        export(source.described, source.plan, out, widths=WidthChoice(WidthMode.UNIFORM, 20))
        before, after = tensors_of(source.path), tensors_of(out)
        shared = [tensor_name for tensor_name in before if "shared_experts" in tensor_name]
        assert shared
        for tensor_name in shared:
            own, more = after[tensor_name].split([48, 12], dim=int("down_proj" in tensor_name))
            assert torch.equal(own, before[tensor_name])
            assert not more.any()
        assert verified(out, source=source.path).level == "logits"

    @pytest.mark.parametrize(
        ("name", "said", "expected"),
        [
            # vLLM and MLX read only this key and their number, transformers only the next.
            (
                "bailing_hybrid-groups",
                {"moe_shared_expert_intermediate_size": 24, "moe_intermediate_size": 24},
                {"moe_shared_expert_intermediate_size": 20, "moe_intermediate_size": 20}
                | {"num_shared_experts": 3},
            ),
            # transformers and MLX read the last key, vLLM and llama.cpp the others.
            (
                "minimax_m3_vl",
                {},
                {"intermediate_size": 20, "n_shared_experts": 2, "shared_intermediate_size": 40},
            ),
        ],
    )
    def test_every_key_of_the_width_of_shared_experts_follows(
        self, neuron_source, tmp_path, name, said, expected
    ):
        source = neuron_source(BY_NAME[name])
        shutil.copytree(source.path, tmp_path / "source")
        edit_json(tmp_path / "source" / "config.json", **said)
        described = load_model_index(str(tmp_path / "source"))
        held = dict.fromkeys(range(described.layers[0].num_experts), tuple(range(20)))
        plan = keeping_neurons(described, {layer.index: held for layer in described.layers})
        export(described, plan, tmp_path / "out", widths=WidthChoice(WidthMode.UNIFORM, 4))
        part = text_part(tmp_path / "out")
        assert {key: part[key] for key in expected} == expected
        _, info = load_pruned(tmp_path / "out", output_loading_info=True)
        assert not any(info.values()), info

    def test_shared_experts_are_filled_up_to_whole_ones(self, neuron_source, tmp_path):
        source = neuron_source(BY_NAME["glm4_moe"])
        plan = keeping_neurons(
            source.described, {layer: {e: tuple(range(20)) for e in range(7)} for layer in (1, 2)}
        )
        export(source.described, plan, tmp_path / "out", widths=WidthChoice(WidthMode.UNIFORM, 4))
        assert text_part(tmp_path / "out")["n_shared_experts"] == 3  # of 20, for 48 neurons
        before, after = tensors_of(source.path), tensors_of(tmp_path / "out")
        up, down = (f"model.layers.1.mlp.shared_experts.{p}_proj.weight" for p in ("up", "down"))
        assert torch.equal(after[up][:48], before[up])
        assert not after[up][48:].any()
        assert torch.equal(after[down][:, :48], before[down])
        assert after[down].shape == (16, 60)
        _, info = stock_load(source.case, tmp_path / "out")
        assert not any(info.values())

    def test_bfloat16(self, neuron_source, tmp_path):
        case = BY_NAME["olmoe"]
        tiny_model(case).to(torch.bfloat16).save_pretrained(tmp_path / "source")
        described = load_model_index(str(tmp_path / "source"))
        neurons = neuron_source(case).plan.kept_neurons
        plan = keeping_neurons(described, neurons)
        export(described, plan, tmp_path / "out", widths=WidthChoice(WidthMode.RAGGED))
        pruned = load_pruned(tmp_path / "out")
        assert {p.dtype for p in pruned.parameters()} == {torch.bfloat16}
        assert logits_of(pruned).isfinite().all()  # in grouped products, which need the multiple
        # The same weights, without the rounding of products.
        original, _ = stock_load(case, tmp_path / "source", dtype=torch.float32)
        wanted = logits_of(zeroed(original, case, plan))
        found = logits_of(load_pruned(tmp_path / "out", dtype=torch.float32))
        assert (found - wanted).abs().max() <= CLOSE


class TestVerify:
    def test_an_export_in_another_mode_than_its_manifest_says(self, width_export, tmp_path):
        exported = width_export(BY_NAME["olmoe"], "ragged")
        shutil.copytree(exported.path, tmp_path / "out")
        manifest = tmp_path / "out" / "moeprune_manifest.json"
        manifest.write_text(manifest.read_text().replace('"ragged"', '"per-layer"'))
        found = failed(tmp_path / "out", level="bytes", source=exported.source.path)
        assert found.keys() == {"source"}
        assert "experts.0.down_proj.weight should be" in found["source"]

    def test_a_width_that_does_not_run_is_said(self, neuron_source, tmp_path):
        # 13 and 7 float32 are no multiples of 16 bytes, which the stock class needs by default.
        source = neuron_source(BY_NAME["olmoe"])
        export(
            source.described,
            source.plan,
            tmp_path / "out",
            widths=WidthChoice(WidthMode.UNIFORM, 1),
        )
        why = (
            "loads, but does not run: strides should be multiple of 16 bytes; "
            "export again with --width-multiple-of 8"
        )
        assert failed(tmp_path / "out", source=source.path) == {"load": why}


class TestUse:
    @pytest.mark.parametrize("mode", ["per-layer", "ragged"])
    def test_saved_again_it_has_one_width_a_layer(self, width_export, mode, tmp_path):
        exported = width_export(BY_NAME["qwen2_moe"], mode)
        model = load_pruned(exported.path)
        model.save_pretrained(tmp_path)
        again, info = load_pruned(tmp_path, output_loading_info=True)
        assert not any(info.values()), info
        assert torch.equal(logits_of(again), logits_of(model))
        assert widths_of(again, exported.case) == [16, 8]
        shapes = {t.shape[0] for name, t in tensors_of(tmp_path).items() if "experts.0.up" in name}
        assert shapes == {16, 8}

    def test_ragged_offloaded_to_disk(self, width_export, tmp_path):
        exported = width_export(BY_NAME["flex_olmo"], "ragged")
        names = ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head")
        device_map = {**dict.fromkeys(names, "cpu"), "model.layers.0": "cpu"}
        model = load_pruned(
            exported.path,
            device_map={**device_map, "model.layers.1": "disk"},
            offload_folder=tmp_path,
        )
        assert model.model.layers[1].mlp.experts.down_proj.is_meta
        assert (logits_of(model) - exported.source.logits).abs().max() <= CLOSE

    def test_a_ragged_export_is_pruned_again(self, width_export, tmp_path):
        exported = width_export(BY_NAME["olmoe"], "ragged")
        described = load_model_index(str(exported.path))
        plan = PruningPlan(model_ref(described), {}, granularity="neuron")
        export(described, plan, tmp_path / "out", widths=WidthChoice(WidthMode.UNIFORM))
        model, info = stock_load(exported.case, tmp_path / "out")
        assert not any(info.values()), info
        assert (logits_of(model) - exported.source.logits).abs().max() <= CLOSE
        report = verified(tmp_path / "out", source=exported.path)
        assert report.level == "logits"

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ([16], "1 numbers for 2 layers"),
            ([16, 0], r"\[1\] = 0, but layer 1 has experts"),
            ([8, 8], r"\[0\] = 8, but an expert of that layer has 13 neurons"),
            ("16", "must be a list of whole numbers"),
        ],
    )
    def test_widths_that_do_not_fit_are_refused(self, width_export, tmp_path, given, message):
        exported = width_export(BY_NAME["olmoe"], "ragged")
        shutil.copytree(exported.path, tmp_path / "out")
        edit_json(tmp_path / "out" / "config.json", per_layer_expert_width=given)
        with pytest.raises(CheckpointError, match=message):
            load_pruned(tmp_path / "out")


class TestWhatIsSaid:
    def test_the_card_of_an_export_that_stock_classes_do_not_read(self, width_export):
        exported = width_export(BY_NAME["olmoe"], "ragged")
        card = (exported.path / "README.md").read_text()
        kept = sum(
            len(ids) for e in exported.source.plan.kept_neurons.values() for ids in e.values()
        )
        share = f"{(2 * 7 * 24 - kept) / (2 * 7 * 24):.1%}"
        assert f"Neurons removed: {2 * 7 * 24 - kept} of {2 * 7 * 24} ({share})" in card
        assert "Widths: ragged, 8 to 16 when loaded" in card
        assert "AutoModelForCausalLM.from_pretrained(name, trust_remote_code=True)" in card
        described = load_model_index(str(exported.path))
        said = {verdict.engine: verdict.reads for verdict in verdicts(contents_of(described))}
        assert said["transformers"] == "fails"
        assert said["transformers, trust_remote_code=True"] == "tried"
        assert said["moeprune, load_pruned"] == "tried"

    def test_the_card_of_an_export_that_only_load_pruned_reads(self, width_export):
        card = (width_export(BY_NAME["deepseek"], "ragged").path / "README.md").read_text()
        assert "model = load_pruned(name)" in card
        assert "trust_remote_code" not in card


class TestQuantised:
    """Neurons cannot be cut out of quantised experts."""

    @pytest.fixture
    def quantised(self, tmp_path):
        tiny_model(BY_NAME["qwen3_moe"]).save_pretrained(tmp_path / "source")
        file = tmp_path / "source" / "model.safetensors"
        tensors = load_file(file)
        for name in [tensor for tensor in tensors if ".experts." in tensor]:
            tensors[f"{name}_scale_inv"] = torch.ones(1, 1)
        save_file(tensors, file, metadata={"format": "pt"})
        return load_model_index(str(tmp_path / "source"))

    def test_are_refused(self, quantised, tmp_path):
        neurons = {1: {0: (1, 2)}}
        plan = keeping_neurons(quantised, neurons)
        with pytest.raises(PlanError, match=r"quantised .*weight_scale_inv.*dequantise"):
            export(quantised, plan, tmp_path / "out")

    def test_a_plan_of_neurons_that_removes_whole_experts_is_not(self, quantised, tmp_path):
        plan = PruningPlan(model_ref(quantised), {1: (0, 2), 3: (1, 4)}, granularity="neuron")
        export(quantised, plan, tmp_path / "out")
        assert load_model_index(str(tmp_path / "out")).num_experts == 4


OLMOE = BY_NAME["olmoe"]


@pytest.mark.parametrize("asked", [True, False, None])
def test_the_balancing_loss_is_off_beside_other_widths(neuron_source, tmp_path, asked):
    source = neuron_source(OLMOE)
    plan = fit_plan(source.plan, source.described)
    config = json.loads((source.path / "config.json").read_text())
    config["output_router_logits"] = asked
    path = shutil.copytree(source.path, tmp_path / "source")
    (path / "config.json").write_text(json.dumps(config))
    model = load_model_index(str(path))
    widths = plan_widths(model, plan, WidthChoice(WidthMode.UNIFORM))
    written = json.loads(pruned_config(model, plan, HeadPlan(), widths))
    # The widest expert keeps 13 neurons, and widths are multiples of 8.
    assert written == {**config, "intermediate_size": 16, "output_router_logits": False}
    unchanged = pruned_config(model, plan, HeadPlan(), None)
    assert unchanged == (path / "config.json").read_bytes()


def test_a_plan_of_whole_experts_has_no_widths(neuron_source):
    model = neuron_source(OLMOE).described
    plan = fit_plan(PruningPlan(model_ref(model), {OLMOE.sparse[0]: (0, 1, 4)}), model)
    with pytest.raises(PlanError, match=r"removes whole experts only, so no width changes"):
        width_options(model, plan)
    option = width_option(model, plan, WidthChoice(WidthMode.UNIFORM))
    assert "whole experts" in option.refused


@pytest.mark.parametrize(("second", "stock"), [((0, 1, 4), True), ((0, 1, 2, 4), False)])
def test_plain_transformers_reads_one_number_of_experts(neuron_source, tmp_path, second, stock):
    model = neuron_source(OLMOE).described
    neurons = {0: {1: (0, 2, 3)}}
    kept = {0: (0, 1, 4), 1: second}
    plan = PruningPlan(model_ref(model), kept, granularity="neuron", kept_neurons=neurons)
    option = width_option(model, fit_plan(plan, model), WidthChoice(WidthMode.UNIFORM))
    assert option.stock is stock
    export(model, plan, tmp_path / "out", widths=WidthChoice(WidthMode.UNIFORM))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config.get("per_layer_num_experts") is None) is stock
    assert ("auto_map" not in config) is stock


@pytest.mark.parametrize("name", ["gpt_oss", "olmoe"])
def test_zeros_in_place_of_neurons_where_the_width_stays(neuron_source, tmp_path, name):
    source = neuron_source(BY_NAME[name])
    layer = BY_NAME[name].sparse[0]
    # One expert loses all but five neurons; the others keep all 24, and so does the width.
    plan = keeping_neurons(source.described, {layer: {1: (0, 2, 3, 9, 23)}})
    manifest = export(
        source.described, plan, tmp_path / "out", widths=WidthChoice(WidthMode.UNIFORM)
    )
    verified(tmp_path / "out", source=source.path, level="bytes")
    # Gate, up and down of that expert; of gpt_oss gate and up in one, their bias, and down.
    assert sum(shard.cut for shard in manifest.shards) == 3
