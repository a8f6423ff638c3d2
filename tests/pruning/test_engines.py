"""Verdicts on who reads a checkpoint; what is claimed of transformers is proved by loading."""

import pytest
import transformers

from analysis.model import load_model_index
from families.physical import logits_of
from pruning import load_pruned
from pruning.engines import NOT_TRIED, Contents, Reads, contents_of, verdicts
from pruning.plan import keep_all


def by_engine(contents):
    return {verdict.engine: verdict for verdict in verdicts(contents)}


def test_uniform_counts_are_read_by_transformers():
    found = by_engine(Contents((5, 5, 5), "olmoe"))
    assert found["transformers"].reads is Reads.YES
    assert {found[name].reads for name in ("vLLM", "SGLang", "llama.cpp")} == {Reads.EXPECTED}


def test_different_counts_need_a_loader_of_their_own():
    found = by_engine(Contents((5, 7, 4), "olmoe"))
    assert [name for name, verdict in found.items() if verdict.reads is Reads.YES] == [
        "transformers, trust_remote_code=True",
        "moeprune, load_pruned",
    ]
    assert "7 experts" in found["transformers"].reason
    assert "4" in found["transformers"].reason


def test_a_type_that_transformers_lacks():
    for counts in ((5, 5), (5, 4)):
        found = by_engine(Contents(counts, "deepseek", in_transformers=False))
        assert found["transformers"].reads is Reads.NO
        assert "transformers, trust_remote_code=True" not in found
        assert found["moeprune, load_pruned"].reads is Reads.YES


def test_a_type_that_nobody_listed_is_only_expected_to_be_read():
    found = by_engine(Contents((5, 5), "unheard_of", is_discovered=True))
    assert found["transformers"].reads is Reads.EXPECTED
    assert f"if it has a class for 'unheard_of', {NOT_TRIED}" in found["transformers"].reason
    # With sizes of their own: the export built it before it was written.
    found = by_engine(Contents((5, 4), "unheard_of", is_discovered=True))
    assert found["transformers, trust_remote_code=True"].reads is Reads.YES


def test_contents_are_those_of_the_checkpoint_or_of_the_plan(flex_olmo):
    described = load_model_index(str(flex_olmo.path))
    assert contents_of(described) == Contents((6, 3), "flex_olmo")
    assert contents_of(flex_olmo.source, flex_olmo.plan) == Contents((6, 3), "flex_olmo")
    assert contents_of(flex_olmo.source) == Contents((7, 7), "flex_olmo")
    assert contents_of(flex_olmo.source, keep_all(flex_olmo.source)).is_uniform


def test_verdicts_on_transformers_are_what_happens(flex_olmo):
    source = flex_olmo.source.checkpoint.path
    for path, contents in (
        (source, contents_of(flex_olmo.source)),
        (flex_olmo.path, contents_of(flex_olmo.source, flex_olmo.plan)),
    ):
        found = by_engine(contents)
        if found["transformers"].reads is Reads.YES:
            transformers.AutoModelForCausalLM.from_pretrained(path)
        else:
            with pytest.raises(RuntimeError):
                transformers.AutoModelForCausalLM.from_pretrained(path)
        logits_of(load_pruned(path))
