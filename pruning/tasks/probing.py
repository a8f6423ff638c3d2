"""The rates of this machine, probed where no run has measured any."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.progress import READING, Progress, Result, Whole, changed
from analysis.stats.rates import expected_seconds, keep_probed, known_rates, run_rates
from pruning.requests.model import ModelRequest
from pruning.requests.recipe_steps import SearchRequest
from pruning.tasks import Steps

# What a processor decides: reading too, as bytes become weights.
_COMPUTED: Final = frozenset({"multiply", "read", "load"})
# A model, its dtype and its device.
Way = tuple[MoEModel, str, str]
# Seconds of work from which on a second for its time left is well spent.
_LONG: Final = 20.0


def probe(whole: Whole, model: MoEModel, dtype: str = "auto", device: str = "auto") -> str:
    """Measure in about a second, and keep, what this work depends on and no run has measured.

    The problem if it cannot be kept.
    """
    known, rates = run_rates(), dict[str, float]()
    missing = {kind for kind, amount in whole.left.items() if amount} - known.keys()
    from analysis.calibration.probe import disk_rates, multiply_rate

    if missing & _COMPUTED:
        rates["multiply"] = known.get("multiply") or multiply_rate(model, dtype, device)
    if missing & {*READING}:
        disk = disk_rates(model)
        rates["hash"] = disk["hash"]
        if "multiply" in rates:
            rates["read"] = max(disk["read"], rates["multiply"])
    try:
        if rates:
            keep_probed(rates)
    except OSError as error:
        return f"the rates of this machine cannot be kept: {error.strerror}"
    return ""


def probing(
    whole: Whole, model: MoEModel, dtype: str = "auto", device: str = "auto"
) -> Steps[None]:
    """As `probe`, as a step."""
    if problem := probe(whole, model, dtype, device):
        yield Progress("measuring this machine", 0, 0, note=problem)


def way_of(request: ModelRequest | SearchRequest) -> Way:
    """The model of a request, and how it runs."""
    if isinstance(request, SearchRequest):
        recipe, device = request.parsed(), request.machine.device or "auto"
        return load_model_index(recipe.model, revision=recipe.revision), recipe.dtype, device
    model = load_model_index(request.model, revision=request.revision)
    way = request.model_dump(include={"dtype", "device"})
    return model, way.get("dtype", "auto"), way.get("device", "auto")


def probed(steps: Steps[Result], way: Callable[[], Way]) -> Steps[Result]:
    """The steps of a task; on a machine of which nothing is known, a `probe` before long work."""
    is_stated = False

    def change(step: Progress) -> Progress:
        nonlocal is_stated
        if is_stated or step.whole is None or not step.whole.total:
            return step
        is_stated = True
        if known_rates() or expected_seconds(step.whole) < _LONG:
            return step
        return replace(step, note=probe(step.whole, *way()) or step.note)

    return changed(steps, change)
