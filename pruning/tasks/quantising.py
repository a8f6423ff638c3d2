"""The recipe of a quantised export, and the tokens that it is calibrated on."""

from typing import Any

from analysis.corpora.early import has_vocabulary
from analysis.corpora.spec import CorpusWeight, is_at_hand, parse_corpus_weight
from analysis.errors import ExportError, PlanError
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.ranking.choose import path_hint, run_by_corpus
from analysis.stats.store import stats_store
from pruning.plan.plan import PruningPlan
from pruning.plan.widths import WidthPlan
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.model import ExportRequest
from pruning.requests.repair import found_here, ranking_corpora
from pruning.serving.engines import Contents
from pruning.serving.llm_compressor import (
    SCHEMES,
    QuantisedFiles,
    check_quantisable,
    group_of,
    write_quantised,
)
from pruning.spec.base import validated
from pruning.tasks import Steps
from pruning.tasks.calibration import check_corpora, prepare_calibration

CALIBRATION_TOKENS = 65_536  # 128 sequences of 512, as in AWQ's paper (arXiv:2306.00978)


def check_recipe(
    request: ExportRequest,
    model: MoEModel,
    plan: PruningPlan,
    contents: Contents,
    widths: WidthPlan | None,
) -> None:
    """Refuse, before any work, a recipe that could not run.

    `contents` and `widths` are of the export.
    """
    scheme, folder = request.quantised_as or "", model.checkpoint.path
    check_quantisable(model, contents, has_tokenizer=has_vocabulary(folder), scheme=scheme)
    group_of(model, scheme, widths.loaded if widths else None)  # refuses
    if SCHEMES[scheme].needs_text:
        _corpora(request, model, plan)


def check_before_export(request: ExportRequest, model: MoEModel, plan: PruningPlan) -> Steps[None]:
    """Refuse files in the place of a recipe, and text that cannot be read, before an export."""
    if request.quantised_as is None:
        return
    files = QuantisedFiles(request.out, request.quantised_as)
    if taken := [path for path in files.written if path.exists()]:
        raise ExportError(f"{taken[0]} is there already, of another export; remove it.")
    if files.rows:
        yield from check_corpora(_readings(request, model, plan))


def write_recipe(
    request: ExportRequest, model: MoEModel, plan: PruningPlan
) -> Steps[dict[str, Any] | None]:
    """Write the recipe of a finished export and its tokens, if it was asked for."""
    if request.quantised_as is None:
        return None
    files = QuantisedFiles(request.out, request.quantised_as)
    rows: list[list[int]] = []
    readings = _readings(request, model, plan) if files.rows else []
    yield from check_corpora(readings)
    for reading in readings:
        _, sequences, _ = yield from prepare_calibration(reading)
        rows += [row.tolist() for row in sequences.rows]
    return write_quantised(load_model_index(str(request.out)), files, rows)


def _readings(request: ExportRequest, model: MoEModel, plan: PruningPlan) -> list[CalibrateRequest]:
    """How each corpus is read, as by calibrations: tokens are shared by the weights."""
    parts = _corpora(request, model, plan)
    total = sum(part.weight for part in parts)
    shared = {"model": request.model, "revision": request.revision, "stats_dir": request.stats_dir}
    return [
        validated(
            CalibrateRequest,
            {
                **shared,
                "corpus": part.corpus,
                "tokens": max(2, round(CALIBRATION_TOKENS * part.weight / total)),
                "stream_layers": True,
            },
        )
        for part in parts
    ]


def _corpora(request: ExportRequest, model: MoEModel, plan: PruningPlan) -> list[CorpusWeight]:
    """The corpora that are named, else those that ranked the plan, as they can be read here."""
    if named := [parse_corpus_weight(text) for text in request.recipe_corpora]:
        return named
    runs = stats_store(request.stats_dir).of_model(model.identity, "routed")
    files = {name: path_hint(run) for name, run in run_by_corpus(runs).items()}
    parts = [found_here(part, files.get(part.corpus, "")) for part in ranking_corpora(plan)]
    instead = "name what to calibrate on with --recipe-corpus, or take fp8, which needs no text"
    if not parts:
        raise PlanError(
            f"The plan was ranked without text, so nothing says what {request.quantised_as} is "
            f"calibrated on; {instead}."
        )
    if absent := [part.corpus for part in parts if not is_at_hand(part.corpus)]:
        raise PlanError(
            f"The plan was ranked by {absent[0]}, and no file with its text is here; {instead}."
        )
    return parts
