"""The memory that tasks take, Python's own included, before they run: for `--dry-run`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.corpora.early import within_context
from analysis.model.moe_model import EMBEDDING, OUTPUT_HEAD, MoEModel
from analysis.model.opening import load_model_index
from analysis.model.parts import weights_by_part
from pruning.plan.bits import OWN
from pruning.plan.plan_file import plan_from_dict
from pruning.requests.calibration import seq_len_of
from pruning.requests.evaluation import (
    EvaluateRequest,
    HeldOutRequest,
    SensitivityRequest,
    StreamableRequest,
    SweepRequest,
    TopKRequest,
)
from pruning.requests.model import WeightsRequest
from pruning.requests.recipe_steps import SearchRequest
from pruning.requests.repair import DEFAULT_REPAIR_TOKENS
from pruning.tasks.evaluation import expected_tokens
from pruning.tasks.loading import run_settings, search_placement

if TYPE_CHECKING:
    from analysis.calibration.loading import CalibrationSettings

# Tensors of a chunk of logits that are alive at a time: in single precision, and in half.
_LOGITS, _LOGITS_OF_HALVES = 5, 8
# Compiled kernels, threads and their buffers: so much more than its weights a model takes. In half
# precision a CPU has kernels for each number of tokens of an expert.
_FIRST_FORWARD, _FIRST_OF_HALVES = 112 << 20, 384 << 20
_COMPILED = 96 << 20  # by numba, which measures weights
_BATCH = 8  # sequences in a forward of a search
_KEPT = 2  # candidates whose hidden states a curve is measured from: the base, and the last


def python_memory(item: int = 4, device: str = "cpu") -> int:
    """Bytes of this process with the libraries that run a model, and what a first forward adds.

    `item`: bytes of an element of the model.
    """
    import psutil

    from analysis.calibration import run
    from analysis.calibration.loading import resolve_device

    del run  # imported for its size alone
    has_halves = item < 4 and resolve_device(device).type == "cpu"
    first = _FIRST_OF_HALVES if has_halves else _FIRST_FORWARD
    return int(psutil.Process().memory_info().rss) + first


def item_bytes(model: MoEModel, dtype: str) -> int:
    """Bytes of an element of a model that runs in this dtype."""
    from analysis.calibration.loading import DTYPES, resolve_dtype

    return DTYPES[resolve_dtype(dtype, model)].itemsize


@dataclass(frozen=True, slots=True)
class Running:
    """How a model runs over held-out samples, for its memory."""

    model: MoEModel
    dtype: str
    batch_size: int
    longest: int  # tokens of a sample
    tokens: int  # of all samples
    by_layers: bool
    settings: "CalibrationSettings"

    @classmethod
    def of(cls, request: HeldOutRequest) -> "Running":
        """As a request says, if corpora are as long as asked for."""
        model = load_model_index(request.model, revision=request.revision)
        by_layers = isinstance(request, StreamableRequest) and request.stream_layers
        longest = max(
            within_context(model, request.sample_settings(corpus).seq_len, request.seq_len)
            for corpus in request.corpora
        )
        tokens, settings = expected_tokens(request, model), run_settings(request, longest)
        size = request.batch_size
        return cls(model, request.dtype, size, longest, tokens, by_layers, settings)

    @property
    def item(self) -> int:
        """Bytes of a weight and of an element of a hidden state."""
        return item_bytes(self.model, self.dtype)

    @property
    def python(self) -> int:
        """See `python_memory`."""
        return python_memory(self.item, self.settings.device)

    @property
    def running(self) -> int:
        """Bytes of a forward."""
        from pruning.engine.streamed import forward_bytes

        return forward_bytes(self.model, self.batch_size * self.longest, self.item)

    def hidden(self, tokens: int) -> int:
        """Bytes of the hidden states of so many tokens between two layers; none if on disk."""
        from analysis.calibration.hidden import are_too_large

        size = tokens * self.model.streams_size * self.item
        return 0 if are_too_large(size) else size

    def memory(
        self, candidates: int, kept: int = 0, cached: int = 0, *, changes: bool = False
    ) -> int:
        """Bytes while the original and so many candidates run; refuses what cannot run so.

        Of a whole model, the inputs of its layers are kept of so many tokens, and log-probabilities
        of so many positions are cached. `changes`: candidates change weights of experts.
        """
        from analysis.calibration.free import free_memory
        from pruning.measures.positions import CHUNK_BYTES

        parts, batch = weights_by_part(self.model), self.batch_size * self.longest
        running = self.running
        vocabulary = int(self.model.config.get("vocab_size", 0))
        alive = _LOGITS_OF_HALVES if self.item < 4 else _LOGITS
        chunk = alive * min(CHUNK_BYTES, 4 * vocabulary * batch)
        side = self.hidden(self.tokens)
        quarter = free_memory() // 4
        if not self.by_layers:
            states = kept * len(self.model.layers) * self.model.streams_size * self.item
            logits = 4 * vocabulary * cached
            weights = sum(parts.values()) * self.item
            return weights + running + side + chunk + min(states, quarter) + min(logits, quarter)
        ends = (OUTPUT_HEAD, EMBEDDING.rpartition("model.")[2])
        head = max((size for part, size in parts.items() if part.endswith(ends)), default=0)
        states, layer = self._by_layers(candidates, int(changes))
        after = self.hidden(self.tokens * (candidates + 1)) + head * self.item + side + chunk
        return max(states + layer, after)

    def _by_layers(self, candidates: int, copies: int) -> tuple[int, int]:
        """Bytes of hidden states, and of a layer or of a block of its experts while it runs."""
        from analysis.calibration.blocks import block_bytes, experts_that_fit, layer_sizes
        from pruning.engine.paused import check_products
        from pruning.engine.streamed import sizes_of_plans

        model, settings = self.model, self.settings
        states = self.tokens * (candidates + 1) * model.streams_size * self.item
        run = sizes_of_plans(model, settings, states, self.longest, copies=copies)
        sizes = layer_sizes(model, settings)
        if at_once := experts_that_fit(model, settings, run):
            check_products(model, settings)
            return run.paused, block_bytes(sizes, at_once, run)
        experts = max(layer.num_experts for layer in model.layers) * sizes.expert
        return run.states, sizes.whole + run.running + copies * experts

    def with_repairs(self, memory: int, *, repairs: bool) -> int:
        """This memory, or that of the repairs before, if there are any and they take more.

        A repair holds a layer, the hidden states of original and plan, and its least squares, at
        most those of all experts; see `pruning.repair.estimate`.
        """
        if not repairs:
            return memory
        from pruning.engine.paused import check_products
        from pruning.repair.estimate import FitSizes, memory_of_repair

        model, tokens = self.model, DEFAULT_REPAIR_TOKENS
        fit = FitSizes.of(model, tokens, max(layer.num_experts for layer in model.layers))
        hidden = tokens * model.streams_size * self.item
        repair = memory_of_repair(model, fit, self.running, hidden, self.settings)
        if repair.at_once:
            check_products(model, self.settings)
        return max(memory, repair.total)


def weights_memory(request: WeightsRequest) -> int:
    """Bytes of the measurement of weights, of which each thread maps a group."""
    import numba
    import psutil

    from analysis.calibration.weights import GROUP_BYTES, num_threads

    del request, numba  # all models take the same; imported for its size alone
    return int(psutil.Process().memory_info().rss) + num_threads() * GROUP_BYTES + _COMPILED


def _changes(request: EvaluateRequest | SweepRequest) -> bool:
    """Whether candidates have other weights than the original, whatever their plans say."""
    return request.repair or any(bits != OWN for bits in request.bits)


def evaluation_memory(request: EvaluateRequest) -> int:
    """Bytes of an evaluation."""
    plans = max(1, len(request.plans)) * (1 + request.repair) * len(request.bits)
    plans_change = any(plan_from_dict(plan).changes_weights for plan in request.plans)
    running = Running.of(request)
    memory = running.memory(plans, changes=_changes(request) or plans_change)
    return running.python + running.with_repairs(memory, repairs=request.repair)


def sweep_memory(request: SweepRequest) -> int:
    """Bytes of a sweep."""
    plans = len(request.criteria) * len(request.budgets) * (1 + request.repair) * len(request.bits)
    running = Running.of(request)
    memory = running.memory(1 + plans, changes=_changes(request))
    return running.python + running.with_repairs(memory, repairs=request.repair)


def sensitivity_memory(request: SensitivityRequest | TopKRequest) -> int:
    """Bytes of the measurement of curves."""
    running = Running.of(request)
    bits, repairs = 0, False
    if isinstance(request, SensitivityRequest):
        bits, repairs = len(request.bits), request.repair
    points = 1 + (request.levels + bits) * len(running.model.layers)
    batch = running.batch_size * running.longest
    memory = running.memory(points, _KEPT * batch, batch, changes=bool(bits))
    return running.python + running.with_repairs(memory, repairs=repairs)


def search_memory(request: SearchRequest) -> int:
    """Bytes of a search, without the calibrations before it."""
    recipe, machine = request.parsed(), request.machine
    if (section := recipe.search) is None:
        raise ValueError("the recipe does not search")
    model = load_model_index(recipe.model, revision=recipe.revision)
    usual = seq_len_of(section.corpus, recipe.seq_len)
    longest = within_context(model, usual, recipe.seq_len)
    tokens, size = section.samples * longest, machine.batch_size or _BATCH
    settings = run_settings(
        recipe.calibrate,
        longest,
        dtype=recipe.dtype,
        device=machine.device or "auto",
        batch_size=size,
        placement=search_placement(recipe, machine),
    )
    by_layers = machine.stream_layers
    running = Running(model, recipe.dtype, size, longest, tokens, by_layers, settings)
    kept = (2 * section.elites + 1) * tokens  # parents, the best so far, and the last
    return running.python + running.memory(section.population, kept, tokens)
