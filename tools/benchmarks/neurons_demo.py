"""Held-out loss of the demo without 40% of its neurons, by criterion; FLOPs saved.

`OMP_NUM_THREADS=1 python tools/benchmarks/neurons_demo.py [sequences]`

Each corpus is pruned by its own shipped statistics and measured on its own held-out text. Whole
experts go until as many neurons are gone: 77 of 192, 40.1%.
"""

import sys
from fractions import Fraction

import numpy as np
import torch
from transformers import AutoTokenizer

from analysis.calibration.loading import CalibrationSettings, load_model
from analysis.corpora.sampling import tokenize
from analysis.corpora.settings import Sampling
from analysis.corpora.sources import fitness_source
from analysis.corpora.spec import CorpusWeight
from analysis.criteria import get_criterion
from analysis.drain import drain
from analysis.files.shipped import SHIPPED_STATS
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.model.widths import expert_widths
from analysis.numbers.arrays import NeuronScores
from analysis.ranking.choose import choose_stats
from analysis.ranking.experts import rank_experts
from analysis.ranking.neurons import neuron_saliency, read_neurons
from analysis.ranking.norms import neuron_norms
from analysis.stats.store import StatsStore
from pruning.engine.masking import masked
from pruning.plan.budget import sparsity_budget
from pruning.plan.kept import KeptNeurons
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan, fit_plan, model_ref
from pruning.plan.selection import neurons_left
from pruning.plan.units import NeuronScope, neuron_units
from pruning.planning.make import neurons_removed
from pruning.planning.side_by_side import flops_saved
from tools.demo.build import held_out_loss

SHARE = Fraction(2, 5)
CORPORA = ("demo-code", "demo-stories", "demo-math")
STORE = StatsStore(SHIPPED_STATS)


def held_out(model: MoEModel, corpus: str, sequences: int) -> np.ndarray:
    """(sequences, 256) ids of text that was kept from training and calibration."""
    tokenizer = AutoTokenizer.from_pretrained(model.checkpoint.path)
    sampling = Sampling(sequences * 256, 256, 42)
    return np.stack(tokenize(fitness_source(corpus), tokenizer, sampling, corpus=corpus).rows)


def neuron_plan(model: MoEModel, neurons: KeptNeurons) -> PruningPlan:
    plan = PruningPlan(model_ref(model), {}, granularity=NEURON_GRANULARITY, kept_neurons=neurons)
    return fit_plan(plan, model)


def whole_experts(model: MoEModel, criterion: str, corpus: str, *, spread: bool) -> PruningPlan:
    """77 of 192 experts gone: the lowest of all, or as evenly over the layers as that goes."""
    chosen = choose_stats(get_criterion(criterion), STORE, model, [CorpusWeight(corpus)])
    ranking = rank_experts(get_criterion(criterion), chosen.stats, "applied")
    gone = round(SHARE * len(ranking))
    # Last within each layer first where they are spread; a router needs four experts.
    order = ["rank", "saliency"] if spread else ["saliency"]
    left = ranking[ranking["rank"] >= 4].sort_values(order, ascending=[False, True][-len(order) :])
    doomed = left.head(gone)
    kept = ranking.drop(index=doomed.index).groupby("layer")["expert"]
    return fit_plan(
        PruningPlan(model_ref(model), {layer: tuple(sorted(ids)) for layer, ids in kept}), model
    )


def random_scores(like: NeuronScores, seed: int) -> NeuronScores:
    rng = np.random.default_rng(seed)
    return {
        layer: tuple(rng.random(len(scores)) for scores in held) for layer, held in like.items()
    }


def scores_of(model: MoEModel, criterion: str, corpus: str) -> NeuronScores:
    wanted = get_criterion(criterion)
    read = drain(read_neurons(wanted, STORE, model, [CorpusWeight(corpus)]))
    return neuron_saliency(wanted, read.stats, expert_widths(model))


def plans_of(model: MoEModel, corpus: str) -> dict[str, PruningPlan]:
    heapr, camera = (scores_of(model, name, corpus) for name in ("heapr", "camera-p"))
    norms = drain(neuron_norms(model))

    def neurons(scores: NeuronScores, scope: NeuronScope) -> PruningPlan:
        units = neuron_units(expert_widths(model), scope=scope, saliency=scores)
        removed = neurons_removed(units, sparsity_budget(units, SHARE))
        return neuron_plan(model, neurons_left(units, removed))

    return {
        "HEAPr-G": neurons(heapr, NeuronScope.GLOBAL),
        "HEAPr-L": neurons(heapr, NeuronScope.LAYER),
        "HEAPr, per expert": neurons(heapr, NeuronScope.EXPERT),
        "CAMERA-P": neurons(camera, NeuronScope.LAYER),
        "neuron-norms, global": neurons(norms, NeuronScope.GLOBAL),
        **{
            f"random neurons, seed {seed}": neurons(random_scores(heapr, seed), NeuronScope.GLOBAL)
            for seed in (0, 1)
        },
        "whole experts, HEAPr, global": whole_experts(model, "heapr", corpus, spread=False),
        "whole experts, HEAPr, even": whole_experts(model, "heapr", corpus, spread=True),
        "whole experts, REAP, even": whole_experts(model, "reap", corpus, spread=True),
    }


def main() -> None:
    sequences = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    model = load_model_index("demo")
    loaded = load_model(model, CalibrationSettings(seq_len=256, dtype="float32", device="cpu"))
    for corpus in CORPORA:
        rows = held_out(model, corpus, sequences)
        full = held_out_loss(loaded, rows)
        print(f"{corpus}: {rows.size} tokens, full {full:.4f}", flush=True)
        for name, plan in plans_of(model, corpus).items():
            with masked(loaded, model.family, plan):
                loss = held_out_loss(loaded, rows)
            print(f"  {name:<32} {loss:.4f}  +{loss - full:.4f}", flush=True)
    scores = scores_of(model, "heapr", "demo-code")
    chosen = choose_stats(get_criterion("reap"), STORE, model, [CorpusWeight("demo-code")])
    counts = chosen.stats.table.groupby("layer")["num_tokens"]
    routing = {layer: tuple(tokens.tolist()) for layer, tokens in counts}
    units = neuron_units(expert_widths(model), scope=NeuronScope.GLOBAL, saliency=scores)
    saved = flops_saved(model, units, ("20%", "40%", "60%"), routing)
    print(saved.to_string(index=False), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
