"""Checkpoints whose layers keep different numbers of experts: written, loaded, used, saved again.

What they must compute is a copy of the original that is pruned in memory by hand, module by module.
"""

import copy
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from nonuniform_cases import NAMED, NON_UNIFORM, Pruned, config_of, make_pruned
from oracles import greedy, last_layer_on_disk
from transformers import AutoConfig, AutoModelForCausalLM, FineGrainedFP8Config, PreTrainedModel
from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

from analysis.errors import CheckpointError
from analysis.model.opening import load_model_index
from analysis.nonuniform.loading import auto_class_of
from builders import edit_json
from families.configs import KINDS
from families.physical import TOKENS, block_of, logits_of, physically_pruned
from pruning import load_pruned

SOME = [case for case in KINDS if case in NON_UNIFORM]


@pytest.fixture(params=SOME, ids=str)
def pruned(request, pruned_case) -> Pruned:
    return pruned_case(request.param)


def load_complete(path, **options):
    model, info = load_pruned(path, output_loading_info=True, **options)
    assert not any(info.values()), info
    return model


class TestFamilies:
    """One family of each kind; `tests/families/test_load_pruned.py` loads them all."""

    def test_saved_again_it_is_the_same(self, pruned, tmp_path):
        load_pruned(pruned.path).save_pretrained(tmp_path)
        assert torch.equal(logits_of(load_complete(tmp_path)), pruned.logits)

    def test_a_stock_reader_fails_loudly(self, pruned):
        stock = getattr(transformers, pruned.source.family.auto_class)
        with pytest.raises(RuntimeError, match="size"):
            stock.from_pretrained(pruned.path)

    def test_configuration_says_what_the_layers_hold(self, pruned):
        config = config_of(pruned.path)
        text = config.get("text_config", config)
        counts = dict(zip(pruned.case.sparse, pruned.counts, strict=True))
        listed = text["per_layer_num_experts"]
        assert listed == [counts.get(layer, 0) for layer in range(len(listed))]
        assert text["n_routed_experts_per_layer"] == listed
        assert text["output_router_logits"] is False
        keys = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
        assert {text[key] for key in keys if key in text} == {max(pruned.counts)}
        described = load_model_index(str(pruned.path))
        assert [layer.num_experts for layer in described.layers] == pruned.counts
        assert {layer.top_k for layer in described.layers} == {pruned.case.top_k}

    def test_the_experts_implementation_reaches_every_layer(self, pruned):
        model = load_pruned(pruned.path)
        called = []

        def counting(experts, *inputs):
            called.append(experts.num_experts)
            return grouped_mm_experts_forward(experts, *inputs)

        ALL_EXPERTS_FUNCTIONS.register("test_counting", counting)
        model.set_experts_implementation("test_counting")
        assert torch.equal(logits_of(model), pruned.logits)
        assert called == pruned.counts
        called.clear()
        assert torch.equal(logits_of(copy.deepcopy(model)), pruned.logits)
        assert called == pruned.counts


class TestUse:
    def test_generates_as_greedy_decoding_of_the_pruned_original(self, flex_olmo):
        ids = TOKENS[:1, :4]
        found = load_pruned(flex_olmo.path).generate(
            ids, max_new_tokens=5, do_sample=False, eos_token_id=None
        )
        assert found[0, 4:].tolist() == greedy(flex_olmo.model, ids[0].tolist(), 5)

    def test_offloaded_to_disk(self, flex_olmo, tmp_path):
        model = load_pruned(flex_olmo.path, **last_layer_on_disk(tmp_path))
        assert model.model.layers[1].mlp.experts.down_proj.is_meta
        assert torch.equal(logits_of(model), flex_olmo.logits)

    @pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
    def test_fp8_checkpoints_are_dequantised_on_the_cpu(self, tmp_path, name):
        pruned = make_pruned(NAMED[name], tmp_path, quantise=True)
        stock = AutoModelForCausalLM.from_pretrained(pruned.source.checkpoint.path)
        wanted = logits_of(physically_pruned(stock, pruned.case, pruned.plan.kept))
        assert torch.equal(logits_of(load_complete(pruned.path)), wanted)

    def test_element_type(self, flex_olmo):
        model = load_pruned(flex_olmo.path, dtype=torch.bfloat16)
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        source = flex_olmo.source.checkpoint.path
        stock = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
        wanted = logits_of(physically_pruned(stock, flex_olmo.case, flex_olmo.plan.kept))
        assert torch.equal(logits_of(model), wanted)

    @pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3", "glm4_moe", "ernie4_5_moe"])
    def test_fp8_experts_are_built_with_the_numbers_of_their_layers(self, pruned_case, name):
        pruned = pruned_case(NAMED[name])
        loader = auto_class_of(load_model_index(str(pruned.path)))
        with torch.device("meta"):
            model = loader.from_config(AutoConfig.from_pretrained(pruned.path))
        replace_with_fp8_linear(model, quantization_config=FineGrainedFP8Config())
        for layer, count in zip(pruned.case.sparse, pruned.counts, strict=True):
            experts = block_of(model, pruned.case, layer).experts
            assert type(experts).__name__ == "FP8Experts"
            assert len(experts.down_proj) == experts.num_experts == count

    def test_loaded_with_random_weights_every_layer_is_initialised(self, flex_olmo):
        described = load_model_index(str(flex_olmo.path))
        config = AutoConfig.from_pretrained(flex_olmo.path)
        with torch.random.fork_rng():
            model = auto_class_of(described).from_config(config)
        for layer in model.model.layers:
            std = float(layer.mlp.experts.down_proj.detach().std())
            assert std == pytest.approx(config.initializer_range, rel=0.2)


class TestLoader:
    def test_leaves_transformers_as_it_was(self, flex_olmo):
        model = flex_olmo.model
        classes = (AutoModelForCausalLM, type(model), type(model.model.layers[0]))
        before = [dict(vars(cls)) for cls in classes]
        load_pruned(flex_olmo.path)
        assert [dict(vars(cls)) for cls in classes] == before

    def test_threads_load_both_kinds(self, flex_olmo):
        source = flex_olmo.source.checkpoint.path
        whole = logits_of(AutoModelForCausalLM.from_pretrained(source))
        tie_weights = PreTrainedModel.tie_weights
        with ThreadPoolExecutor(4) as pool:
            models = list(pool.map(load_pruned, [flex_olmo.path, source] * 4))
        for number, model in enumerate(models):
            assert torch.equal(logits_of(model), whole if number % 2 else flex_olmo.logits)
        # transformers swaps this while it loads; overlapping loads would leave it swapped.
        assert PreTrainedModel.tie_weights is tie_weights

    def test_a_composite_checkpoint_whole(self, pruned_case):
        pruned = pruned_case(NAMED["qwen3_5_moe"])
        model = load_complete(pruned.path, auto_class="AutoModelForImageTextToText")
        assert type(model).__name__ == "Qwen3_5MoeForConditionalGeneration"
        assert torch.equal(logits_of(model), pruned.logits)

    @pytest.mark.parametrize("kind", ["pruned", "source"])
    def test_code_that_lies_in_the_folder_is_not_run(self, flex_olmo, tmp_path, kind):
        path = shutil.copytree(flex_olmo.path.parent / kind, tmp_path / "copy")
        classes = {"AutoModelForCausalLM": "modeling_pruned.PrunedForCausalLM"}
        edit_json(path / "config.json", auto_map=classes)
        (path / "modeling_pruned.py").write_text("raise SystemExit('run')\n")
        load_pruned(path, trust_remote_code=True)

    @pytest.mark.parametrize(
        ("name", "counts", "message"),
        [
            ("flex_olmo", [6], "1 numbers for 2 layers"),
            ("flex_olmo", [6, 0], r"\[1\] = 0, but layer 1 has experts"),
            ("flex_olmo", [5, 3], "at most 5 experts .* but 6"),
            ("flex_olmo", [6, -1], "must be a list of whole numbers"),
            ("flex_olmo", "6,3", "must be a list of whole numbers"),
            ("flex_olmo", [6, 4], "lacks|holds|rows"),
            ("flex_olmo", None, "lacks|holds|rows"),
            ("qwen2_moe", [5, 2, 2], r"\[1\] = 2, but layer 1 is dense"),
            ("phimoe", [5, 1], "always selects 2"),
            ("gemma4_text", [6, 1], "always selects 2"),
        ],
    )
    def test_counts_that_contradict_the_rest_are_refused(
        self, pruned_case, tmp_path, name, counts, message
    ):
        path = shutil.copytree(pruned_case(NAMED[name]).path, tmp_path / "copy")
        edit_json(path / "config.json", per_layer_num_experts=counts)
        with pytest.raises(CheckpointError, match=message):
            load_pruned(path)

    def test_a_uniform_checkpoint_is_loaded_by_the_stock_class(self, flex_olmo):
        model = load_pruned(flex_olmo.source.checkpoint.path)
        assert type(model) is type(flex_olmo.model)

    def test_no_such_folder(self, tmp_path):
        with pytest.raises(CheckpointError, match="not a directory"):
            load_pruned(tmp_path / "none")
