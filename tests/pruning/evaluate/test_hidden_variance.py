"""Variance of hidden states against `output_hidden_states` of plain forwards."""

import numpy as np
import pytest
import torch
from nonuniform_cases import keeps_of, plan_of

from analysis.drain import drain
from analysis.families import FAMILIES
from families.configs import CASES, tiny_model
from families.physical import physically_pruned
from pruning.evaluate.hidden_states import draw_tokens, run_variance
from pruning.evaluate.samples import make_samples
from pruning.plan import ModelRef

MEASURED = [case for case in CASES if case.name in ("olmoe", "qwen3_moe", "deepseek_v3", "jamba")]


@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_variance_is_the_mean_over_tokens(case, make_sequences):
    model = tiny_model(case)
    samples = make_samples(make_sequences(), batch_size=3)
    chosen = draw_tokens(samples)
    plan = plan_of(ModelRef("tiny", "00" * 32), case, keeps_of(case))
    pruned = physically_pruned(model, case, plan.kept)
    for candidate, plain in ((None, model), (plan, pruned)):
        found = drain(run_variance(model, FAMILIES[case.model_type], candidate, samples, chosen))
        wanted = []
        for ids in samples.sequences.rows:
            tokens = torch.from_numpy(ids.astype(np.int64))[None]
            with torch.no_grad():
                states = plain(input_ids=tokens, output_hidden_states=True).hidden_states
            # The first is the embedding; the last is behind the final norm, so it is left out.
            wanted.append([state[0].double().numpy().var(axis=1) for state in states[1:-1]])
        means = [np.concatenate(layer).mean() for layer in zip(*wanted, strict=True)]
        np.testing.assert_allclose(found[:-1], means, rtol=1e-5)
        assert len(found) == model.config.num_hidden_layers
    assert "forward" not in model.model.layers[0].__dict__


def test_tokens_are_drawn_without_replacement(make_sequences):
    samples = make_samples(make_sequences((9, 5, 12, 7)), batch_size=2)
    masks = [batch.tokens.mask for batch in samples.batches()]
    for count, wanted in ((10, 10), (33, 33), (1000, 33)):
        chosen = draw_tokens(samples, count)
        assert sum(int(each.sum()) for each in chosen) == wanted
        assert all((each <= mask).all() for each, mask in zip(chosen, masks, strict=True))
    again, other = draw_tokens(samples, 10), draw_tokens(samples, 10, seed=1)
    assert all((a == b).all() for a, b in zip(again, draw_tokens(samples, 10), strict=True))
    assert any((a != b).any() for a, b in zip(again, other, strict=True))
