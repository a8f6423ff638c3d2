"""Commands that come next: each works as it is printed, with nothing else installed."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path

from analysis.calibration.free import free_memory
from analysis.corpora.early import has_vocabulary
from analysis.corpora.spec import is_at_hand, parse_corpus_weight
from analysis.demo.listing import DEMO_CORPORA
from analysis.errors import PlanError
from analysis.files.home import from_home
from analysis.files.shipped import DEMO_MODEL
from analysis.model.loadable import unloadable
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.ranking.choose import path_hint
from analysis.stats.manifest import Run
from analysis.stats.store import stats_store
from pruning.plan.budget import possible_share
from pruning.plan.constraints import Constraints
from pruning.plan.experts_per_token import is_written
from pruning.plan.plan import PruningPlan
from pruning.requests.model import ModelRequest
from pruning.spec.base import command_line, flat_fields, option_words, repeated

PLAN_FILE, RESULT_FILE = "plan.json", "result.json"
_WAYS_TO_RUN = (
    *("device_map", "max_memory", "offload_folder"),
    *("stream_layers", "experts_at_once"),
)
_LEAST_ITEM = 2  # bytes of a weight that is computed with, however few it has on disk
_SMALL = 1 << 29  # bytes of a model of which nobody asks whether it fits
_BY_LAYERS = ("--stream-layers",)
_SPREAD = ("--device-map", "auto", "--offload-folder", "offload")
WEIGHTS_ELSEWHERE = "MODEL"  # stands for a model whose weights are not here


def commands_after_plan(
    request: ModelRequest, model: MoEModel, path: Path, plan: PruningPlan
) -> tuple[str, ...]:
    """The commands that measure a plan, if the model can be run, and that write its checkpoint."""
    shared = ("--plan", str(path), *option_words(request, only=("revision",)))
    is_exported = is_written(plan.top_k, model.family)
    write = (export_command(request.model, *shared),) if is_exported else ()
    if unloadable(model):
        return write
    return evaluate_command(request, model, {path: plan}), *write


def evaluate_command(
    request: ModelRequest,
    model: MoEModel,
    plans: Mapping[Path, PruningPlan],
    first: Iterable[str] = (),
) -> str:
    """The command that evaluates these plans on a corpus that they did not read.

    `first` are corpora to take before others.
    """
    read = {
        name
        for plan in plans.values()
        for name in (*plan.provenance.corpora, *(plan.repair.corpora if plan.repair else ()))
    }
    corpus = corpus_at_hand(request, model, first, read) or "held-out.jsonl"
    words = (*repeated("--plan", map(str, plans)), "--corpus", corpus)
    fields = [name for name in ("revision", "stats_dir") if name in type(request).model_fields]
    name = free_name(RESULT_FILE)
    out_words = () if name == RESULT_FILE else ("-o", name)
    flags = (*option_words(request, only=fields), *running_words(request, model))
    return command_line("evaluate", request.model, *words, *flags, *out_words)


def running_words(request: ModelRequest, model: MoEModel) -> tuple[str, ...]:
    """How the next command runs the model: as this one did, or as fits.

    By layers, or spread over memory and disk where layers do not run alone.
    """
    ways = [name for name in _WAYS_TO_RUN if name in flat_fields(type(request))]
    as_before = tuple(option_words(request, only=ways)) if ways else ()
    if as_before and "stream_layers" not in ways and "experts_at_once" in ways:
        as_before = (*_BY_LAYERS, *as_before)  # a repair, which always runs so
    item = 4 if getattr(request, "dtype", "auto") == "float32" else _LEAST_ITEM
    if as_before or _fits(model, item):
        return as_before
    return _SPREAD if model.inseparable else _BY_LAYERS


def _fits(model: MoEModel, item: int) -> bool:
    """Whether the weights, computed with in so many bytes at least, fit into the free memory."""
    nbytes = max(model.checkpoint.nbytes, item * model.num_params)
    return nbytes < _SMALL or nbytes <= free_memory()


def corpus_at_hand(
    request: ModelRequest,
    model: MoEModel,
    first: Iterable[str] = (),
    read: Collection[str] = frozenset(),
) -> str:
    """A corpus that can be read here: of `first`, calibrated before, the demo's; or empty.

    None of `read`. Of the demo's own corpora, evaluations read parts that calibration never does.
    """
    runs = stats_store(getattr(request, "stats_dir", None)).of_model(model.identity, "routed")
    parts = {*read, *chain(*(_parts(run) for run in runs if run.manifest.corpus in read))}
    by_size = sorted(runs, key=lambda run: -run.manifest.num_tokens)
    unread = [run for run in by_size if parts.isdisjoint(_parts(run))]
    names = [parse_corpus_weight(text).corpus for text in first]
    names += [name for run in unread for name in (run.manifest.corpus, path_hint(run)) if name]
    if request.model == DEMO_MODEL:
        names += sorted(DEMO_CORPORA, key=lambda name: name in parts)
    return next(filter(is_at_hand, names), "")


def _parts(run: Run) -> list[str]:
    return [corpus.name for corpus in run.manifest.corpora]


def commands_after_checks(folder: Path) -> tuple[str, ...]:
    """The command that has an export answer, where it can."""
    model = load_model_index(str(folder))
    if unloadable(model) or not has_vocabulary(folder):
        return ()
    return (command_line("ask", str(folder), "--prompt", "A room is 7 m by 6 m. How large is it?"),)


def plan_command(
    request: ModelRequest, criterion: str, corpora: Sequence[str], budget: Iterable[str]
) -> str:
    """The command that plans by a criterion and calibrated corpora."""
    shared = ("gate", "revision", "stats_dir", *(() if corpora else ("runs",)))
    fields = flat_fields(type(request))
    flags = option_words(request, only=[name for name in shared if name in fields])
    words = ("--criterion", criterion, *repeated("--calibrated-on", corpora), *budget)
    return next_plan(request.model, *words, *flags)


def calibrate_command(request: ModelRequest, model: MoEModel) -> str:
    """The command that calibrates a model on a corpus that is at hand."""
    names = [name for name in ("revision", "stats_dir") if name in type(request).model_fields]
    corpus = corpus_at_hand(request, model) or "CORPUS"
    flags = (*option_words(request, only=names), *running_words(request, model))
    return command_line("calibrate", request.model, "--corpus", corpus, *flags)


def next_plan(model: str, *words: str) -> str:
    """The command that plans with these options, into a file that is not there."""
    name = free_name(PLAN_FILE)
    return command_line("plan", model, *words, *(() if name == PLAN_FILE else ("-o", name)))


def export_command(model: str, *words: str) -> str:
    """The command that writes a pruned checkpoint, into a folder that is not there."""
    return command_line("export", model, pruned_name(model), *words)


def pruned_name(model: str) -> str:
    """A new folder for the pruned checkpoint of a model."""
    return free_name(f"{Path(model).name}-pruned")


def free_name(name: str) -> str:
    """The name, numbered if it is taken in the working directory."""
    path = Path(name)
    numbered = (f"{path.stem}-{number}{path.suffix}" for number in count(2))
    return next(candidate for candidate in chain([name], numbered) if not Path(candidate).exists())


def folder_of(model: str) -> str:
    """The model, by its folder where its config.json is named."""
    path = from_home(model)
    return str(path.parent) if path.is_file() else model


def with_weights(model: str) -> str:
    """The model as commands take it that read weights; MODEL if they are not here."""
    folder = from_home(folder_of(model))
    is_elsewhere = not folder.exists()  # on the hub, or the demo
    return (
        folder_of(model) if is_elsewhere or any(folder.glob("*.safetensors")) else WEIGHTS_ELSEWHERE
    )


def usual_budget(model: MoEModel) -> tuple[str, str]:
    """The budget of plans that come next: 40% of the bytes, or less where not as much can go."""
    try:
        return "--shrink", f"{possible_share(model, Constraints())[0]}%"
    except PlanError:
        return "--remove", str(len(model.layers))
