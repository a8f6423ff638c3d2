"""The program's own tools, and who else reads checkpoints whose layers differ."""

from functools import partial

import pytest
import torch
import transformers
from calibrations import calibrated, table_of
from exports import export
from nonuniform_cases import NAMED, config_of
from transformers import AutoModelForCausalLM

from analysis.model.opening import load_model_index
from builders.tokens import token_sequences
from families.physical import TOKENS, logits_of, router_of
from pruning import load_pruned
from pruning.engine.masking import masked
from pruning.plan.plan import PruningPlan, keep_all, model_ref
from pruning.serving.engines import Contents, Reads, contents_of, readers, verdicts


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
