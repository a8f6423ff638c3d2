"""Every option, declared once: its type, bounds, check and help, for requests, recipes and forms.

A request or a section of a recipe names these as the types of its fields:

    class WeightsRequest(Request):
        model: Model
        revision: Revision | None = None

A field may override its type, as `Annotated[Seed, Option("Seed of the draws.")]`."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue

from analysis.corpora.settings import Packing as PackingName
from analysis.corpora.settings import Truncate as TruncateName
from analysis.corpora.spec import content_of, corpus_name, parse_corpus, parse_corpus_weight
from analysis.corpora.tokens import Count as CountName
from analysis.criteria import get_criterion
from analysis.errors import PlanError
from analysis.machine.devices import parse_device, parse_device_map
from analysis.model.attention import Attention as AttentionName
from analysis.stats.columns import Gate as GateName
from analysis.stats.columns import Group as GroupName
from analysis.stats.columns import ordered
from analysis.stats.places import FOLDER_HELP
from pruning.measures.names import MeasureName
from pruning.measures.sample_settings import DEFAULT_ANSWER_TOKENS, Scored
from pruning.option import Option, checked, checked_by
from pruning.plan.bits import OWN, BitsName, FormatName
from pruning.plan.sizes import parse_size

DEFAULT_TOKENS = 65_536
DEFAULT_SEQ_LEN = 256
DEFAULT_SEED = 42
# What the program gives every template itself.
_OF_TEMPLATES = (
    *("messages", "conversations", "chat_template", "add_generation_prompt"),
    *("continue_final_message", "return_assistant_tokens_mask"),
)
_DEVICE_SIZE = re.compile(r"[^=]+=\d+(\.\d+)?[KMGT]i?B")
_OR_PRESET = "default: what a named dataset's paper used, else"


def decimal(instead: str) -> BeforeValidator:
    """An exact decimal as it is written; `instead` says what works.

    YAML reads 0.5 as a float: its shortest decimal form is taken back. It reads yes as true.
    """

    def as_written(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(instead)  # noqa: TRY004  (pydantic collects it)
        return str(value)

    return BeforeValidator(as_written)


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


def _template_args(value: Any) -> Any:
    """Name -> value, from these or from texts such as "enable_thinking=false"."""
    if isinstance(value, str):
        value = (value,)
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        arguments = value
    else:
        arguments = {}
        for text in value:
            name, equals, written = str(text).partition("=")
            if not equals:
                raise PlanError(f"{text!r} has no value; write it as enable_thinking=false.")
            try:
                arguments[name.strip()] = json.loads(written)
            except ValueError as error:
                raise PlanError(
                    f"{written!r} in {text!r} is not JSON; write true, false, a number, or a text "
                    f"in double quotes: '{name}=\"{written}\"'."
                ) from error
    for name in arguments if isinstance(arguments, Mapping) else ():
        if not str(name).isidentifier() or name in _OF_TEMPLATES:
            raise PlanError(
                f"{name!r} is no argument that can be given; name one that the chat template reads."
            )
    return arguments


def template_words(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments of a chat template as the command line takes them: NAME=JSON."""
    return [f"{name}={json.dumps(value)}" for name, value in arguments.items()]


Text = Annotated[str, Field(min_length=1, max_length=4096)]
Switch = Annotated[bool, Field(strict=True)]
SEVERAL = BeforeValidator(_several)
EACH_ONCE = AfterValidator(lambda values: tuple(dict.fromkeys(values)))
Whole = Annotated[int, Field(strict=True)]

# The model, where it runs and how.
Model = Annotated[Text, Option("Checkpoint directory, hub id, or `demo`.", place="MODEL")]
Revision = Annotated[Text, Option("Revision of a hub model.")]
# The content of a plan.json; on a command line, its file.
Plan = Annotated[
    dict[str, Any], Option("plan.json from `moeprune plan`.", ("--plan",), file="plan")
]
ConfigOnly = Annotated[
    Switch,
    Option(
        "Read only config.json, and the headers of a hub model; needs and downloads no weights."
    ),
]
Trust = Annotated[Switch, Option("Run code that comes with the checkpoint.")]
StatsDir = Annotated[
    Path,
    Option(FOLDER_HELP, ("--stats-dir",), file="folder"),
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
ExpertsAtOnce = Annotated[
    Whole,
    Field(ge=1, le=65_536),
    Option(
        "With --stream-layers, experts of a layer to load at once; default: what fits.",
        takes="EXPERTS",
    ),
]
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
        "Corpus: demo-code, demo-stories, demo-math, demo-recipes; c4, evol-codealpaca, "
        "tool-calls, tulu-math, wikitext2 (or =PATH behind it: a copy); hub:owner/name; or a file. "
        "Repeatable: each makes a run of its own.",
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
AllowSmallIds = Annotated[
    Switch,
    Option("Allow traffic in which no layer chose its last experts; runs record it."),
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
TemplateArgs = Annotated[
    dict[str, JsonValue],
    Field(max_length=32),
    BeforeValidator(checked(_template_args)),
    Option(
        "Argument of the chat template: NAME=VALUE, the value as JSON, such as "
        "enable_thinking=false; repeatable.",
        ("--template-arg",),
        takes="NAME=VALUE",
        words=template_words,
    ),
]
SkipBadRows = Annotated[
    Whole,
    Field(ge=0, le=10**9),
    Option(
        "Leave out up to N rows of a corpus that cannot be read or formatted; records count them.",
        takes="N",
    ),
]
Traces = Annotated[
    tuple[Path, ...],
    Field(min_length=1),
    Option(
        "Files of answers with routed experts: of vLLM or SGLang, one as JSON on each line; or "
        ".npz.",
        place="TRACES...",
    ),
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

# What is measured, and what is written.
Measures = Annotated[
    tuple[Annotated[MeasureName, Option("What is measured; repeatable.", ("--measure",))], ...],
    SEVERAL,
    Field(min_length=1),
    EACH_ONCE,
]
Samples = Annotated[Whole, Field(ge=1, le=10**6), Option("Samples of each corpus.")]
Questions = Annotated[
    Whole,
    Field(ge=0, le=10**6),
    Option(
        "Documents of a corpus with a check (,check=number behind it) whose answers are checked, "
        "at most; 0: none.",
        takes="N",
    ),
]
Stops = Annotated[
    tuple[
        Annotated[
            str,
            Field(min_length=1, max_length=64),
            Option(
                r"Text that ends an answer that is checked, besides the model's own end; \n is a "
                "line break; repeatable.",
                ("--stop",),
                takes="TEXT",
            ),
        ],
        ...,
    ],
    SEVERAL,
    EACH_ONCE,
]
WindowsPerDocument = Annotated[
    Whole,
    Field(ge=0, le=10**6),
    Option(
        "Samples that a document of running text gives at most; 0: no limit. Default: 2.",
        takes="N",
    ),
]
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
Dequantise = Annotated[
    Switch,
    Option("Write FP8 weights in bfloat16: to repair, fine-tune or convert them. Twice the bytes."),
]
KeepList = Annotated[
    Switch, Option("Also write kept_experts.json: layer, and the ids that stayed.")
]
GgufName = Literal["q8_0", "bf16", "f16", "f32"]
GgufType = Annotated[
    GgufName,
    Option(
        "Also write OUT-TYPE.gguf by llama.cpp's converter, in this type: q8_0, bf16, f16 or f32."
    ),
]
LlamaCpp = Annotated[
    Path,
    Option(
        "With --gguf, folder of llama.cpp's source, which has convert_hf_to_gguf.py. Default: "
        "$LLAMA_CPP, else the PATH.",
        file="folder",
    ),
]
QuantisedName = Literal["fp8", "nvfp4", "awq"]
QuantisedAs = Annotated[
    QuantisedName,
    Option(
        "Also write a recipe and a script for llm-compressor, which quantises the export.",
        ("--recipe",),
    ),
]
RecipeCorpora = Annotated[
    tuple[
        Annotated[
            Text,
            checked_by(parse_corpus_weight),
            Option(
                "With --recipe nvfp4 or awq, corpus to calibrate on, with a weight if it is not 1; "
                "repeatable. Default: those that ranked the plan.",
                ("--recipe-corpus",),
                takes="CORPUS[:WEIGHT]",
            ),
        ],
        ...,
    ],
    EACH_ONCE,
]
Verify = Annotated[
    Switch,
    Option(
        "Verify the result at once. Exports of discovered architectures always are.",
        ("--verify", "--no-verify"),
    ),
]
VerifyByLayers = Annotated[
    Switch,
    Option(
        "Verify logits one layer at a time: for models larger than memory.", ("--stream-layers",)
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
LayerBits = Annotated[
    tuple[
        Annotated[
            FormatName,
            Option("Bits in which each layer's experts are also measured alone; repeatable."),
        ],
        ...,
    ],
    SEVERAL,
    EACH_ONCE,
]
SearchFolder = Annotated[
    Path,
    Option(
        "Folder for plan and result; default: RECIPE's name.search.",
        ("--out", "-o"),
        takes="FOLDER",
    ),
]
