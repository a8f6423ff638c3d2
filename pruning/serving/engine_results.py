"""What serving engines were seen to do with exports: rows that `tests/engines` measures.

Each is a tiny random model of a family, cut in one way, loaded in one engine, and compared with
transformers on the same files. They are written by that run alone.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from pruning.serving.engine_traits import MLA, Traits

RESULTS: Final = Path(__file__).with_name("engine_results.json")
# Why engines compute something else on originals, which is not the export's doing: read in their
# sources, and tried for gpt-oss, ERNIE (MLX), Hy4, and Phi-MoE and Cohere's (vLLM). Unlike the rows
# these are written by hand.
CAUSES: Final = Path(__file__).with_name("engine_causes.json")
CUTS: Final = ("original", "experts", "experts per layer", "neurons", "neurons per layer", "padded")
# Engine -> its name for people.
ENGINES: Final[Mapping[str, str]] = {"vllm": "vLLM", "llama.cpp": "llama.cpp", "mlx": "MLX"}
# Engine -> a trait, and the option that such checkpoints need. All rows of vLLM ran with it: its
# own CPU kernel for positions is wrong for MLA. Without it the others are computed alike.
_CONDITIONS: Final = {"vllm": (MLA, """--compilation-config '{"custom_ops": ["none"]}'""")}
# As rows begin that say so; they are reworded where they are shown.
SILENT: Final = "it loads and computes something else"


@dataclass(frozen=True, slots=True)
class Row:
    """One engine, one family, one cut."""

    engine: str
    case: str  # of the conformance suite: a model type, and a variant after a hyphen
    model_type: str
    cut: str
    # Greedy tokens are equal and log-probabilities close; otherwise `reason` says what happened.
    works: bool
    equal: int  # greedy tokens equal to those of transformers
    tokens: int  # greedy tokens compared
    difference: float | None  # largest of log-probabilities, up to the first token that differs
    reason: str
    no_class: bool  # the engine has no class for the architecture
    versions: str
    date: str  # of the run, UTC
    question: str  # digest of the configuration, the plan and the prompts
    traits: Traits  # of the checkpoint that was loaded, see `engine_traits`
    condition: str  # the engine's option without which results are wrong; empty for none
    # llama.cpp's converter looks for prediction heads there, unless told `--no-mtp`, as it was.
    no_mtp: bool

    @property
    def differs(self) -> bool:
        """Whether the engine loads the model and computes wrong results."""
        return self.reason.startswith(SILENT)

    @property
    def distance(self) -> str:
        """`difference` in words."""
        return "NaN" if self.difference is None else f"{self.difference:.0e}"

    @property
    def is_of_cpu(self) -> bool:
        """Whether only the engine's kernels for a CPU are why, so that nothing is said of GPUs."""
        return not self.works and "per layer" not in self.cut and self._pair in _of_kind("cpu")

    @property
    def is_rounded(self) -> bool:
        """Whether it differs only as the engine rounds what transformers does not."""
        return self.differs and self._pair in _of_kind("rounds")

    @property
    def _pair(self) -> tuple[str, str]:
        return self.engine, self.case

    @property
    def why(self) -> str:
        """What happened, for people; empty where it works."""
        if self.is_of_cpu:
            return f"it cannot be tried on a CPU: {self.cause}"
        if not self.differs:
            return self.reason
        because = f"; {self.cause}" if self.cause else ""
        outcome = "a tiny random model, rounded: "
        if not self.is_rounded:
            outcome = "the engine loads it and silently computes wrong results: "
        return (
            f"{outcome}{self.equal} of {self.tokens} greedy tokens equal, log-probabilities "
            f"differ by {self.distance}{because}"
        )

    @property
    def cause(self) -> str:
        """What the engine does that makes results differ; empty where it is not known."""
        if "per layer" in self.cut or not (self.differs or self.is_of_cpu):
            return ""
        return causes().get(self._pair, "")

    @property
    def fault(self) -> str:
        """What makes other cuts of this model wrong, so that equal results are luck; or empty."""
        return _faults().get((self._pair, self.traits), "")

    @property
    def is_right(self) -> bool:
        """Whether the engine computes what transformers does, rounded or not, and not by luck."""
        return (self.works or self.is_rounded) and not self.fault

    @property
    def id(self) -> str:
        """The name of its test."""
        return f"{self.engine}-{self.case}-{self.cut}".replace(" ", "-")


@cache
def causes() -> Mapping[tuple[str, str], str]:
    """(engine, case) -> what the engine does that transformers does not."""
    rows = json.loads(CAUSES.read_text("utf-8"))
    return {(row["engine"], row["case"]): row["cause"] for row in rows}


@cache
def _of_kind(kind: str) -> frozenset[tuple[str, str]]:
    """(engine, case) of the causes of a kind: `cpu` lie in kernels for a CPU, `rounds` round."""
    rows = json.loads(CAUSES.read_text("utf-8"))
    return frozenset((row["engine"], row["case"]) for row in rows if row.get(kind))


def condition_of(engine: str, traits: Traits) -> str:
    """The option that an engine needs for checkpoints of these traits; empty for none."""
    trait, option = _CONDITIONS.get(engine, ("", ""))
    return option if trait in traits else ""


@cache
def results() -> tuple[Row, ...]:
    """All rows, in order."""
    rows = json.loads(RESULTS.read_text("utf-8"))
    return tuple(Row(**row | {"traits": tuple(row["traits"])}) for row in rows)


@cache
def _faults() -> Mapping[tuple[tuple[str, str], Traits], str]:
    """Pair and traits -> the first known cause of a row that loads and computes something else."""
    wrong = [row for row in results() if row.differs and row.cause and not row.is_rounded]
    return {(row._pair, row.traits): row.cause for row in reversed(wrong)}
