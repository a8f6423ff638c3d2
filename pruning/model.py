"""The Python interface: calibrate, rank, plan, evaluate, export and verify a model.

Command line and jobs call the same functions. Options are the fields of the requests: the options
of the command line with underscores.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from analysis.drain import drain
from analysis.errors import PlanError
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.progress import Progress
from analysis.stats.manifest import Run
from analysis.stats.store import stats_store
from pruning.actions.listing import action
from pruning.plan.plan import PruningPlan
from pruning.plan.shown import DisplayMixin, Facts
from pruning.plan.sizes import SizeReport, format_bytes, size_report
from pruning.planning.ranking import Ranking
from pruning.records.evaluation import EvaluationRecord
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.evaluation import EvaluateRequest
from pruning.requests.model import ExportRequest
from pruning.requests.plan import SpecRequest
from pruning.spec.base import Request, validated
from pruning.study import Study
from pruning.surgery.verify import VerifyReport, verify_export
from pruning.tasks.calibration import calibrate_run
from pruning.tasks.evaluation import evaluate_run
from pruning.tasks.export import export_run

Result = TypeVar("Result")
Kind = TypeVar("Kind", bound=Request)


class Model(DisplayMixin):
    """A checkpoint, described by its configuration and headers; weights are read when needed.

    Args:
        name: a folder, a hub id, or `demo`.
        revision: of the hub id.
        stats_dir: folder of statistics and results; default as on the command line.
        progress: called with each step of long work; `print` will do.
    """

    def __init__(
        self,
        name: str | Path,
        *,
        revision: str | None = None,
        stats_dir: str | Path | None = None,
        progress: Callable[[Progress], object] | None = None,
    ) -> None:
        self._shared: dict[str, Any] = {"model": str(name), "revision": revision}
        self._stats_dir = Path(stats_dir) if stats_dir else None
        self._progress = progress
        self.described: MoEModel = load_model_index(str(name), revision=revision)
        self.store = stats_store(self._stats_dir)

    @property
    def shown(self) -> Facts:
        """The facts that a console or a notebook shows."""
        layers = self.described.layers
        return {
            "name": self.described.name,
            "sparse_layers": len(layers),
            "experts_per_layer": _either(layer.num_experts for layer in layers),
            "experts_per_token": _either(layer.top_k for layer in layers),
            "size": format_bytes(self.described.checkpoint.nbytes),
        }

    @property
    def runs(self) -> list[Run]:
        """The stored calibrations of this model, by id."""
        return self.store.of_model(self.described.identity, "routed")

    def calibrate(self, corpus: str, **options: Any) -> Run:
        """Run the model over a corpus and store the statistics, or read stored ones.

        Options: `tokens`, `seq_len`, `groups`, `device`, `dtype`, ... of `moeprune calibrate`.
        """
        return self._drain(calibrate_run(self._request(CalibrateRequest, corpus=corpus, **options)))

    def rank(self, criterion: str, corpus: str | Sequence[str] = (), **options: Any) -> Ranking:
        """Rank all experts by a criterion, as a `table`; rank 0 is the first to keep in a layer.

        Args:
            criterion: its name, or `b,alpha,beta`.
            corpus: a calibrated corpus, or several to blend, each NAME or NAME:WEIGHT.
            options: `gate`, `runs`; `granularity="neuron"` ranks neurons.
        """
        fields = {"criterion": criterion, "corpora": _several(corpus), "sparsity": "0"}
        return self._ranking(self._request(SpecRequest, **fields, **options))

    def plan(
        self, ranking: str | Ranking = "", corpus: str | Sequence[str] = (), **options: Any
    ) -> PruningPlan:
        """Choose what stays.

        Args:
            ranking: from `rank`, or the name of a criterion; none with `kept_experts`.
            corpus: see `rank`; only with the name of a criterion.
            options: a budget (`shrink="40%"`, `sparsity`, ...), `schedule`, `protect`,
                ... of `moeprune plan`.
        """
        if isinstance(ranking, str):
            fields = {"criterion": ranking, "corpora": _several(corpus), **options}
            request = self._request(SpecRequest, **fields)
            study = Study.of(request, self.described, self.store)
            plan, _ = self._drain(study.make(request.plan))
            return plan
        fields = {
            "criterion": ranking.criterion.name,
            "granularity": ranking.spec.ranking.granularity,
        }
        spec = self._request(SpecRequest, **fields, gate=ranking.gate, **options).plan
        study = Study(self.described, self.store, ranking.place)
        return study.plan_of(study.measured(replace(ranking, spec=spec)))

    def sizes(self, plan: PruningPlan) -> SizeReport:
        """Bytes, parameters and FLOPs before and after a plan."""
        return size_report(self.described, plan)

    def evaluate(
        self, plan: PruningPlan | None = None, *, corpus: str, **options: Any
    ) -> EvaluationRecord:
        """Measure a plan on a held-out corpus, masked in memory; without one, the original.

        Options: `measures`, `samples`, `seq_len`, `device`, ... of `moeprune evaluate`.
        """
        plans = () if plan is None else (plan.to_dict(),)
        request = self._request(EvaluateRequest, corpora=(corpus,), plans=plans, **options)
        if len(request.bits) > 1:
            raise PlanError("This measures one number of bits; call it once for each.")
        (record,) = self._drain(evaluate_run(request))
        return record

    def export(self, plan: PruningPlan, out: str | Path, **options: Any) -> Path:
        """Write the pruned checkpoint into a new folder; `verify=True` verifies it at once."""
        options = {"verify": False, **options}
        request = self._request(ExportRequest, plan=plan.to_dict(), out=Path(out), **options)
        self._drain(export_run(request))
        return request.out

    def run(self, name: str, **options: Any) -> Any:
        """Run an action, such as `bins`, `sweep` or `subsets`; what it gives, mostly records.

        Options: those of its command; a plan is a `PruningPlan`, several are a sequence. Of
        `search`, the text of a recipe.
        """
        values = {key: _content(value) for key, value in options.items()}
        return self._drain(action(name).run(self._request(action(name).request, **values)))

    def verify(
        self, out: str | Path, level: str | None = None, *, stream_layers: bool = False
    ) -> VerifyReport:
        """Verify an export of this model: its bytes, that it loads, and its logits."""
        source, directories = self.described.checkpoint.path, self.store.directories
        way: dict[str, Any] = {"level": level, "stream_layers": stream_layers}
        return self._drain(verify_export(Path(out), source=source, directories=directories, **way))

    def _ranking(self, request: SpecRequest) -> Ranking:
        study = Study.of(request, self.described, self.store)
        return self._drain(study.rank(request.plan))

    def _request(self, kind: type[Kind], **values: Any) -> Kind:
        """A request with this model's name, revision and statistics folder."""
        place = {"stats_dir": self._stats_dir} if "stats_dir" in kind.model_fields else {}
        request: Kind = validated(kind, {**self._shared, **place, **values})
        return request

    def _drain(self, task: Generator[Progress, None, Result]) -> Result:
        return drain(task, self._progress)


def _content(value: Any) -> Any:
    """A value as a request has it: plans by their content."""
    if isinstance(value, PruningPlan):
        return value.to_dict()
    return tuple(map(_content, value)) if isinstance(value, list | tuple) else value


def _either(counts: Iterable[int]) -> str:
    """One number, or the range of several."""
    ordered = sorted(set(counts))
    return "-".join(map(str, dict.fromkeys((ordered[0], ordered[-1]))))


def _several(corpus: str | Sequence[str]) -> tuple[str, ...]:
    return (corpus,) if isinstance(corpus, str) else tuple(corpus)
