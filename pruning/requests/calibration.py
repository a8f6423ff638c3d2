"""The request for a calibration: a model on one corpus, and how it runs."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from analysis.corpora.settings import Sampling
from analysis.corpora.spec import parse_corpus
from analysis.stats.columns import Group, misfit, ordered
from pruning.measures.sample_settings import DEFAULT_ANSWER_TOKENS
from pruning.option import Option
from pruning.requests.model import ActionOptions, ModelRequest
from pruning.spec import options
from pruning.spec.options import DEFAULT_SEED, DEFAULT_SEQ_LEN, DEFAULT_TOKENS


def check_spread(
    device_map: str | None, max_memory: tuple[str, ...], offload_folder: Path | None
) -> None:
    """Refuse memory limits and an offload folder without a device map, by a ValueError."""
    if (offload_folder or max_memory) and not device_map:
        raise ValueError("--offload-folder and --max-memory need --device-map auto")


def check_blocks(experts_at_once: int | None, *, stream_layers: bool) -> None:
    """Refuse blocks of experts of a whole model, by a ValueError."""
    if experts_at_once and not stream_layers:
        raise ValueError("--experts-at-once needs --stream-layers")


class SampledRequest(ModelRequest):
    """A corpus, and how much of it is read.

    Tokens, sequence length and seed are by default the preset's, else the program's.
    """

    corpus: options.Corpus
    tokens: options.Tokens | None = None
    seq_len: options.SeqLen | None = None
    seed: options.Seed | None = None


class CalibrateOptions(ActionOptions):
    """How corpora become tokens and the model runs over them, as in `moeprune calibrate`."""

    groups: options.Groups = ()
    packing: options.Packing = "auto"
    truncate: options.Truncate | None = None
    count: options.Count = "all"
    answers: options.Answers = "given"
    answer_tokens: options.AnswerTokens | None = None
    select: options.Select | None = None
    clusters: options.Clusters | None = None
    device: options.Device = "auto"
    batch_size: options.BatchSize = 8
    attention: options.Attention = "auto"
    device_map: options.DeviceMap | None = None
    max_memory: options.MaxMemory = ()
    offload_folder: options.OffloadFolder | None = None
    stream_layers: options.StreamLayers = False
    experts_at_once: options.ExpertsAtOnce | None = None
    hidden_states_dir: Annotated[
        Path | None,
        Option("With --stream-layers, keep hidden states in this folder.", takes="FOLDER"),
    ] = None
    checkpoint_activations: options.CheckpointActivations = False


class CalibrateRequest(CalibrateOptions, SampledRequest):
    """One calibration: a model on one corpus."""

    asked_by = "calibrate"
    template_args: options.TemplateArgs = Field(default_factory=dict)
    skip_bad_rows: options.SkipBadRows = 0
    dtype: options.Dtype = "auto"
    trust_remote_code: options.Trust = False
    allow_test_set: options.AllowTestSet = False
    resume: options.Resume = True
    stats_dir: options.StatsDir | None = None

    @model_validator(mode="after")
    def _clusters_are_selected_from(self) -> "CalibrateRequest":
        if (self.select is None) != (self.clusters is None):
            raise ValueError("--select kmeans and --clusters K belong together")
        return self

    @property
    def collected(self) -> tuple[Group, ...]:
        """The statistic groups, with `routed`."""
        return ordered(self.groups)

    @property
    def num_tokens(self) -> int:
        """Tokens to read."""
        return self.sampling().tokens

    @property
    def most_answer_tokens(self) -> int:
        """The longest answer that the model writes itself."""
        return self.answer_tokens or DEFAULT_ANSWER_TOKENS

    @model_validator(mode="after")
    def _answers_need_the_whole_model(self) -> "CalibrateRequest":
        if self.answer_tokens and self.answers != "own":
            raise ValueError("--answer-tokens belongs to --answers own")
        if self.stream_layers and self.answers == "own":
            raise ValueError("--answers own writes with the whole model; leave --stream-layers out")
        return self

    @model_validator(mode="after")
    def _placement_is_one(self) -> "CalibrateRequest":
        if self.device_map and self.stream_layers:
            raise ValueError("choose one of --device-map, --stream-layers")
        check_spread(self.device_map, self.max_memory, self.offload_folder)
        if self.hidden_states_dir and not self.stream_layers:
            raise ValueError("--hidden-states-dir needs --stream-layers")
        check_blocks(self.experts_at_once, stream_layers=self.stream_layers)
        problem = misfit(
            self.collected,
            streams_layers=self.stream_layers,
            checkpoints=self.checkpoint_activations,
        )
        if problem:
            raise ValueError(problem)
        return self

    def sampling(self) -> Sampling:
        """How much of the corpus is read, and how it is cut.

        Rows of token ids are cut only on request.
        """
        preset = parse_corpus(self.corpus).preset
        seed = preset.seed if preset else DEFAULT_SEED
        return Sampling(
            self.tokens or (preset.tokens if preset else DEFAULT_TOKENS),
            seq_len_of(self.corpus, self.seq_len),
            seed if self.seed is None else self.seed,
            packing=self.packing,
            truncate=self.truncate or "head",
            count=self.count,
            whole=not (self.seq_len or self.truncate or preset),
            template_args=self.template_args,
        )


def seq_len_of(corpus: str, asked: int | None) -> int:
    """Sequence length of a corpus: as asked, else the preset's, else the default."""
    preset = parse_corpus(corpus).preset
    return asked or (preset.seq_len if preset else DEFAULT_SEQ_LEN)
