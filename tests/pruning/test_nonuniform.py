"""Checkpoints whose layers keep different numbers of experts: written, loaded, used, saved again.

What they must compute is a copy of the original that is pruned in memory by hand, module by module.
"""

import copy
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import transformers
from calibrations import calibrated, table_of
from exports import export
from nonuniform_cases import NAMED, NON_UNIFORM, Pruned, config_of, make_pruned
from oracles import greedy, last_layer_on_disk
from transformers import AutoConfig, AutoModelForCausalLM, FineGrainedFP8Config, PreTrainedModel
from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

from analysis.errors import CheckpointError
from analysis.model.opening import load_model_index
from analysis.nonuniform.loading import auto_class_of
from builders import edit_json
from builders.tokens import token_sequences
from families.configs import KINDS
from families.physical import TOKENS, block_of, logits_of, physically_pruned, router_of
from pruning import load_pruned
from pruning.engine.masking import masked
from pruning.plan.plan import PruningPlan, keep_all, model_ref
from pruning.serving.engines import Contents, Reads, contents_of, readers, verdicts

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


@pytest.mark.parametrize("name", ["flex_olmo", "ernie4_5_moe", "gpt_oss", "phimoe", "aria"])
def test_calibration_counts_the_tokens_that_the_routers_send(pruned_case, tmp_path, name):
    pruned, wanted = pruned_case(NAMED[name]), []
    rows = token_sequences(*TOKENS.tolist())
    run = calibrated(load_model_index(str(pruned.path)), tmp_path, rows, seq_len=TOKENS.shape[1])
    for layer, count in zip(pruned.case.sparse, pruned.counts, strict=True):
        seen = []
        router = router_of(pruned.model, pruned.case, layer)
        hook = router.register_forward_hook(lambda *call, seen=seen: seen.append(call[-1][-1]))
        logits_of(pruned.model)
        hook.remove()
        counts = torch.bincount(torch.cat(seen).flatten(), minlength=count)
        wanted += [[layer, expert, n] for expert, n in enumerate(counts.tolist())]
    assert table_of(run)[["layer", "expert", "num_tokens"]].to_numpy().tolist() == wanted


class TestPrunedAgain:
    def test_masked_and_exported_once_more(self, flex_olmo, tmp_path):
        described = load_model_index(str(flex_olmo.path))
        model = load_pruned(flex_olmo.path)
        plan = PruningPlan(model_ref(described), {0: (0, 2, 3, 5), 1: (0, 1, 2)})
        export(described, plan, tmp_path / "out")
        with masked(model, described.family, plan):
            wanted = logits_of(model)
        assert not torch.allclose(wanted, flex_olmo.logits, atol=1e-3)
        assert torch.equal(logits_of(load_pruned(tmp_path / "out")), wanted)

    def test_with_one_count_again_it_is_an_ordinary_checkpoint(self, flex_olmo, tmp_path):
        described = load_model_index(str(flex_olmo.path))
        plan = PruningPlan(model_ref(described), {0: (0, 2, 5), 1: (0, 1, 2)})
        export(described, plan, tmp_path / "out")
        config = config_of(tmp_path / "out")
        assert "auto_map" not in config
        assert config["per_layer_num_experts"] is config["n_routed_experts_per_layer"] is None
        assert not (tmp_path / "out" / "modeling_pruned.py").exists()
        stock = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        with masked(flex_olmo.model, described.family, plan):
            assert torch.equal(logits_of(stock), logits_of(flex_olmo.model))


def by_engine(contents):
    return {verdict.engine: verdict for verdict in verdicts(contents)}


def test_different_counts_need_a_loader_of_their_own():
    found = by_engine(Contents((5, 7, 4), "olmoe"))
    assert [name for name, verdict in found.items() if verdict.reads is Reads.TRIED] == [
        "transformers, trust_remote_code=True",
        "moeprune, load_pruned",
    ]
    assert "7 experts" in found["transformers"].reason
    assert "4" in found["transformers"].reason


def test_what_needs_remote_code_or_a_loader_is_not_a_plain_reader():
    even, uneven = (readers(verdicts(Contents(counts, "olmoe"))) for counts in ((5, 5), (5, 4)))
    assert "transformers" in even.plain
    assert even.words == ", ".join(even.plain)
    assert uneven.plain == ()
    assert uneven.words == "only transformers with remote code or load_pruned"
    lacking = readers(verdicts(Contents((5, 4), "deepseek", in_transformers=False)))
    assert (lacking.plain, lacking.words) == ((), "only load_pruned")


def test_a_type_that_transformers_lacks():
    for counts in ((5, 5), (5, 4)):
        found = by_engine(Contents(counts, "deepseek", in_transformers=False))
        assert found["transformers"].reads is Reads.FAILS
        assert "transformers, trust_remote_code=True" not in found
        assert found["moeprune, load_pruned"].reads is Reads.TRIED


def test_a_type_that_nobody_listed_is_only_expected_to_be_read():
    found = by_engine(Contents((5, 5), "unheard_of", is_discovered=True))
    assert found["transformers"].reads is Reads.NOT_TRIED
    assert "if it has a class for 'unheard_of'" in found["transformers"].reason
    # With sizes of their own: the export built it before it was written.
    found = by_engine(Contents((5, 4), "unheard_of", is_discovered=True))
    assert found["transformers, trust_remote_code=True"].reads is Reads.TRIED


def test_contents_are_those_of_the_checkpoint_or_of_the_plan(flex_olmo):
    described = load_model_index(str(flex_olmo.path))
    # Saved by transformers 5, which moved the base of positions, here 500,000.
    own = partial(
        Contents, model_type="flex_olmo", hides_rope=True, traits=("query and key norms",)
    )
    assert contents_of(described) == own((6, 3))
    assert contents_of(flex_olmo.source, flex_olmo.plan) == own((6, 3), removes="experts")
    assert contents_of(flex_olmo.source) == own((7, 7))
    assert contents_of(flex_olmo.source, keep_all(flex_olmo.source)).is_uniform


def test_verdicts_on_transformers_are_what_happens(flex_olmo):
    source = flex_olmo.source.checkpoint.path
    for path, contents in (
        (source, contents_of(flex_olmo.source)),
        (flex_olmo.path, contents_of(flex_olmo.source, flex_olmo.plan)),
    ):
        found = by_engine(contents)
        if found["transformers"].reads is Reads.TRIED:
            transformers.AutoModelForCausalLM.from_pretrained(path)
        else:
            with pytest.raises(RuntimeError):
                transformers.AutoModelForCausalLM.from_pretrained(path)
        logits_of(load_pruned(path))
