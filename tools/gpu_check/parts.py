"""What is measured on one model; each part returns whether it passed, and its figures."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pandas as pd
import torch

from analysis.calibration.experts import collecting
from analysis.calibration.feed import feed, model_inputs
from analysis.calibration.loading import CalibrationSettings, load_model
from analysis.calibration.sums import sums_of
from analysis.corpora.sequences import TokenSequences
from analysis.model.opening import load_model_index
from analysis.nonuniform.loading import load_pruned
from analysis.stats.manifest import Run
from analysis.stats.reading import load_expert_stats
from pruning import Model
from pruning.engine.masking import masked
from pruning.surgery.forward_checks import random_tokens
from pruning.surgery.manifest import read_manifest
from tools.benchmarks.timing import in_turns
from tools.gpu_check.shapes import World

MOST_RATIO = 1.10  # time of calibration against a plain forward with the stock loop
# Kernels may differ in rounding, so a token may take another expert. Statistics: the largest
# difference, as a fraction of the layer's largest value; the tokens counted must be equal.
# Logits: norm of the difference over norm, median over tokens.
TOLERANCE = 1e-2

Result = tuple[bool, dict[str, Any]]


class NotRun(Exception):
    """Why a part cannot run."""


def _loaded(world: World) -> tuple[Any, Any]:
    """The described and the loaded model, whole on the device."""
    described = load_model_index(str(world.model))
    settings = CalibrationSettings(seq_len=world.shape.seq_len, device=str(world.device))
    return described, load_model(described, settings)


def speed(world: World) -> Result:
    """Plain forwards and calibration of the group `routed`, taking turns."""
    described, model = _loaded(world)
    sequences = TokenSequences("random", tuple(world.shape.token_ids()), world.shape.rows, 0)
    batch = next(sequences.batches(world.shape.batch_size))
    sums = sums_of(described)
    inputs = model_inputs(batch, world.device)
    default = str(model.config._experts_implementation)

    def wait() -> None:
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)

    def plain(implementation: str) -> None:
        model.set_experts_implementation(implementation)
        model.base_model(**inputs, use_cache=False)
        wait()

    def calibrate() -> None:
        with collecting(model, described, sums):
            feed(model, batch)
        wait()

    actions = {name: partial(plain, name) for name in ("eager", default)}
    with torch.no_grad():
        seconds = in_turns({**actions, "calibration": calibrate}, rounds=3)
    ratios = {f"time over {name}": seconds["calibration"] / seconds[name] for name in actions}
    ok = ratios["time over eager"] <= MOST_RATIO
    rates = {f"tokens/s {name}": batch.input_ids.size / value for name, value in seconds.items()}
    if not world.shape.is_large:
        return True, rates | ratios
    return ok, rates | ratios | {"at most": MOST_RATIO}


def _runs(world: World, way: str) -> Model:
    return Model(world.model, stats_dir=world.folder / f"stats-{way}")


def _options(world: World, way: str) -> dict[str, Any]:
    """Options of a calibration; with "auto", limits keep a CPU check off a GPU that is there."""
    on_gpu = world.device.type == "cuda"

    def limits(**shares: float) -> tuple[str, ...]:
        named = {"gpu": str(world.device.index), "cpu": "cpu"}
        return tuple(f"{named[k]}={int(world.nbytes * v) // 1000}KB" for k, v in shares.items())

    if way == "device map":
        return {"device_map": "auto", "max_memory": () if on_gpu else limits(cpu=2)}
    if way == "offload":
        most = limits(gpu=0.5, cpu=0.25) if on_gpu else limits(cpu=0.5)
        return {"device_map": "auto", "max_memory": most, "offload_folder": world.folder / "off"}
    return {"stream_layers": True} if way == "stream layers" else {}


def calibrated(world: World, way: str) -> Result:
    """Calibration with the weights placed this way, against those of the whole model."""
    reference = _runs(world, "device").runs
    if way != "device" and not reference:
        raise NotRun("there are no statistics of the whole model to compare with")
    shape = world.shape
    run = _runs(world, way).calibrate(
        str(world.corpus),
        tokens=shape.rows * shape.seq_len,
        seq_len=shape.seq_len,
        batch_size=shape.batch_size,
        device=str(world.device),
        **_options(world, way),
    )
    made = run.manifest.made
    figures = {"weights on": made["device"], "tokens/s": made["tokens_per_second"]}
    if world.device.type == "cuda":
        figures["peak GiB"] = made["peak_memory_bytes"] / 2**30
    difference = _difference((reference or [run])[0], run)
    table = load_expert_stats(run).table
    wanted = shape.rows * shape.seq_len * int(shape.config(1).num_experts_per_tok)
    counted = bool((table.groupby("layer")["num_tokens"].sum() == wanted).all())
    figures |= {"all tokens counted": counted, "difference": difference, "at most": TOLERANCE}
    return counted and difference <= TOLERANCE, figures


def _difference(first: Run, second: Run) -> float:
    def table(run: Run) -> pd.DataFrame:
        found = load_expert_stats(run).table.set_index(["layer", "expert"])
        return found.select_dtypes("number").fillna(0)

    mine, theirs = table(first), table(second)
    largest = mine.abs().groupby("layer").transform("max").clip(lower=1e-30)
    return float(((mine - theirs).abs() / largest).to_numpy().max())


def export(world: World) -> Result:
    """Half of the experts of each layer, by REAP, written."""
    model, started = _runs(world, "device"), time.monotonic()
    if not model.runs:
        raise NotRun("there are no statistics to rank by")
    model.export(model.plan("reap", str(world.corpus), sparsity="50%"), world.exported)
    seconds = time.monotonic() - started
    nbytes = sum(file.stat().st_size for file in world.exported.iterdir())
    return True, {"GiB": nbytes / 2**30, "GiB/s": nbytes / 2**30 / seconds}


def _check_exported(world: World) -> None:
    if not world.exported.is_dir():
        raise NotRun("nothing was exported")


def verify(world: World) -> Result:
    """Every byte of the export against the source; a small one also runs on the CPU."""
    _check_exported(world)
    level = "bytes" if world.shape.is_large else "logits"
    report = Model(world.model).verify(world.exported, level)
    wrong = {check.name: check.detail for check in report.checks if not check.ok}
    return report.ok, {"level": str(report.level), "checks": len(report.checks), **wrong}


def load(world: World) -> Result:
    """The export on the device: its logits against those of the masked original."""
    _check_exported(world)

    def logits(model: Any) -> torch.Tensor:
        model.set_experts_implementation("eager")
        with torch.no_grad():
            result: torch.Tensor = model(ids, use_cache=False).logits.float()
        return result

    ids = random_tokens(load_model_index(str(world.model)), 512).to(world.device)
    started = time.monotonic()
    pruned = load_pruned(world.exported, dtype="auto", device_map={"": world.device})
    seconds = time.monotonic() - started
    mine = logits(pruned)
    del pruned
    described, original = _loaded(world)
    with masked(original, described.family, read_manifest(world.exported).plan):
        wanted = logits(original)
    apart = float(((mine - wanted).norm(dim=-1) / wanted.norm(dim=-1)).median())
    figures = {"seconds to load": seconds, "difference of logits": apart, "at most": TOLERANCE}
    return apart <= TOLERANCE, figures


# Name -> function, and about how long it takes, in passes over the model. The first one
# shows how fast the device is.
PARTS: Mapping[str, tuple[Callable[[World], Result], float]] = {
    "--device": (partial(calibrated, way="device"), 1),
    "calibration against forwards": (speed, 6),
    "--device-map auto": (partial(calibrated, way="device map"), 1),
    "offload": (partial(calibrated, way="offload"), 2),
    "--stream-layers": (partial(calibrated, way="stream layers"), 1),
    "export": (export, 1),
    "verify": (verify, 1.5),
    "load": (load, 1.5),
}
