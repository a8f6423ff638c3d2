"""The request for a plan of neurons, and the command line that asks the same."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from analysis.criteria import get_criterion
from analysis.errors import PlanError
from analysis.ranking.neurons import neuron_score_of
from analysis.ranking.norms import NEURON_NORMS
from analysis.sparsity import parse_sparsity
from pruning.atoms.selection import AtomScope, parse_scope
from pruning.atoms.widths import DEFAULT_MULTIPLE, WidthChoice, parse_mode
from pruning.budget import TargetDtype, parse_gib
from pruning.constraints import Constraints, parse_experts
from pruning.plan import ATOMIC_GRANULARITY
from pruning.requests.base import Request, Text, command_line, layers_named, option_words
from pruning.requests.criteria import compares_layers, reads_text

ModeName = Literal["uniform", "per-layer", "ragged"]


class NeuronRequest(Request):
    """A criterion of neurons, the statistics that it reads, and how much goes from where.

    With `kept_atoms`, a file that says what stays, `criterion` only says how it was made.
    """

    model: Text
    criterion: Text
    corpora: tuple[Text, ...] = ()
    runs: tuple[Text, ...] = ()
    sparsity: str = ""
    remove: int | None = Field(default=None, ge=0, le=10**12)
    target_gib: Text | None = None
    target_dtype: TargetDtype = "own"
    params_share: Text | None = None
    width_mode: ModeName = "uniform"
    width_multiple_of: int = Field(default=DEFAULT_MULTIPLE, ge=1, le=1 << 16)
    atom_scope: Text = str(AtomScope.EXPERT)
    kept_atoms: Path | None = None
    multiple_of: int = Field(default=1, ge=1, le=4096)
    floor: int = Field(default=0, ge=0, le=10**6)
    protect: tuple[Text, ...] = ()
    pin: tuple[Text, ...] = ()
    drop: tuple[Text, ...] = ()
    revision: str | None = None
    stats_dir: Path | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "NeuronRequest":
        given = (self.sparsity or None, self.remove, self.target_gib, self.params_share)
        budgets = sum(each is not None for each in given)
        if self.kept_atoms is not None:
            self._check_nothing_but_the_file(budgets)
            return self
        if budgets != 1:
            raise PlanError(
                "A plan of neurons needs --sparsity, --params-share, --remove or --target-gib, or "
                "a file with --kept-atoms" + ("; not several of them." if budgets else ".")
            )
        if self.sparsity:
            parse_sparsity(self.sparsity)
        if self.target_gib is not None:
            parse_gib(self.target_gib)
        if self.params_share is not None:
            parse_sparsity(self.params_share)
        _ = self.constraints  # says what is wrong with them
        self._check_criterion()
        return self

    def _check_nothing_but_the_file(self, budgets: int) -> None:
        given = {
            "a budget": budgets,
            "--corpus": self.corpora,
            "--run": self.runs,
            "--multiple-of": self.multiple_of > 1,
            "--floor": self.floor,
            "--protect": self.protect,
            "--pin": self.pin,
            "--drop": self.drop,
        }
        if unfit := [name for name, value in given.items() if value]:
            raise PlanError(f"A file with --kept-atoms says all that stays; leave {unfit[0]} out.")

    def _check_criterion(self) -> None:
        scope = parse_scope(self.atom_scope)
        if not self.reads_weights:
            neuron_score_of(get_criterion(self.criterion))
        if not self.reads_text and (self.corpora or self.runs):
            raise PlanError(f"{self.criterion} needs no calibration; leave --corpus and --run out.")
        if scope is AtomScope.GLOBAL and not compares_layers(self.criterion):
            label = get_criterion(self.criterion).label
            raise PlanError(
                f"{label} does not compare neurons of different layers; use "
                "--atom-scope layer or expert."
            )

    @property
    def reads_weights(self) -> bool:
        """Whether the weights alone rank, without a calibration."""
        return self.criterion == NEURON_NORMS

    @property
    def reads_text(self) -> bool:
        """Whether calibration runs rank."""
        return reads_text(self.criterion)

    @property
    def scope(self) -> AtomScope:
        """Among which neurons the budget is spent."""
        return parse_scope(self.atom_scope)

    @property
    def widths(self) -> WidthChoice:
        """How an export would store widths: what a target size counts."""
        return WidthChoice(parse_mode(self.width_mode), self.width_multiple_of)

    @property
    def constraints(self) -> Constraints:
        """What the plan must respect besides its budget.

        Raises:
            PlanError: layers, experts or numbers that cannot be read.
        """
        return Constraints(
            multiple_of=self.multiple_of,
            protected=layers_named(self.protect),
            pinned=parse_experts(self.pin),
            dropped=parse_experts(self.drop),
            floor=self.floor,
        )

    def command(self, out: str = "plan.json") -> str:
        """The command line that writes the plan."""
        named = ["--granularity", ATOMIC_GRANULARITY, "--criterion", self.criterion]
        own = option_words(self, "model", "criterion")
        return command_line("plan", self.model, *named, *own, "-o", out)
