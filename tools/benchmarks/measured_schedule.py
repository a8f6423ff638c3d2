"""The measured schedule against EvoESAP on the demo, on samples that chose nothing.

For each criterion, sparsity and seed: ESAP of uniform, of the curves' plan, of it refined once and
as long as that helps, of EvoESAP at as many layer evaluations, at its default, and seeded with the
measured plans. Then how well the curves predict 30 random plans. A seed decides the samples and the
evolution. What is there is not measured again: run it again to resume, or with more criteria,
sparsities, seeds or arms.

    python -m tools.benchmarks.measured_schedule OUT --criterion reap --sparsity 50% --seed 1
"""

import argparse
import json
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from analysis.calibration.distributed import Processes
from analysis.calibration.loading import CalibrationSettings, load_model, load_tokenizer
from analysis.corpora.sequences import TokenSequences
from analysis.corpora.streams import open_corpus
from analysis.drain import drain
from analysis.model.opening import load_model_index
from analysis.progress import Progress
from analysis.stats.store import stats_store
from pruning.engine.candidate import MeasureSettings
from pruning.measurements.block import SampleSet
from pruning.measurements.table import Measurements
from pruning.measures.curves import Curves, Sensitivity, curves_of
from pruning.measures.drawing import draw
from pruning.measures.drawn_samples import DrawnSamples
from pruning.measures.points import MEASURES, curve_points, whole_point
from pruning.measures.sample_settings import SampleSettings
from pruning.measures.samples import make_samples
from pruning.plan.budget import sparsity_budget
from pruning.plan.units import Removed, Units, apportion, expert_units
from pruning.planning.measured import Order, order_of
from pruning.records.sensitivity import SensitivityRecord, SensitivityStore
from pruning.requests.plan import SpecRequest
from pruning.requests.search_settings import SearchSettings
from pruning.schedules import PATTERNS
from pruning.schedules.spreads import pattern_weights
from pruning.search.fitness import MaskedRuns, Subject, masked_fitness, subject_of
from pruning.search.run import Task, search
from pruning.search.scores import Scores
from pruning.search.sensitivity import Aim, Measuring, measure_curves, refine
from pruning.search.space import Space
from pruning.spec.spec import spec_of
from pruning.study import Study

CRITERIA = ("reap", "frequency", "ean", "damage", "heapr")
SPARSITIES = ("25%", "50%", "75%")
BATCH = 16
RANDOM_PLANS = 30
PARTS = 32  # of a layer: what EvoESAP moves at a time, of neurons as of experts


@dataclass(frozen=True)
class Trial:
    """One criterion, sparsity and seed."""

    out: Path
    criterion: str
    sparsity: str
    seed: int
    samples: int  # that choose
    held_out: int  # that judge

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.criterion}-{self.sparsity}-{self.seed}"

    @cached_property
    def model(self) -> Any:
        """The demo."""
        return load_model_index("demo")

    @cached_property
    def loaded(self) -> Any:
        """Its weights."""
        return load_model(self.model, CalibrationSettings(seq_len=256, dtype="float32"))

    @cached_property
    def order(self) -> Order:
        """The order of the criterion on demo-code."""
        asked = {"criterion": self.criterion, "corpora": ("demo-code",), "sparsity": "0"}
        if self.criterion == "heapr":
            asked |= {"granularity": "neuron", "schedule": "measured"}
        spec = spec_of(**asked)
        request = SpecRequest(model="demo", plan=spec)
        return order_of(
            drain(Study.of(request, self.model, stats_store()).rank(request.plan)), spec
        )

    @cached_property
    def drawn(self) -> DrawnSamples:
        """Samples of demo-math, first those that choose."""
        wanted = SampleSettings(self.samples + self.held_out, seed=self.seed)
        source = open_corpus("demo-math")
        return draw("demo-math", source, [], wanted, lambda: load_tokenizer(self.model))

    def subject(self, rows: slice) -> Subject:
        """The model with some of the samples."""
        samples = make_samples(part_of(self.drawn.sequences, rows), BATCH)
        return drain(subject_of(self.model, self.loaded, samples, self.order.plan_of))

    @cached_property
    def choosing(self) -> Subject:
        """With the samples that choose."""
        return self.subject(slice(0, self.samples))

    @cached_property
    def judging(self) -> MaskedRuns:
        """With those that judge."""
        subject = self.subject(slice(self.samples, None))
        return MaskedRuns(subject, MeasureSettings(("esap",)), 0)

    def judged(self, removed: Removed) -> float:
        """ESAP of an allocation on samples that chose nothing."""
        runs = self.judging
        values = [runs.run(removed, number)[0]["esap"].means for number in range(len(runs.batches))]
        return float(np.concatenate(values).mean())

    @cached_property
    def work(self) -> Measuring:
        """The points of its order on the samples that choose."""
        store = SensitivityStore([self.out / self.name])
        record = SensitivityRecord.new(
            self.model, self.order.ref, self.order.sizes, self.drawn, "float32"
        )
        samples, draw = self.choosing.full.samples, self.drawn
        where = SampleSet(
            draw.sequences.corpus, samples.sequences.digest, "float32", draw.facts["seed"]
        )

        def load() -> Generator[Progress, None, MaskedRuns]:
            yield from ()
            return MaskedRuns(self.choosing, MeasureSettings(MEASURES))

        plan_of = self.order.plan_of
        return Measuring(store, store.find(record), samples, where, plan_of, load)

    @cached_property
    def space(self) -> Space:
        """What EvoESAP searches; neurons in steps of 1/32 of a layer, as experts on the demo."""
        return Space(in_parts(self.order.units, PARTS), self.total)

    def layers_run(self) -> float:
        """Layer evaluations of the measurements so far, each on all samples that choose."""
        return self.work.layers / len(self.work.batches)

    def curves(self) -> Curves:
        """All that is known on the samples that choose, the curves measured."""
        drain(measure_curves(self.work, curve_points(self.order.units, 8)))
        found = curves_of(self.work.points, len(self.order.units.sizes), "esap", self.work.samples)
        if found is None:
            raise ValueError("the curves are not measured")
        return found

    @cached_property
    def total(self) -> int:
        """The budget, the same share of every layer."""
        if self.criterion != "heapr":
            return sparsity_budget(expert_units(self.model.layers), self.sparsity).total
        share = int(self.sparsity.rstrip("%")) / 100
        return sum(int(size * share) for size in self.order.units.sizes)

    @cached_property
    def even(self) -> Removed:
        """Uniform."""
        layers = len(self.order.units.sizes)
        return (self.total // layers,) * layers


def in_parts(units: Units, parts: int) -> Units:
    """The same in steps of so many parts of the smallest row; bounds are rounded to these."""
    step = max(min(units.sizes) // parts // units.step, 1) * units.step
    ends = zip(units.least, units.most, strict=True)
    return replace(
        units, step=step, most=tuple(most - (most - least) % step for least, most in ends)
    )


def part_of(sequences: TokenSequences, rows: slice) -> TokenSequences:
    """Some of the sequences."""
    return sequences.picked(range(len(sequences.rows))[rows])


def scores_of(trial: Trial, kind: str) -> Scores:
    """The scores of a search, in a folder of its own."""
    return Scores(
        table=Measurements([trial.out / f"{trial.name}-{kind}"]),
        model=trial.model.identity,
        plan_of=trial.order.plan_of,
        sizes=trial.space.units.sizes,
        sequences=trial.choosing.full.samples.sequences,
        measure="esap",
        dtype="float32",
        seed=trial.seed,
        made={"batch_size": BATCH, "device": "cpu"},
        processes=Processes(),
    )


def found_by(trial: Trial, scores: Scores, limit: float) -> tuple[Removed, float, float]:
    """The best of a search within layer evaluations, its fitness, and those it took."""
    spent, found = 0.0, dict[Removed, float]()
    for removed, score in scores.known.items():
        spent += score.layers / len(trial.work.batches)
        if spent > limit:
            break
        found[removed] = score.fitness
    best = max(found, key=lambda removed: found[removed])
    return best, found[best], min(spent, limit)


def evolved(trial: Trial, limit: float, starts: dict[str, Removed] | None = None) -> dict[str, Any]:
    """EvoESAP until so many layer evaluations: from the paper's start, and `starts` besides."""
    kind = "plain" if starts is None else "seeded"
    units = trial.space.units
    seeds = {"uniform": trial.even}
    seeds |= {
        name: apportion(trial.total, pattern_weights(name, len(units.sizes)), units)
        for name in PATTERNS
    }
    task = Task(trial.space, seeds | (starts or {}), SearchSettings(seed=trial.seed))
    fitness = masked_fitness(trial.choosing, "esap", trial.seed)
    batches = len(trial.work.batches)
    scores = scores_of(trial, kind)
    running = search(task, fitness, scores, lambda outcome: None)
    for _ in running:
        if sum(score.layers for score in scores.known.values()) / batches >= limit:
            break
    running.close()
    removed, score, spent = found_by(trial, scores, limit)
    return {"removed": removed, "chosen": score, "layers": spent}


def cheap(trial: Trial) -> Iterator[dict[str, Any]]:
    """Uniform, the curves' plan, refinements, and EvoESAP at as many layer evaluations."""
    shutil.rmtree(trial.out / trial.name, ignore_errors=True)  # of an interrupted trial
    yield {"arm": "uniform", "removed": trial.even, "layers": 0.0}
    curves = trial.curves()
    for rounds, arm in ((0, "measured"), (1, "measured + 1"), (8, "measured + all")):
        aim = Aim(trial.order.units, trial.total, rounds)
        first = aim.over([curves]).solution(aim.units, aim.total)
        found = drain(refine([trial.work], first, aim))
        last, spent = found[-1], trial.layers_run()
        yield {
            "arm": arm,
            "removed": last.removed,
            "layers": spent,
            "predicted": float(np.exp(-last.predicted)),
            "chosen": float(np.exp(-last.cost)),
            "rounds": len(found) - 1,
        }
        if rounds < 2:
            yield {"arm": f"evolved as {arm}", **evolved(trial, spent)}
    trial.work.finish()


def predicting(trial: Trial) -> Iterator[dict[str, Any]]:
    """How well the curves predict random plans of a budget, on the same samples and on others."""
    rng = np.random.default_rng(trial.seed)
    plans = [trial.space.draw(rng) for _ in range(RANDOM_PLANS)]
    drain(trial.work.measure([whole_point(plan) for plan in plans]))
    curves = trial.curves()
    trial.work.finish()
    predicted = np.exp([-curves.predicted(plan) for plan in plans])
    measured = np.exp([-curves.measured[plan] for plan in plans])
    judged = np.array([trial.judged(plan) for plan in plans])
    yield {
        "arm": "random plans",
        "spearman": float(spearmanr(predicted, measured).statistic),
        "spearman_held_out": float(spearmanr(predicted, judged).statistic),
        "error": float(np.abs(predicted - measured).mean()),
        "error_held_out": float(np.abs(predicted - judged).mean()),
        "least_held_out": float(judged.min()),
        "most_held_out": float(judged.max()),
    }


def default(trial: Trial) -> Iterator[dict[str, Any]]:
    """EvoESAP at its default."""
    yield {"arm": "evolved", **evolved(trial, np.inf)}


def seeded(trial: Trial) -> Iterator[dict[str, Any]]:
    """EvoESAP at its default, from the measured plans; after `cheap`."""
    starts = Sensitivity((trial.curves(),)).starts(trial.space.units, trial.total)
    yield {"arm": "evolved, seeded", **evolved(trial, np.inf, starts)}


ARMS: Mapping[str, Callable[[Trial], Iterator[dict[str, Any]]]] = {
    "cheap": cheap,
    "seeded": seeded,
    "default": default,
    "random": predicting,
}


def results(trial: Trial, arm: str) -> list[dict[str, Any]]:
    """The results of an arm; kept in a file, and judged."""
    path = trial.out / f"{trial.name}-{arm}.json"
    if not path.is_file():
        found = list(ARMS[arm](trial))
        for result in found:
            if "removed" in result:
                result["held_out"] = trial.judged(tuple(result["removed"]))
            result |= {"criterion": trial.criterion, "sparsity": trial.sparsity, "seed": trial.seed}
        path.write_text(json.dumps(found, indent=1))
    known: list[dict[str, Any]] = json.loads(path.read_text())
    return known


def main() -> None:
    """Run what is missing, and print a line for each result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--criterion", action="append", choices=CRITERIA)
    parser.add_argument("--sparsity", action="append", choices=SPARSITIES)
    parser.add_argument("--seed", action="append", type=int)
    parser.add_argument("--arm", action="append", choices=list(ARMS))
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--held-out", type=int, default=64)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    chosen = (asked.criterion or CRITERIA, asked.sparsity or SPARSITIES, asked.seed or (1, 2, 3))
    for arm in asked.arm or ARMS:
        for criterion, sparsity, seed in product(*chosen):
            trial = Trial(asked.out, criterion, sparsity, seed, asked.samples, asked.held_out)
            for result in results(trial, arm):
                print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
