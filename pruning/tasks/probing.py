"""The rates of this machine, probed where no run has measured any."""

import os
from collections.abc import Callable, Set
from dataclasses import replace
from functools import cache, partial
from typing import Final

from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.progress import RATES, READING, Progress, Result, Whole, changed
from analysis.stats.rates import expected_seconds, keep_probed, known_rates, run_rates
from pruning.requests.model import ModelRequest
from pruning.requests.recipe_steps import SearchRequest
from pruning.tasks import Steps

# Work that is as fast as products in this dtype; "" is that of the request.
_PRODUCTS: Final = {"multiply": "", "observe": "", "run repaired": ""} | dict.fromkeys(
    ("multiply float32", "fit"), "float32"
)
# Bytes that become weights -> their dtype.
_LOADED: Final = {"read": "", "read float32": "float32"}
_STACKING: Final = 0.75  # of that speed loading reaches, which also stacks experts
# A model, its dtype and its device.
Way = tuple[MoEModel, str, str]
# Seconds of work from which on a second for its time left is well spent.
_LONG: Final = 20.0


def probe(whole: Whole, model: MoEModel, dtype: str = "auto", device: str = "auto") -> str:
    """Measure in about a second, and keep, what this work depends on and no run has measured.

    The problem if it cannot be kept.
    """
    missing = {kind for kind, amount in whole.left.items() if amount} - run_rates().keys()
    states_memory = bool(whole.total.get("allocate"))
    rates = _of_products(missing, model, dtype, device)
    rates |= _of_bytes(missing, model, dtype, device, anew=not states_memory)
    try:
        if rates:
            keep_probed(rates)
    except OSError as error:
        return f"the rates of this machine cannot be kept: {error.strerror}"
    return ""


def _of_products(missing: Set[str], model: MoEModel, dtype: str, device: str) -> dict[str, float]:
    from analysis.calibration.probe import invert_rate, multiply_rate

    speed, rates = cache(partial(multiply_rate, model, device=device)), dict[str, float]()
    for kind, own in _PRODUCTS.items():
        if kind in missing:
            rates[kind] = speed(own or dtype)
    if "invert" in missing:
        rates["invert"] = invert_rate(model, device)
    if "compare" in missing:
        from pruning.measures.probe import compare_rate

        rates["compare"] = compare_rate(model, dtype, device)
    return rates


def _of_bytes(
    missing: Set[str], model: MoEModel, dtype: str, device: str, *, anew: bool
) -> dict[str, float]:
    """`anew`: what is read takes new memory, which is no work of its own."""
    from analysis.calibration.loading import resolve_device
    from analysis.calibration.probe import allocating_seconds, byte_seconds, loading_seconds
    from pruning.surgery.reading import MOST_WORKERS

    rates = dict[str, float]()
    if "allocate" in missing:
        rates["allocate"] = allocating_seconds() * RATES["allocate"]
    if missing & {*READING}:
        seconds = byte_seconds(model)
        disk, hashing = seconds.read, seconds.hashed
        rates["hash"] = hashing * RATES["hash"]
        loading = cache(partial(loading_seconds, model))
        if "check" in missing:  # the source's bytes are read and compared too, by threads
            threads = min(MOST_WORKERS, len(model.checkpoint.shards), os.cpu_count() or 1)
            computing = (hashing - disk + loading("auto", anew=anew)) / threads
            rates["check"] = max(2 * disk, computing) * RATES["check"]
        for kind in missing & _LOADED.keys():
            converting = loading(_LOADED[kind] or dtype, anew=anew)
            # On a CPU, a model that memory does not hold runs by layers.
            dropped = seconds.dropped if resolve_device(device).type == "cpu" else disk
            rates[kind] = max(dropped, converting / _STACKING) * RATES[kind]
    return rates


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


def is_unknown(whole: Whole) -> bool:
    """Whether this is long work of which known rates tell less than half.

    Work of one kind tells its rate itself, as soon as it begins.
    """
    if sum(left > 0 for left in whole.left.values()) < 2:
        return False
    expected, known = expected_seconds(whole), known_rates()
    told = {kind: left for kind, left in whole.left.items() if kind in known}
    return expected >= _LONG and expected_seconds(Whole(told)) <= expected / 2


def probed(steps: Steps[Result], way: Callable[[], Way]) -> Steps[Result]:
    """The steps of a task; a `probe` before work that `is_unknown`."""
    is_stated = False

    def change(step: Progress) -> Progress:
        nonlocal is_stated
        if is_stated or step.whole is None or not step.whole.total:
            return step
        is_stated = True
        if not is_unknown(step.whole):
            return step
        return replace(step, note=probe(step.whole, *way()) or step.note)

    return changed(steps, change)
