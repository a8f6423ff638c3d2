"""What repair gives and what it competes with, on the demo; the tables of docs/concepts/repair.md.

`python -m tools.demo.beside_repair FOLDER [--tokens 24576] [--samples 32] [--only PLAN ...]`

FOLDER keeps the repairs, so that a second run is quick. `--only` leaves out other plans, repairs by
other texts, and the criterion for repair. Prints a CSV: loss increase on held-out texts by corpus,
and the 95% interval by documents of what the repair gives back.
"""

import argparse
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from analysis.calibration.distributed import join
from analysis.calibration.loading import load_model
from analysis.criteria import CRITERIA
from analysis.drain import drain
from analysis.errors import CriterionError
from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index
from analysis.stats.store import stats_store
from pruning.engine.candidate import MaskedCandidates, MeasureSettings, measure_candidate
from pruning.engine.full_side import FullSide, final_hidden, full_side
from pruning.measures.result import SampleValues, interval_of
from pruning.measures.samples import SampleBatch, make_samples
from pruning.plan.plan import PruningPlan, fit_plan
from pruning.planning.ranking import Place
from pruning.records.repair_files import with_repair_files
from pruning.repair.batches import placed_batches
from pruning.requests.evaluation import EvaluateRequest
from pruning.requests.repair import RepairRequest
from pruning.spec.spec import spec_of
from pruning.study import Study
from pruning.tasks.evaluation import drawn_corpora
from pruning.tasks.loading import run_settings
from pruning.tasks.repair import _prepare, repair_run
from tools.demo.repair_rivals import (
    LoadedModel,
    constants_for_pruned,
    fitted_scalars,
    mean_outputs,
    scaled,
    unexplained,
)

logger = logging.getLogger(__name__)

CORPORA = ("demo-code", "demo-math", "demo-stories")
HALF: Mapping[str, Any] = {"sparsity": "50%", "corpora": CORPORA}
Arm = Callable[[], AbstractContextManager[None]]


def specs(only: Collection[str]) -> dict[str, dict[str, Any]]:
    """Name -> spec of the plans that are measured before and after repair; of `only`, if given."""
    return {name: fields for name, fields in _specs() if not only or name in only}


def _specs() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, criterion in CRITERIA.items():
        text = HALF if criterion.source == "routed" else {"sparsity": "50%"}
        yield name, {**text, "criterion": name}
    for seed in (1, 2, 3):
        yield f"random:{seed}", {"sparsity": "50%", "criterion": f"random:{seed}"}
    for schedule in ("global", "measured"):
        yield f"ean {schedule}", {**HALF, "criterion": "ean", "schedule": schedule}
    search = SHIPPED_STATS / "searches" / "demo-ean.json"
    yield (
        "ean searched",
        {"criterion": "ean", "corpora": ("demo-code",), "schedule_file": search},
    )


@dataclass(frozen=True, eq=False)
class Bench:
    """The demo, its held-out texts, and where repairs are kept."""

    folder: Path
    tokens: int
    model: LoadedModel
    sides: Mapping[str, FullSide]  # corpus -> the original model on its texts

    def plan(self, **fields: Any) -> PruningPlan:
        """The plan of a spec."""
        spec = spec_of(**fields)
        study = Study(self.model.source, stats_store(self.folder), Place("demo"))
        made, _ = drain(study.make(spec))
        return fit_plan(made, self.model.source)

    def request(self, plan: PruningPlan, seed: int = 42) -> RepairRequest:
        """The repair of a plan on the blend."""
        return RepairRequest(
            model="demo",
            plan=plan.to_dict(),
            corpora=CORPORA,
            tokens=self.tokens,
            seed=seed,
            dtype="float32",
            stats_dir=self.folder,
        )

    def repaired(self, plan: PruningPlan, seed: int = 42) -> PruningPlan:
        """The plan, repaired."""
        record = drain(repair_run(self.request(plan, seed)))
        directories = stats_store(self.folder).directories
        return with_repair_files(replace(plan, repair=record.reference), directories)

    def losses(self, plan: PruningPlan | None, arm: Arm = nullcontext) -> dict[str, SampleValues]:
        """Corpus -> (samples,) loss increase, nats per token."""
        loaded, family = self.model.loaded, self.model.source.family
        candidates = MaskedCandidates(loaded, family)
        increases = {}
        for corpus, side in self.sides.items():

            def hidden_of(batch: SampleBatch, side: FullSide = side) -> Tensor:
                with arm():
                    return candidates.hidden(side.samples, plan, batch)

            result = drain(measure_candidate(side, MeasureSettings(("nll",)), hidden_of))
            sums = result.samples
            increase = sums["nll"].means - sums["full_nll"].means
            increases[corpus] = SampleValues(increase, sums["nll"].documents)
        return increases


def bench(folder: Path, tokens: int, samples: int) -> Bench:
    """Load the demo and run it on its held-out texts."""
    source = load_model_index("demo")
    request = EvaluateRequest(
        model="demo", corpora=CORPORA, samples=samples, dtype="float32", stats_dir=folder
    )
    draws = drain(drawn_corpora(request, source, stats_store(folder)))
    settings = run_settings(request, max(draw.sequences.longest for draw in draws))
    loaded = load_model(source, settings)
    candidates = MaskedCandidates(loaded, source.family)
    sides = {}
    for draw in draws:
        at = make_samples(draw.sequences, settings.batch_size, join())
        hidden_of = lambda batch: final_hidden(loaded, batch)  # noqa: E731
        sides[draw.sequences.corpus] = drain(full_side(candidates.head, at, hidden_of))
    new = Bench(folder, tokens, LoadedModel(source, loaded, ()), sides)
    plan = new.plan(**HALF, criterion="reap")
    _, _, sequences, fitting = drain(_prepare(new.request(plan)))
    batches = placed_batches(sequences, fitting.batch_size, join())
    return replace(new, model=replace(new.model, batches=batches))


@dataclass(frozen=True, eq=False)
class Comparison:
    """A table under way: a row per plan and per what is done to it."""

    bench: Bench
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        name: str,
        what: str,
        losses: Mapping[str, SampleValues],
        pruned: Mapping[str, SampleValues] | None = None,
    ) -> None:
        """A row; what it gives back of the loss `pruned` has an interval."""
        means = {corpus: float(loss.numbers.mean()) for corpus, loss in losses.items()}
        mean = float(np.mean(list(means.values())))
        row = {"plan": name, "what": what, **means, "mean": mean, "low": None, "high": None}
        if pruned:
            gains = [
                SampleValues(pruned[corpus].numbers - loss.numbers, loss.documents)
                for corpus, loss in losses.items()
            ]
            row["low"], row["high"] = interval_of(gains).tolist()
        self.rows.append(row)
        logger.info("%s", row)

    def add_both(self, name: str, plan: PruningPlan) -> Mapping[str, SampleValues]:
        """Rows of a plan before and after its repair; the loss before."""
        pruned = self.bench.losses(plan)
        self.add(name, "pruned", pruned)
        self.add(name, "repaired", self.bench.losses(self.bench.repaired(plan)), pruned)
        return pruned

    def add_rivals(
        self,
        name: str,
        plan: PruningPlan,
        pruned: Mapping[str, SampleValues],
        means: Mapping[int, Tensor],
    ) -> None:
        """Rows of what costs less than a repair; `means` are the mean outputs of experts."""
        model, losses = self.bench.model, self.bench.losses
        scalars = fitted_scalars(model, plan)
        by_scalars = losses(None, lambda: scaled(model, plan, scalars))
        self.add(name, "one scalar a layer", by_scalars, pruned)
        by_constants = losses(None, lambda: constants_for_pruned(model, plan, means))
        self.add(name, "constants for pruned experts", by_constants, pruned)


def main() -> None:
    """Print the table."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=24576)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument(
        "--only", action="append", default=[], help="A plan, such as reap; repeatable."
    )
    options = parser.parse_args()
    at = bench(options.folder, options.tokens, options.samples)
    table = Comparison(at)
    before: dict[str, Mapping[str, SampleValues]] = {}
    plans: dict[str, PruningPlan] = {}
    for name, fields in specs(options.only).items():
        try:
            plans[name] = at.plan(**fields)
        except CriterionError as error:  # some rank by one corpus alone
            logger.warning("%s: %s", name, error)
            continue
        before[name] = table.add_both(name, plans[name])
    means = mean_outputs(at.model)
    for name in [name for name in ("reap", "ean", "mone", "random:1") if name in plans]:
        table.add_rivals(name, plans[name], before[name], means)
    for name, seed in () if options.only else product(("reap", "ean"), (1, 2)):
        losses = at.losses(at.repaired(plans[name], seed))
        table.add(name, f"repaired, text of seed {seed}", losses, before[name])
    if not options.only:
        errors = drain(unexplained(at.model))
        kept = {
            layer: tuple(sorted(np.argsort(scores)[len(scores) // 2 :].tolist()))
            for layer, scores in errors.items()
        }
        table.add_both("unexplained", replace(plans["reap"], kept=kept))
    pd.DataFrame(table.rows).to_csv(sys.stdout, index=False, float_format="%.4f")


if __name__ == "__main__":
    main()
