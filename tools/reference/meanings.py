"""What the columns of tables mean: in a word of its own for a file, else the same in every file."""

from collections.abc import Mapping
from typing import Final

__all__ = ["MEANINGS"]

MEANINGS: Final[Mapping[str, str]] = {
    # Indices.
    "layer": "decoder index",
    "expert": "expert id",
    "neuron": "neuron of the expert: a row of gate and up",
    "other": "the second expert of the pair; expert <= other",
    "next_expert": "expert of the next layer that has experts",
    "shard": "eighth of the counted tokens, 0 to 7",
    "sample": "sequence number, from 0; a merged run numbers its runs one after the other",
    "projection": "gate, up or down",
    # Sums over tokens routed to an expert.
    "num_tokens": "N_j: counted tokens routed to the expert",
    "vector_sum": "sum of f, one number for each hidden dimension",
    "vector_sum_sq": "|| sum of f ||^2",
    "damage": "group damage: sum of ||y - y without the expert||",
    "neuron_product": "group gradient: sum over neurons of output_sq * slope_sq",
    "neuron_norm_sum": "group gradient: sum over neurons of sqrt(output_sq)",
    "neuron_peak_sum": "group gradient: sum over neurons of output_max",
    "output_sq": "sum of ||e_c||^2, e_c what the neuron adds to the expert's output",
    "slope_sq": "sum of (dloss/de_c . u)^2, u the direction of its column of down",
    "output_max": "maximum of ||e_c||",
    # Sums over all tokens of a layer or a sequence.
    "probability_sum": "sum of the router's softmax for the expert, routed to it or not",
    "entropy_sum": "sum of the entropy of the router's softmax, in nats; the same in all rows of a "
    "layer",
    "router.parquet:num_tokens": "counted tokens of the layer; the same in all rows of a layer",
    "coactivation.parquet:num_tokens": "tokens that selected both; tokens of the "
    "expert where other is the same",
    "samples.parquet:num_tokens": "tokens of the sequence that count",
    "transitions.parquet:num_tokens": "tokens that selected expert in layer and next_expert in the "
    "next",
    "activation_sum": "sum of the norm of the expert's output, before the gate weight",
    "loss_sum": "sum of ||Y - f||^2",
    # Weights.
    "l1": "sum of |w|",
    "l2_squared": "sum of w^2",
    "numel": "number of weights",
    # What people open.
    "score": "the paper's number",
    "saliency": "the score, or its negative: higher = keep",
    "rank": "0 is the first to keep within its layer",
    "scores.csv of neurons:rank": "0 is the first to keep in the model; in its layer for criteria "
    "that rank within layers only",
    "scores.csv:num_tokens": "tokens routed to the expert; empty for criteria that read none",
    "criterion": "name, or exponents b,alpha,beta",
    "b": "exponent of the unified family; empty for others",
    "alpha": "exponent of the unified family; empty for others",
    "beta": "exponent of the unified family; empty for others",
    "corpus_a": "calibration corpus",
    "corpus_b": "the other calibration corpus",
    "overlap": "mean over layers of |A and B| / |A| for the pruned sets",
    "chance": "the overlap of random sets: the sparsity after rounding",
    "evaluation": "id of the record",
    "model": "name of the model",
    "plan": "digest of the plan",
    "bits": "format in which the experts' weights were simulated, see `--bits`; empty: as they are",
    "repaired_on": "corpora that the repair was fitted on, joined by +; empty without one",
    "calibrated_on": "corpora that the criterion ranked by",
    "schedule": "name of the schedule",
    "granularity": "expert or neuron",
    "sparsity": "fraction to remove, as requested",
    "removed": "fraction of the routed experts' weights removed",
    "bytes": "of the remaining weights",
    "active_params": "parameters of routed experts that one token uses",
    "expert_flops": "FLOPs of a token in routed experts",
    "corpus": "evaluation corpus",
    "measure": "name of the measure: docs/guide/evaluation.md",
    "mean": "over samples",
    "pooled": "over all positions together",
    "low": "lower end of the bootstrap interval; empty for a single sample",
    "high": "upper end",
    "full": "the same measure of the original model; empty for measures of two models",
    "num_samples": "samples",
    "sweep.csv, sweep.parquet:num_tokens": "positions scored in all samples",
    "sweep.csv, sweep.parquet:dtype": "of the computation; only equal ones are comparable",
    "created_at": "when it was measured",
}
