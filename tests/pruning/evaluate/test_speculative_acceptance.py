"""Speculative decoding against the expectation of its own test on the text that it wrote."""

import pytest
import torch
from accelerate import cpu_offload
from nonuniform_cases import NAMED, keeps_of, plan_of

from analysis.drain import drain
from analysis.errors import UnsupportedModelError
from analysis.families.listing import FAMILIES
from analysis.model.moe_model import ModelRef
from builders.tokens import answers
from families.configs import BY_NAME
from families.physical import logits_of, physically_pruned
from families.tiny_models import tiny_model
from pruning.engine import speculative
from pruning.engine.speculative import (
    Decoding,
    prompts,
    run_acceptance,
    sharing_copy,
    stream_seed,
    why_decoding_fails,
)
from pruning.measures.samples import make_samples

pytestmark = pytest.mark.skipif(bool(why_decoding_fails()), reason=why_decoding_fails())

CASE = NAMED["flex_olmo"]
FAMILY = FAMILIES[CASE.model_type]
PLAN = plan_of(ModelRef("tiny", "00" * 32), CASE, keeps_of(CASE))


def narrow_model(case=CASE):
    """A model that is unsure of the next token, so that drafts are neither all right nor wrong."""
    model = tiny_model(case)
    with torch.no_grad():
        model.lm_head.weight.mul_(0.5)
    model.generation_config.eos_token_id = None
    return model


def test_a_draft_by_the_model_itself_is_always_accepted():
    model, samples = narrow_model(), make_samples(answers())
    sums = drain(run_acceptance(model, FAMILY, None, samples, Decoding(new_tokens=12)))
    assert (sums.sums == sums.counts).all()
    # Twelve tokens: four drafted and one of the model's own, the same again, one and one.
    assert sums.counts.tolist() == [9, 9, 9, 9]


def test_acceptance_is_the_mean_overlap_where_tokens_were_tested(monkeypatch):
    model, samples = narrow_model(), make_samples(answers())
    pruned = physically_pruned(model, CASE, PLAN.kept)
    expected = []

    class Watched(speculative.CountedDrafts):
        """Also notes sum min(p, q) of every tested position, from two plain forwards."""

        def update_candidate_strategy(self, input_ids, scores, num_matches):
            before, start = self.tested, self._length
            super().update_candidate_strategy(input_ids, scores, num_matches)
            places = range(start - 1, start - 1 + self.tested - before)
            p, q = (
                network(input_ids=input_ids, use_cache=False).logits[0].double().softmax(-1)
                for network in (model, pruned)
            )
            expected.extend(float(torch.minimum(p[t], q[t]).sum()) for t in places)

    monkeypatch.setattr(speculative, "CountedDrafts", Watched)
    decoding = Decoding(new_tokens=50)
    sums = drain(run_acceptance(model, FAMILY, PLAN, samples, decoding))
    tested = int(sums.counts.sum())
    assert len(expected) == tested
    # Given the text, each test passes with that probability: four standard deviations.
    spread = 4 * (sum(e * (1 - e) for e in expected) ** 0.5) / tested
    assert sums.sums.sum() / tested == pytest.approx(sum(expected) / tested, abs=spread)
    assert 0.2 < sum(expected) / tested < 0.95


def test_decoding_is_seeded_and_leaves_no_trace():
    model, samples = narrow_model(), make_samples(answers())
    before, state = logits_of(model), torch.random.get_rng_state()
    runs = [
        drain(run_acceptance(model, FAMILY, PLAN, samples, Decoding(12, seed=seed))).sums.tolist()
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(logits_of(model), before)
    assert "_get_candidate_generator" not in model.__dict__


def test_neighbouring_seeds_share_no_stream():
    seeds = {stream_seed(seed, sample) for seed in range(40, 44) for sample in range(64)}
    assert len(seeds) == 4 * 64


def test_tokens_that_look_like_padding_reach_the_draft():
    model, samples = narrow_model(), make_samples(answers())
    for ids in samples.sequences.rows[:3]:
        model.generation_config.pad_token_id = int(ids[1])  # a token of this prompt
        sums = drain(run_acceptance(model, FAMILY, None, samples, Decoding(new_tokens=12)))
        assert (sums.sums == sums.counts).all()


def test_an_end_of_text_that_was_drafted_counts_as_accepted():
    model, samples = narrow_model(), make_samples(answers())
    model.generation_config.eos_token_id = list(range(3, 64))  # ends nearly at once
    sums = drain(run_acceptance(model, FAMILY, None, samples, Decoding(new_tokens=30)))
    assert (sums.sums == sums.counts).all()
    assert (sums.counts <= 2).all()


def test_prompts_end_where_the_answer_begins():
    (batch,) = make_samples(answers((9, 5), answer=3)).batches()
    assert [ids.shape[1] for ids in prompts(batch)] == [3, 3]
    (whole,) = make_samples(answers((9, 5), answer=0)).batches()
    assert [ids.shape[1] for ids in prompts(whole)] == [4, 2]


def test_an_offloaded_model_is_refused_and_a_copy_shares_every_weight():
    model = narrow_model()
    pairs = zip(model.parameters(), sharing_copy(model).parameters(), strict=True)
    assert all(a is b for a, b in pairs)
    with pytest.raises(UnsupportedModelError, match="needs the whole model in memory"):
        sharing_copy(cpu_offload(narrow_model(), "cpu"))


@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_moe"])
def test_other_families_decode(name):
    case = BY_NAME[name]
    plan = plan_of(ModelRef("tiny", "00" * 32), case, keeps_of(case))
    samples = make_samples(answers())
    family = FAMILIES[case.model_type]
    sums = drain(run_acceptance(tiny_model(case), family, plan, samples, Decoding(new_tokens=8)))
    assert (sums.sums <= sums.counts).all()
    assert (sums.counts > 0).all()
