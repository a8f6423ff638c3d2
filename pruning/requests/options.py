"""Every option, declared once: its type, bounds, check and help, for requests, recipes and forms.

A request or a section of a recipe names these as the types of its fields:

    class WeightsRequest(Request):
        model: Model
        revision: Revision | None = None

A field may override its type, as `Annotated[Seed, Option("Seed of the draws.")]`."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field

from analysis.attention import Attention as AttentionName
from analysis.corpora import Count as CountName
from analysis.corpora import Packing as PackingName
from analysis.corpora import Truncate as TruncateName
from analysis.corpora import content_of, corpus_name, parse_corpus
from analysis.criteria import get_criterion
from analysis.devices import parse_device, parse_device_map
from analysis.sparsity import parse_sparsity
from analysis.stats.choose import parse_corpus_weight
from analysis.stats.groups import Group as GroupName
from analysis.stats.groups import ordered
from analysis.stats.tables import Gate as GateName
from pruning.bits import OWN, BitsName
from pruning.budget import TargetDtype as TargetDtypeName
from pruning.budget import parse_gib
from pruning.constraints import parse_counts, parse_experts, parse_numbers, ranges
from pruning.evaluate.drawing import Scored
from pruning.evaluate.result import MeasureName
from pruning.neurons.selection import parse_scope
from pruning.requests.base import Option, checked, checked_by
from pruning.schedules import SCHEDULES, get_schedule
from pruning.sensitivity.curves import Across as AcrossName
from pruning.sensitivity.curves import CostName
from pruning.sizes import parse_size

DEFAULT_TOKENS = 65_536
DEFAULT_SEQ_LEN = 256
DEFAULT_SEED = 42
DEFAULT_ANSWER_TOKENS = 256
_DEVICE_SIZE = re.compile(r"[^=]+=\d+(\.\d+)?[KMGT]i?B")
_OR_PRESET = "default: what a named dataset's paper used, else"


def _as_decimal(value: Any) -> Any:
    """YAML reads 0.5 as a float; take back its shortest decimal form, as written."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def each_once(corpora: Iterable[str]) -> tuple[str, ...]:
    """The corpora without repetitions; files of equal content are one corpus."""
    distinct: dict[str, str] = {}
    for corpus in corpora:
        name = corpus_name(corpus)
        distinct.setdefault(name if content_of(name) else corpus, corpus)
    return tuple(distinct.values())


def _device_size(value: str) -> str:
    if not _DEVICE_SIZE.fullmatch(value):
        raise ValueError("write DEVICE=SIZE, as 0=20GiB or cpu=8GiB")
    return value


def _several(value: Any) -> Any:
    """A list of words, from one word too; YAML reads some words as numbers."""
    items = (value,) if isinstance(value, str | int) else value
    if not isinstance(items, Iterable) or isinstance(items, Mapping):
        return value
    return tuple(str(item) if type(item) is int else item for item in items)


def _layers(value: Any) -> Any:
    """Numbers in order, from these or from texts such as "0,5-7"."""
    parts = (value,) if isinstance(value, str | int) else value
    if not isinstance(parts, Iterable) or isinstance(parts, Mapping):
        return value
    numbers: list[Any] = []
    for part in parts:
        numbers += parse_numbers(part, what="layers") if isinstance(part, str) else [part]
    try:
        return tuple(sorted(set(numbers)))
    except TypeError:
        return tuple(numbers)  # refused by its type


def _experts(value: Any) -> Any:
    """Layer -> its experts, from these or from texts such as "3:5,7-9"."""
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        return value
    return dict(parse_experts((value,) if isinstance(value, str) else value))


def _counts(value: Any) -> Any:
    """Layer -> experts that it keeps, from these or from texts such as "0-2=24"."""
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        return value
    return parse_counts((value,) if isinstance(value, str) else value)


def layers_words(layers: Iterable[int]) -> list[str]:
    """Layers as the command line takes them: 0,5-7."""
    return [ranges(layers)] if layers else []


def experts_words(experts: Mapping[int, Iterable[int]]) -> list[str]:
    """Experts as the command line takes them: LAYER:EXPERTS."""
    return [f"{layer}:{ranges(ids)}" for layer, ids in experts.items() if ids]


def counts_words(kept: Mapping[int, int]) -> list[str]:
    """Counts as the command line takes them, layers with equal counts together."""
    return [
        f"{ranges(layer for layer, number in kept.items() if number == count)}={count}"
        for count in sorted(set(kept.values()), reverse=True)
    ]


ModeName = Literal["uniform", "per-layer", "ragged"]
Text = Annotated[str, Field(min_length=1, max_length=4096)]
Decimal = Annotated[str, BeforeValidator(_as_decimal)]
Switch = Annotated[bool, Field(strict=True)]
SEVERAL = BeforeValidator(_several)
EACH_ONCE = AfterValidator(lambda values: tuple(dict.fromkeys(values)))
Whole = Annotated[int, Field(strict=True)]

# The model, where it runs and how.
Model = Annotated[Text, Option("Checkpoint directory, hub id, or `demo`.", place="MODEL")]
Revision = Annotated[Text, Option("Revision of a hub model.")]
ConfigOnly = Annotated[
    Switch,
    Option(
        "Read only config.json, and the headers of a hub model; needs and downloads no weights."
    ),
]
Trust = Annotated[Switch, Option("Run code that comes with the checkpoint.")]
StatsDir = Annotated[
    Path,
    Option(
        "Statistics folder; default: cached_stats/ here if there is one, else the user cache.",
        ("--stats-dir",),
        file="folder",
    ),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16", "float64"],
    Option("Dtype of the computation.", ("--dtype",)),
]
Device = Annotated[Text, checked_by(parse_device), Option("Device: auto, cpu, cuda, cuda:1 ...")]
BatchSize = Annotated[
    Whole, Field(ge=1, le=4096), Option("Sequences in one forward.", takes="SEQUENCES")
]
Attention = Annotated[AttentionName, Option(f"Attention: {', '.join(get_args(AttentionName))}.")]
DeviceMap = Annotated[
    Text,
    checked_by(parse_device_map),
    Option("Spread the weights over devices, memory and disk: auto, balanced ..."),
]
MaxMemory = Annotated[
    tuple[Annotated[str, AfterValidator(_device_size)], ...],
    Option("With --device-map, as 0=20GiB or cpu=8GiB; repeatable.", takes="DEVICE=SIZE"),
]
OffloadFolder = Annotated[
    Path, Option("With --device-map, folder for weights that fit nowhere else.", takes="FOLDER")
]
StreamLayers = Annotated[Switch, Option("Load one layer at a time: for models larger than memory.")]
HiddenStatesDir = Annotated[
    Path,
    Option(
        "Keep the original model's hidden states here; default: in memory if small.",
        takes="FOLDER",
    ),
]
CheckpointActivations = Annotated[
    Switch, Option("With the group gradient, recompute layers instead of keeping activations.")
]

# Corpora, and how they become tokens.
CorpusName = Annotated[Text, Option(flags=("--corpus",))]
Corpus = Annotated[
    CorpusName,
    checked_by(parse_corpus),
    Option(
        "Corpus: demo-code, demo-prose, demo-math; c4, evol-codealpaca, tulu-math, "
        "wikitext2 (or =PATH behind it: a copy); hub:owner/name; or a file. Repeatable: each "
        "makes a run of its own.",
        file="corpus",
    ),
]
MeasuredCorpus = Annotated[Corpus, Option("Corpus to evaluate on, as for calibrate; repeatable.")]
CalibratedOn = Annotated[
    Text,
    checked_by(parse_corpus_weight),
    Option(
        "Calibrated corpus that ranks, with a weight if it is not 1; repeatable: a blend.",
        ("--calibrated-on",),
        takes="CORPUS[:WEIGHT]",
    ),
]
Run = Annotated[
    Text,
    Option(
        "Id of a calibration run, or its unique beginning, instead of --calibrated-on; repeatable.",
        ("--run",),
    ),
]
AllowTestSet = Annotated[
    Switch,
    Option("Allow data of a benchmark's test set for other uses; results record it."),
]
Tokens = Annotated[
    Whole, Field(ge=2, le=10**10), Option(f"Tokens of each corpus; {_OR_PRESET} {DEFAULT_TOKENS}.")
]
SeqLen = Annotated[
    Whole,
    Field(ge=2, le=10**6),
    Option(f"Tokens in a sequence; {_OR_PRESET} {DEFAULT_SEQ_LEN}.", takes="TOKENS"),
]
Seed = Annotated[
    Whole, Field(ge=0, lt=2**63), Option(f"Seed of what is drawn; {_OR_PRESET} {DEFAULT_SEED}.")
]
Packing = Annotated[
    PackingName,
    Option(
        "Documents into sequences: concatenate (end to end), pack (side by side, unseen "
        "by each other), pad (one each), auto (concatenate text, keep rows of token ids)."
    ),
]
Truncate = Annotated[
    TruncateName,
    Option(
        "What to keep of a document longer than a sequence: head, tail, or nothing (drop); "
        "default: head, and rows of token ids stay whole unless --seq-len is given."
    ),
]
Count = Annotated[CountName, Option("Tokens that enter the sums: all, or those of the response.")]
Answers = Annotated[
    Literal["given", "own"], Option("Answers to prompts: as given, or the model's own (greedy).")
]
AnswerTokens = Annotated[
    Whole,
    Field(ge=1, le=65_536),
    Option(
        f"With --answers own, tokens of an answer at most; default: {DEFAULT_ANSWER_TOKENS}.",
        takes="TOKENS",
    ),
]
Select = Annotated[Literal["kmeans"], Option("Choose representative documents, with --clusters.")]
Clusters = Annotated[Whole, Field(ge=1, le=4096), Option("Documents that --select chooses.")]
Group = Annotated[
    GroupName,
    Option(
        "Statistics besides routed: router (entropy, co-activation), damage (exact, of removing "
        "each expert), gradient (per neuron; runs a backward pass), dense (every expert on every "
        "token, for each sample), heads (experts of prediction heads, MTP); repeatable.",
        ("--group",),
    ),
]
Groups = Annotated[
    tuple[Group, ...],
    SEVERAL,
    AfterValidator(lambda names: ordered(names)[1:]),  # routed always goes without saying
]
Resume = Annotated[Switch, Option("Resume an interrupted run with the same settings.")]

# What ranks.
Criterion = Annotated[
    Text,
    checked_by(get_criterion),
    Option("Name, such as reap or aimer, or exponents b,alpha,beta.", ("--criterion",)),
]
Gate = Annotated[GateName, Option("Gate weights: applied (as the model uses) or renormalized.")]
Granularity = Annotated[
    Literal["expert", "neuron"],
    Option("Whole experts (expert), or the neurons inside them (neuron)."),
]

# How much goes, from where.
Sparsity = Annotated[
    Decimal,
    checked_by(parse_sparsity),
    Option("Fraction of experts removed: 0.5 or 50%.", ("--sparsity",), takes="FRACTION"),
]
Shrink = Annotated[
    Decimal,
    checked_by(parse_sparsity),
    Option("Make the checkpoint smaller by this share of its bytes: 40% or 0.4.", takes="FRACTION"),
]
ParamsShare = Annotated[
    Decimal,
    checked_by(parse_sparsity),
    Option("Remove this share of all parameters: 20% or 0.2.", takes="FRACTION"),
]
Remove = Annotated[
    Whole,
    Field(ge=0, le=10**12),
    Option("Remove this many experts, or neurons, in all.", takes="N"),
]
TargetSize = Annotated[
    Decimal,
    checked_by(parse_gib),
    Option("Size of the weights on disk: 30GiB, 32GB, or a number of GiB.", takes="SIZE"),
]
TargetDtype = Annotated[
    TargetDtypeName, Option("Count bytes in the checkpoint's own dtypes (own), or in bfloat16.")
]
Uneven = Annotated[
    Switch,
    Option(
        "Let layers keep different numbers of experts, closer to the target; serving engines need "
        "equal numbers."
    ),
]
Schedule = Annotated[
    Text, checked_by(get_schedule), Option(f"How the budget is spread: {', '.join(SCHEDULES)}.")
]
MeasuredOn = Annotated[
    CorpusName,
    checked_by(parse_corpus),
    Option(
        "With --schedule measured, corpus of the sensitivity; repeatable. Default: all.",
        ("--measured-on",),
        takes="CORPUS",
    ),
]
Cost = Annotated[CostName, Option("With --schedule measured, the cost to minimise.")]
Across = Annotated[
    AcrossName, Option("With several --measured-on, minimise their mean or the worst.")
]
Levels = Annotated[
    Whole,
    Field(ge=2, le=128),
    Option("Measure each layer without 1/LEVELS, 2/LEVELS ... of its experts or neurons."),
]
Refine = Annotated[
    Whole,
    Field(ge=0, le=50),
    Option("With a budget, refine its plan in at most this many rounds.", takes="ROUNDS"),
]
ScheduleFile = Annotated[
    Path, Option("CSV, JSON or YAML: layer -> experts kept or removed; a search result.")
]
MultipleOf = Annotated[
    Whole,
    Field(ge=1, le=4096),
    Option("Layers keep a multiple of this many; a sparsity is rounded down to fit.", takes="N"),
]
Floor = Annotated[
    Whole, Field(ge=0, le=10**6), Option("Layers keep at least this many.", takes="N")
]
Number = Annotated[Whole, Field(ge=0, le=10**6)]
Index = Annotated[int, Field(ge=0, le=10**6)]  # JSON has no numbers as keys
Layers = Annotated[tuple[Number, ...], BeforeValidator(checked(_layers))]
Experts = Annotated[dict[Index, Layers], BeforeValidator(checked(_experts))]
Protect = Annotated[
    Layers,
    Option("Layers that lose nothing: 0,5-7; repeatable.", takes="LAYERS", words=layers_words),
]
Pin = Annotated[
    Experts,
    Option("Experts that stay: 3:5,7-9; repeatable.", takes="LAYERS:EXPERTS", words=experts_words),
]
Drop = Annotated[
    Experts,
    Option("Experts that go: 3:5,7-9; repeatable.", takes="LAYERS:EXPERTS", words=experts_words),
]
LayerSet = Annotated[
    dict[Index, Number],
    BeforeValidator(checked(_counts)),
    Option(
        "Layers that keep a number of experts: 0-2=24; repeatable.",
        ("--set", "--layer-set"),
        takes="LAYERS=N",
        words=counts_words,
    ),
]
Lock = Annotated[
    Layers,
    Option(
        "Layers that keep what they had before --set: 0,5-7; repeatable.",
        takes="LAYERS",
        words=layers_words,
    ),
]
NeuronScope = Annotated[
    Text,
    checked_by(parse_scope),
    Option(
        "Neurons compete within an expert, a layer, or all layers (global).",
        takes="expert|layer|global",
    ),
]
KeptNeurons = Annotated[Path, Option("JSON: layer -> expert -> ids of the neurons that stay.")]
WidthMode = Annotated[ModeName, Option("Width mode whose size a budget in bytes counts.")]
WidthMultipleOf = Annotated[
    Whole,
    Field(ge=1, le=1 << 16),
    Option("Widths of an export are rounded up to a multiple of this.", takes="NEURONS"),
]

# What is measured, and what is written.
Measures = Annotated[
    tuple[Annotated[MeasureName, Option("What is measured; repeatable.", ("--measure",))], ...],
    SEVERAL,
    Field(min_length=1),
    EACH_ONCE,
]
Samples = Annotated[Whole, Field(ge=1, le=10**6), Option("Samples of each corpus.")]
ScoredTokens = Annotated[
    Scored,
    Option("Tokens to score: all, those of the response, or auto: answers if there are any."),
]
HeadsKept = Annotated[
    Literal["keep", "drop", "prune"],
    Option(
        "Prediction heads with experts: drop, keep, or prune: by the plan's runs if those "
        "measured heads (--group heads), else by their weights. Default: drop where the "
        "number of experts changes.",
        ("--mtp",),
    ),
]
HashSource = Annotated[Switch, Option("Record the SHA-256 of the whole source.")]
MaxShardSize = Annotated[
    str,
    Field(max_length=32),
    checked_by(parse_size),
    Option(
        "Write new shards, none larger than this: 5GB, 500MB, 1.5GiB. Default: the shards of the "
        "source.",
        takes="SIZE",
    ),
]
Pad = Annotated[
    Switch,
    Option(
        "Pad layers that keep fewer experts with all-zero experts, so that engines load them; "
        "only for families whose router can rule these out."
    ),
]
KeepList = Annotated[
    Switch, Option("Also write kept_experts.json: layer, and the ids that stayed.")
]
Verify = Annotated[
    Switch,
    Option(
        "Verify the result at once. Exports of discovered architectures always are.",
        ("--verify", "--no-verify"),
    ),
]
Repair = Annotated[
    Switch,
    Option(
        "Also repair each plan, on the corpora that ranked it, and compare it with itself "
        "repaired. Known repairs are used again."
    ),
]
Bits = Annotated[
    tuple[
        Annotated[
            BitsName,
            Option(
                f"Bits of the experts' weights that each plan is simulated in ({OWN}: as they "
                "are); repeatable. Exports ignore it."
            ),
        ],
        ...,
    ],
    SEVERAL,
    Field(min_length=1),
    EACH_ONCE,
]
SearchFolder = Annotated[
    Path,
    Option(
        "Folder for plan, result and log; default: RECIPE's name.search.",
        ("--out", "-o"),
        takes="FOLDER",
    ),
]
