"""What only some families have: groups of experts, and families that nobody listed."""

import pytest
import torch
from exports import export
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)

from analysis.calibration.run import CalibrationSettings, calibrate
from analysis.corpora import TokenSequences
from analysis.drain import drain
from analysis.errors import UserError
from analysis.model import load_model_index
from analysis.stats.store import StatsStore, load_expert_stats
from analysis.stats.weights import measure_weights
from families.configs import CASES, VOCAB, redraw
from families.physical import TOKENS, logits_of, physically_pruned
from pruning.masking import masked
from pruning.plan import PruningPlan, model_ref

GROUPED = [case for case in CASES if case.groups > 1]


@pytest.mark.parametrize("case", GROUPED, ids=str)
@pytest.mark.parametrize(
    "kept",
    [
        (0, 1, 2, 4, 5, 8, 9, 10),  # 3 + 2 + 3
        (0, 1, 2, 3, 4, 5, 6, 7),  # a whole group gone
        (0, 1, 4, 5, 8, 9, 10),  # not divisible
    ],
)
def test_groups_of_different_sizes_are_refused(built, tmp_path, case, kept):
    # The pruned model would part its experts into groups anew, by position, and compute otherwise.
    source = built(case)
    described = source.described()
    plan = PruningPlan(model_ref(described), dict.fromkeys(case.sparse, kept))
    with pytest.raises(UserError, match="group"):
        export(described, plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    before = logits_of(source.model)
    with pytest.raises(UserError, match="group"):
        masked(source.model, described.family, plan).__enter__()
    assert torch.equal(logits_of(source.model), before)


def test_groups_judged_by_two_need_two_experts(built, tmp_path):
    case = next(case for case in GROUPED if case.model_type == "deepseek_v3")
    described = built(case).described()
    plan = PruningPlan(model_ref(described), dict.fromkeys(case.sparse, (0, 4, 8)))
    with pytest.raises(UserError, match="group"):
        export(described, plan, tmp_path / "out")


class NovelMoeConfig(Qwen2MoeConfig):
    model_type = "novel_moe"


class NovelMoeForCausalLM(Qwen2MoeForCausalLM):
    config_class = NovelMoeConfig

    @classmethod
    def _can_set_experts_implementation(cls):
        return True


@pytest.fixture(scope="module")
def novel(tmp_path_factory):
    """A model of a type that neither transformers nor the program lists, in the common layout."""
    AutoConfig.register("novel_moe", NovelMoeConfig, exist_ok=True)
    AutoModelForCausalLM.register(NovelMoeConfig, NovelMoeForCausalLM, exist_ok=True)
    mapping = get_checkpoint_conversion_mapping("qwen2_moe")
    register_checkpoint_conversion_mapping("novel_moe", mapping, overwrite=True)
    config = NovelMoeConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=40,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_experts=7,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        mlp_only_layers=[1],
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        redraw(model)
    path = tmp_path_factory.mktemp("novel")
    model.save_pretrained(path)
    return path, model.eval()


def test_a_discovered_family_is_measured_masked_and_exported(novel, built, tmp_path):
    path, model = novel
    described = load_model_index(str(path))
    rows = tuple(row.to(torch.int32).numpy() for row in TOKENS)
    sequences = TokenSequences("letters.jsonl", rows, len(rows), 0)
    settings = CalibrationSettings(seq_len=12, device="cpu")
    run = drain(calibrate(described, sequences, settings, StatsStore(tmp_path / "stats")))
    assert load_expert_stats(run).table["num_tokens"].sum() == 2 * 2 * TOKENS.numel()
    assert len(drain(measure_weights(described))) == 2 * 7 * 3

    plan = PruningPlan(model_ref(described), {0: (1, 3, 4, 6), 2: (0, 2, 3, 5)})
    common = next(case for case in CASES if case.model_type == "olmoe")  # the same module tree
    pruned = logits_of(physically_pruned(model, common, plan.kept))
    with masked(model, described.family, plan):
        assert torch.equal(logits_of(model), pruned)
    export(described, plan, tmp_path / "out")
    exported, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert torch.equal(logits_of(exported.eval()), pruned)
