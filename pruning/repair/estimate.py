"""What a repair would cost: memory and work, without loading the model."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.calibration.blocks import (
    FreeMemory,
    RunSizes,
    block_bytes,
    experts_that_fit,
    free_for,
    layer_sizes,
)
from analysis.calibration.distributed import join
from analysis.calibration.loading import (
    DTYPES,
    CalibrationSettings,
    check_loadable,
    resolve_dtype,
)
from analysis.calibration.memory import routed_bytes, run_sizes
from analysis.calibration.streamed import hidden_bytes, is_on_disk
from analysis.corpora.sequences import TokenSequences
from analysis.model.moe_model import MoEModel
from analysis.model.widths import computed_widths
from analysis.progress import Whole
from pruning.engine.paused import check_products
from pruning.engine.repaired_weights import cannot
from pruning.plan.plan import PruningPlan
from pruning.repair.batches import placed_batches
from pruning.repair.solver import COLUMNS
from pruning.repair.work import Work

_FLOAT = 4  # bytes of a number that is fitted
_OF_UNKNOWNS = 6  # arrays of the unknowns of a block of columns, while it is solved
_OF_TOKENS = 3  # arrays of all tokens and a block of columns, meanwhile
_UNEVEN = 4  # the largest expert rarely has more times the tokens of the mean one
# New down projections beside those that are loaded, and what is read of a file for them.
_COPIES = 2 / 3


@dataclass(frozen=True, slots=True)
class RepairEstimate:
    """Expected cost of a repair."""

    tokens: int
    memory: "RepairMemory"  # in addition to the Python process
    whole: Whole


@dataclass(frozen=True, slots=True)
class RepairMemory:
    """Bytes that a repair takes in addition to the Python process."""

    device: int  # a layer, or a block of its experts; activations and the fit
    states: int  # hidden states of both models and what waits for experts, in the CPU's memory
    on_disk: int  # the same, where it is in files
    at_once: int = 0  # experts of a layer that are loaded at once; 0: all
    columns: int = 1  # blocks of columns that are solved together while no expert is loaded

    @property
    def total(self) -> int:
        """All bytes."""
        return self.device + self.states

    def fits(self, free: FreeMemory) -> bool:
        """Whether it fits."""
        return free.holds(self.device, self.states)


@dataclass(frozen=True, slots=True)
class FitSizes:
    """Bytes of the least squares of a layer."""

    kept: int  # of its experts: rows, matrices, changes; in files where experts run in blocks
    lacking: int  # of its tokens: what the output lacks
    columns: int  # of a block of columns, while it is solved
    one: int  # of one expert, whose matrix is inverted

    @property
    def working(self) -> int:
        """While one block of columns is solved."""
        return self.columns + self.one

    @classmethod
    def of(cls, model: MoEModel, tokens: int, experts: int) -> "FitSizes":
        """Those of a layer that keeps so many experts, on so many tokens."""
        width = max(max(widths) for widths in computed_widths(model).values())
        top_k, out = max(layer.top_k for layer in model.layers), model.expert_output_size
        rows, squares = tokens * top_k * width, experts * width**2
        # A Gram matrix and an inverse for each damping; later one of each, and the changes.
        kept = rows + max(4 * squares, 2 * squares + experts * width * out)
        of_one = min(tokens, _UNEVEN * tokens * top_k // experts) * width
        columns = (_OF_UNKNOWNS * experts * width + _OF_TOKENS * tokens) * COLUMNS
        one = 2 * of_one + 8 * width**2  # in float64
        return cls(_FLOAT * kept, _FLOAT * tokens * out, _FLOAT * columns, _FLOAT * one)


def repair_memory(
    model: MoEModel,
    plan: PruningPlan,
    corpora: Sequence[TokenSequences],
    settings: CalibrationSettings,
    world: int = 1,
) -> RepairMemory:
    """What one of `world` processes takes, which share the tokens; loads no model.

    Refuses experts in blocks in a dtype in which they cannot run so.
    """
    tokens = sum(corpus.num_tokens for corpus in corpora) // world
    fit = FitSizes.of(model, tokens, max(len(ids) for ids in plan.kept.values()))
    item, size = DTYPES[resolve_dtype(settings.dtype, model)].itemsize, settings.batch_size
    running = max(
        run_sizes(model, corpus, settings).running
        + routed_bytes(model, size * corpus.longest, item)
        for corpus in corpora
    )
    hidden = sum(hidden_bytes(model, corpus, settings) for corpus in corpora) // world
    memory = memory_of_repair(model, fit, running, hidden, settings)
    if memory.at_once:
        check_products(model, settings)
    return memory


def memory_of_repair(
    model: MoEModel, fit: FitSizes, running: int, hidden: int, settings: CalibrationSettings
) -> RepairMemory:
    """The same, for the bytes of a forward and of the hidden states of one model."""
    sizes = layer_sizes(model, settings)
    top_k = max(layer.top_k for layer in model.layers)
    states = 2 * hidden
    # Of the original what experts get and give, each of a token's, of the pruned the first and sum.
    paused = states + (3 + top_k) * hidden + fit.kept
    in_memory, kept_in_memory = (
        0 if is_on_disk(size, settings) else size for size in (states, paused)
    )
    run = RunSizes(
        running + fit.lacking,
        in_memory,
        kept_in_memory,
        copies=_COPIES,
        whole=fit.kept + fit.working,
    )
    if at_once := experts_that_fit(model, settings, run):
        loaded = block_bytes(sizes, at_once, run)
        device = max(loaded, sizes.around + run.running + fit.working)
        columns = max(1, (loaded - sizes.around - run.running - fit.one) // fit.columns)
        return RepairMemory(device, run.paused, paused - run.paused, at_once, columns)
    experts = max(layer.num_experts for layer in model.layers) * sizes.expert
    device = sizes.whole + run.running + max(run.whole, int(_COPIES * experts))
    return RepairMemory(device, run.states, states - run.states)


def check_memory(model: MoEModel, memory: RepairMemory, settings: CalibrationSettings) -> None:
    """Refuse a repair that does not fit, not even with experts in blocks."""
    free = free_for(settings)
    if memory.fits(free):
        return
    room = free.device + (free.host or 0)
    needed, there = (f"{size / 2**30:.2f} GiB" for size in (memory.total, room))
    experts = f"{memory.at_once} of a layer's experts" if memory.at_once else "a whole layer"
    raise cannot(
        model,
        f"with {experts} at once it takes {needed}, and {there} is free",
        "try fewer --tokens, a smaller --batch-size, --hidden-states-dir, or fewer "
        "--experts-at-once",
    )


def estimate_repair(
    model: MoEModel,
    plan: PruningPlan,
    corpora: Sequence[TokenSequences],
    settings: CalibrationSettings,
) -> RepairEstimate:
    """Expected memory and work; refuses a model that cannot be loaded."""
    check_loadable(model, trusted=settings.trust_remote_code)
    memory = repair_memory(model, plan, corpora, settings)
    batches = placed_batches(corpora, settings.batch_size, join())
    work = Work(model, plan, batches, lambda _: None, memory.at_once)
    tokens = sum(corpus.num_tokens for corpus in corpora)
    return RepairEstimate(tokens, memory, work.tally.whole)
