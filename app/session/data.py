"""Cached models, runs, statistics and records for the pages; no weights, no torch."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import streamlit as st

from analysis.cache_keys import key_of_call
from analysis.checkpoint.index import CONFIG_NAME
from analysis.checkpoint.opening import open_checkpoint
from analysis.corpora.presets import PRESETS
from analysis.corpora.spec import SUFFIXES, bare_name
from analysis.criteria import Criterion
from analysis.demo.listing import DEMO_CORPORA
from analysis.errors import StatsError, UserError
from analysis.files.shipped import DEMO_CHECKPOINT, DEMO_MODEL
from analysis.model.describing import describe_model
from analysis.model.moe_model import MoEModel
from analysis.ranking.choose import run_by_corpus
from analysis.stats.columns import groups_for
from analysis.stats.manifest import Run
from analysis.stats.places import usual_stats_dir
from app.choices import Choices
from app.literal import literal
from app.loaded import Loaded
from app.settings import Settings, shown_path
from pruning.measures.store import Kept, RecordStore
from pruning.planning.ranking import Place
from pruning.records.evaluation import EvaluationStore
from pruning.records.quality import PlanLoss, stored_losses
from pruning.spec.base import repeated
from pruning.study import Study

P = ParamSpec("P")
T = TypeVar("T")
_MOST: Final = 128  # results of a function that is not marked by `most_results`
MAX_LAYERS, MAX_EXPERTS = 256, 1024
_TEXTS = tuple(f"*{suffix}" for suffix in SUFFIXES)


def remembered(function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
    """The result of a function, cached for equal arguments; do not mutate it."""
    # As text: Streamlit takes 2 ms to hash the nested lists of one toggle, item by item.
    result: T = _cached(function)(key=key_of_call(args, named), _args=args, _named=named)
    return result


@cache
def _cached(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a cache of its own; Streamlit hashes no argument with an underscore."""

    # Streamlit knows a cache by the name and the text of the function.
    @st.cache_resource(max_entries=getattr(function, "most_results", _MOST), show_spinner=False)
    @wraps(function)
    def result(*, key: Any, _args: tuple[Any, ...], _named: dict[str, Any]) -> Any:
        return function(*_args, **_named)

    return result


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model in the dashboard: display name and path."""

    name: str
    path: Path


@st.cache_resource
def settings() -> Settings:
    """Folders of this server."""
    return Settings.from_environment()


def shown_checkpoint(path: Path) -> str:
    """The checkpoint at `path` as MODEL of a command line."""
    return DEMO_MODEL if path == DEMO_CHECKPOINT.resolve() else str(shown_path(path))


def shown_model(model: MoEModel) -> str:
    """MODEL of a command line."""
    return shown_checkpoint(model.checkpoint.path)


def shown_stats_dir() -> Path | None:
    """Value for --stats-dir, in any shell; None for the usual one."""
    stats_dir = settings().stats_dir
    return None if stats_dir == usual_stats_dir() else shown_path(stats_dir)


def user() -> str | None:
    """The logged-in user; None without a login."""
    return str(getattr(st.user, "email", None) or "") or None


def texts_folder() -> Path:
    """Where the texts lie that this person added; those of others are not theirs to see."""
    owner = sha256(name.encode()).hexdigest()[:16] if (name := user()) else "local"
    return settings().state_dir / "texts" / owner


def model_choices() -> list[ModelChoice]:
    """The demo, then the checkpoints directly below the models folder, by name."""
    choices = [ModelChoice(DEMO_MODEL, DEMO_CHECKPOINT)] if DEMO_CHECKPOINT.is_dir() else []
    root = settings().models_root
    if root is not None and root.is_dir():
        choices += [
            ModelChoice(path.name, path)
            for path in sorted(root.iterdir())
            if (path / CONFIG_NAME).is_file() and not path.is_symlink()
        ]
    return choices


def corpus_files() -> list[str]:
    """Texts that were added, then those directly below the models folder, each by name.

    Links are ignored for safety.
    """
    root = settings().models_root
    return [*added_texts(), *(_texts_in(root) if root else ())]


def added_texts() -> list[str]:
    """The texts that this person added, by name."""
    return _texts_in(texts_folder())


def _texts_in(folder: Path) -> list[str]:
    paths = (path for glob in _TEXTS for path in folder.glob(glob))
    return sorted(str(path) for path in paths if not path.is_symlink())


def _files_of(choice: ModelChoice) -> tuple[str, str, int]:
    """Name, path and mtime of each file, to detect another checkpoint in the same folder."""
    newest = max(path.stat().st_mtime_ns for path in choice.path.iterdir())
    return choice.name, str(choice.path), newest


@st.cache_resource(max_entries=8, hash_funcs={ModelChoice: _files_of})
def chosen_model(choice: ModelChoice) -> MoEModel:
    """The index of a model's checkpoint; refuses models too large for the pages."""
    model = describe_model(open_checkpoint(choice.path), name=choice.name)
    experts = max(layer.num_experts for layer in model.layers)
    if len(model.layers) > MAX_LAYERS or experts > MAX_EXPERTS:
        raise UserError(
            f"{choice.name} has {len(model.layers)} layers of up to {experts} experts; the pages "
            f"show at most {MAX_LAYERS} x {MAX_EXPERTS}."
        )
    return model


def all_runs() -> tuple[list[Run], list[str]]:
    """Every finished run, and problems of unreadable ones."""
    problems: list[StatsError] = []
    runs = settings().store.runs(problems.append)
    return runs, list(map(str, problems))


def runs_with_routing(model: MoEModel, criterion: Criterion | None = None) -> dict[str, Run]:
    """The calibration run of each corpus that commands use, see `run_by_corpus`."""
    return run_by_corpus(settings().store.of_model(model.identity, "routed"), criterion)


def calibrated_models() -> dict[str, dict[str, Run]]:
    """Every model calibrated on two or more corpora, with its runs, by name.

    Models of the same name get their identity appended.
    """
    runs, _ = all_runs()
    by_identity: dict[str, list[Run]] = {}
    for run in runs:
        if run.manifest.kind == "routed":
            by_identity.setdefault(run.manifest.model.identity, []).append(run)
    names = Counter(group[0].manifest.model.name for group in by_identity.values())
    runs_by_name = {}
    for identity, of_model in by_identity.items():
        name = of_model[0].manifest.model.name
        label = name if names[name] == 1 else f"{name} {identity[:8]}"
        runs_by_name[label] = run_by_corpus(of_model)
    return {label: texts for label, texts in runs_by_name.items() if len(texts) > 1}


def calibration_corpora() -> list[str]:
    """Calibration corpora: the demo's, own files, and those of the hub."""
    return [*DEMO_CORPORA, *corpus_files(), *PRESETS]


def loaded_for(model: MoEModel, choices: Choices) -> Loaded:
    """A model and what was chosen, with the statistics of this server and cached results."""
    place = Place(shown_model(model), stats_dir=shown_stats_dir())
    return Loaded(Study(model, settings().store, place, remembered).now(), choices)


def held_out_corpora(loaded: Loaded) -> list[str]:
    """Corpora that measure: all that calibrate, those of `usual_corpora` first."""
    return list(dict.fromkeys([*usual_corpora(loaded), *calibration_corpora()]))


def usual_corpora(loaded: Loaded) -> list[str]:
    """Corpora that measure the model unasked: its own.

    These are the demo's, or files in the models folder; without any, those that calibrated it.
    """
    local_corpora = [*(DEMO_CORPORA if loaded.model.name == DEMO_MODEL else ()), *corpus_files()]
    calibrated = {bare_name(corpus) for corpus in loaded.runs}
    return local_corpora or [
        corpus for corpus in calibration_corpora() if bare_name(corpus) in calibrated
    ]


def corpus_label(text: str) -> str:
    """Display name of a corpus: a file without its folder; marks those added and downloaded."""
    path = Path(text)
    if path.parent in (texts_folder(), settings().models_root):
        return f"{path.name} (added)" if path.parent == texts_folder() else path.name
    return f"{text} (from the hub)" if text in PRESETS else text


def what_is_missing(loaded: Loaded, criterion: Criterion) -> str | None:
    """Missing statistics of a criterion and what to do; None if it can rank."""
    if criterion.source == "routed" and not loaded.runs:
        return (
            f"{criterion.label} ranks by routed tokens, but {literal(loaded.model.name)} has no "
            "calibration yet. Run one on the **Start** page, or choose AIMER or Magnitude, which "
            "need none."
        )
    if criterion.source == "routed":
        groups = groups_for(criterion.columns("applied"))
        for corpus, weight in loaded.weights.items():
            if weight > 0 and set(groups) - set(loaded.runs[corpus].manifest.groups):
                return (
                    f"{criterion.label} needs more than the statistics of {literal(corpus)} have. "
                    f"Collect it on the **Start** page or with `moeprune calibrate`, as "
                    f"`{' '.join(repeated('--group', groups[1:]))}` on the same corpus."
                )
    if criterion.source == "weights" and loaded.study.weight_run is None:
        return (
            f"{criterion.label} reads the weights of {literal(loaded.model.name)}, which are not "
            "measured yet. Measure them on the **Start** page; this takes seconds."
        )
    return None


def records_of(loaded: Loaded, kind: type[RecordStore[Kept]]) -> list[Kept]:
    """All records of the model; shows a warning per unreadable file.

    `kind` is a store over statistics directories, such as `EvaluationStore`. Files are
    read again when they change.
    """
    records, problems = loaded.study.records(kind)
    for problem in problems:
        st.warning(literal(problem), icon=":material/warning:")
    return list(records)


def usual_dtype(loaded: Loaded) -> str:
    """The dtype in which most plans of the model were evaluated."""
    records = records_of(loaded, EvaluationStore)
    dtypes = Counter(str(record.settings["dtype"]) for record in records).most_common(1)
    return dtypes[0][0] if dtypes else "auto"


def losses_of(model: MoEModel) -> tuple[PlanLoss, ...]:
    """The loss of every evaluated plan of a model, see `stored_losses`."""
    store = EvaluationStore(settings().store.directories).snapshot(model.identity)
    return remembered(stored_losses, store, model.identity)
