"""The options of a plan: how much goes, from where, and what is left alone."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from analysis.corpora.spec import parse_corpus
from analysis.numbers.sparsity import parse_sparsity
from pruning.measures.names import Across as AcrossName
from pruning.measures.names import CostName
from pruning.option import Option, checked_by
from pruning.plan.budget import TargetDtype as TargetDtypeName
from pruning.plan.budget import parse_gib
from pruning.plan.constraints import Layers
from pruning.plan.experts_per_token import parse_mean
from pruning.plan.layer_words import layers_words
from pruning.plan.units import parse_scope
from pruning.schedules import SCHEDULES, get_schedule
from pruning.spec.options import CorpusName, Switch, Text, Whole, decimal

ModeName = Literal["uniform", "per-layer", "ragged"]


_Share = Annotated[
    str,
    decimal("give a number or a percentage, such as 0.5 or 50%"),
    checked_by(parse_sparsity),
]
# How much goes, from where.
Sparsity = Annotated[
    _Share,
    Option(
        "Fraction of experts removed: 0.5 or 50%.",
        ("--sparsity",),
        takes="FRACTION",
        heading="Budget",
    ),
]
Shrink = Annotated[
    _Share,
    Option(
        "Make the checkpoint smaller by this share of its bytes: 40% or 0.4.",
        takes="FRACTION",
        heading="Budget",
    ),
]
ParamsShare = Annotated[
    _Share,
    Option("Remove this share of all parameters: 20% or 0.2.", takes="FRACTION", heading="Budget"),
]
Remove = Annotated[
    Whole,
    Field(ge=0, le=10**12),
    Option("Remove this many experts, or neurons, in all.", takes="N", heading="Budget"),
]
TargetSize = Annotated[
    str,
    decimal("give a number of GiB, or a size such as 30GiB"),
    checked_by(parse_gib),
    Option(
        "Size of the weights on disk: 30GiB, 32GB, or a number of GiB.",
        takes="SIZE",
        heading="Budget",
    ),
]
DeviceBudget = Annotated[
    str,
    decimal("give a number of GiB, or a size such as 12GiB"),
    checked_by(partial(parse_gib, what="budget")),
    Option(
        "Bytes for weights on the device: all but routed experts first, as stored, then the "
        "experts that fit. Leave room for the KV cache and activations, which it does not count: "
        "12GiB, or a number of GiB.",
        takes="SIZE",
    ),
]
TargetDtype = Annotated[
    TargetDtypeName,
    Option("Count bytes in the checkpoint's own dtypes (own), or in bfloat16.", heading="Budget"),
]
Uneven = Annotated[
    Switch,
    Option(
        "Let layers keep different numbers of experts, closer to the target; serving engines need "
        "equal numbers.",
        of="expert",
        heading="Budget",
    ),
]
TopK = Annotated[
    Whole,
    Field(ge=1, le=10**4),
    Option(
        "Experts per token, fewer than the model selects: less work.", takes="K", heading="Budget"
    ),
]
MeanTopK = Annotated[
    str,
    decimal("give a number, such as 6 or 5.5"),
    checked_by(parse_mean),
    Option(
        "Experts per token on average: layers where that costs least select fewer, as `moeprune "
        "topk` measured.",
        ("--mean-top-k",),
        takes="K",
    ),
]
Schedule = Annotated[
    Text,
    checked_by(get_schedule),
    Option(f"How the budget is spread: {', '.join(SCHEDULES)}.", of="expert", heading="Layers"),
]
MeasuredOn = Annotated[
    CorpusName,
    checked_by(parse_corpus),
    Option(
        "With --schedule measured, corpus of the sensitivity; repeatable. Default: all.",
        ("--measured-on",),
        takes="CORPUS",
        heading="Layers",
    ),
]
Cost = Annotated[
    CostName, Option("With --schedule measured, the cost to minimise.", heading="Layers")
]
Across = Annotated[
    AcrossName,
    Option("With several --measured-on, minimise their mean or the worst.", heading="Layers"),
]
Levels = Annotated[
    Whole,
    Field(ge=2, le=128),
    Option(
        "Measure each layer without 1/LEVELS, 2/LEVELS ... of its experts or neurons.",
        heading="Layers",
    ),
]
Refine = Annotated[
    Whole,
    Field(ge=0, le=50),
    Option(
        "With a budget, refine its plan in at most this many rounds.",
        takes="ROUNDS",
        heading="Layers",
    ),
]
ScheduleFile = Annotated[
    Path,
    Option(
        "CSV, JSON or YAML: layer -> experts kept or removed; a search result.",
        of="expert",
        heading="Layers",
    ),
]
KeptExperts = Annotated[
    Path,
    Option(
        "JSON or JSON lines: layer -> ids of the experts that stay, or go; an export's "
        "kept_experts.json, or another program's.",
        ("--keep-list",),
        of="expert",
        heading="Layers",
    ),
]
Lock = Annotated[
    Layers,
    Option(
        "Layers that keep what they had before --set: 0,5-7; repeatable.",
        takes="LAYERS",
        words=layers_words,
        of="expert",
        heading="Constraints",
    ),
]
NeuronScope = Annotated[
    Text,
    checked_by(parse_scope),
    Option(
        "Neurons compete within an expert, a layer, or all layers (global).",
        takes="expert|layer|global",
        of="neuron",
        heading="Neurons",
    ),
]
KeptNeurons = Annotated[
    Path,
    Option(
        "JSON: layer -> expert -> ids of the neurons that stay.", of="neuron", heading="Neurons"
    ),
]
WidthMode = Annotated[
    ModeName,
    Option("Width mode whose size a budget in bytes counts.", of="neuron", heading="Neurons"),
]
WidthMultipleOf = Annotated[
    Whole,
    Field(ge=1, le=1 << 16),
    Option(
        "Widths of an export are rounded up to a multiple of this.",
        takes="NEURONS",
        of="neuron",
        heading="Neurons",
    ),
]
