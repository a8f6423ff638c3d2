"""SPEC-DEC as a fitness: the acceptance that an evaluation measures, sample by sample."""

import numpy as np
import pytest
from masked_cases import DEEP, layers_of, plans_of

from analysis.drain import drain
from analysis.errors import PlanError
from analysis.families.listing import FAMILIES
from builders.tokens import answers
from families.tiny_models import tiny_model
from pruning.engine.speculative import Decoding, run_acceptance, why_decoding_fails
from pruning.measures.samples import make_samples
from pruning.requests.recipe_file import recipe_from_yaml
from pruning.requests.recipe_steps import SearchRequest
from pruning.search.decoding import DecodingFitness
from pruning.search.scores import BlockFitness
from pruning.tasks.search import search_run

CASE = DEEP[0]


@pytest.mark.skipif(bool(why_decoding_fails()), reason=why_decoding_fails())
def test_blocks_hold_the_acceptance_of_an_evaluation():
    model, family, plan_of = tiny_model(CASE), FAMILIES[CASE.model_type], plans_of(CASE)
    model.generation_config.eos_token_id = None
    samples = make_samples(answers((9, 5, 12)), batch_size=2)
    removed = tuple(2 for _ in layers_of(CASE))
    fitness = DecodingFitness(model, family, samples, plan_of, seed=7)
    blocks = [fitness.block(removed, number) for number in range(fitness.num_blocks)]
    sums = drain(run_acceptance(model, family, plan_of(removed), samples, Decoding(seed=7)))
    assert fitness.num_blocks == 2
    whole = BlockFitness.joined(blocks)
    assert whole.sums.tolist() == sums.sums.tolist()
    assert whole.counts.tolist() == np.maximum(sums.counts, 1).tolist()


def test_a_search_by_decoding_needs_the_whole_model(tmp_path):
    recipe = """
model: demo
corpora: [demo-math]
criterion: reap
sparsity: 50%
search: {corpus: demo-math, fitness: spec-dec}
"""
    assert recipe_from_yaml(recipe).search.fitness == "spec-dec"
    request = SearchRequest(recipe=recipe, out=tmp_path / "search", stream_layers=True)
    with pytest.raises(PlanError, match="decodes with the whole model"):
        drain(search_run(request))
