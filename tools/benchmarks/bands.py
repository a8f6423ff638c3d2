"""How often the band of a predicted loss holds the loss of a fresh plan on texts nobody has read.

    OMP_NUM_THREADS=1 python -m tools.benchmarks.bands STATS_DIR

Plans are invented: in the order of each of ORDERS, random counts by layer at 25, 50 and 75%, from
nearly uniform to ragged. Each is measured on the part of the demo's held-out texts that no curve,
search or evaluation draws from, at most two samples of a document, and judged on a random half of
these documents, so that the draw of texts varies too. What was learned is what ships: curves and
evaluated plans; curves that do not ship are measured in STATS_DIR. What is there is not measured
again. Prints share, corpus -> plans, share of them inside, errors, half widths.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.calibration.loading import CalibrationSettings, load_tokenizer
from analysis.corpora.documents import Document, demo_document
from analysis.corpora.sampling import tokenize
from analysis.corpora.settings import Sampling
from analysis.corpora.sources import Source
from analysis.demo.held_out import benchmark_texts
from analysis.demo.listing import DEMO_CORPORA
from analysis.drain import drain
from analysis.files.shipped import DEMO_MODEL, SHIPPED_STATS
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.stats.store import stats_store
from app.console import out
from pruning.engine.run import Evaluations, run_evaluations
from pruning.measures.drawn_samples import DrawnSamples
from pruning.measures.result import SampleValues, document_places
from pruning.measures.sum_error import SumError, equal_documents
from pruning.plan.units import Removed, apportion
from pruning.planning.measured import Order, find_sensitivity, order_of
from pruning.planning.predicted import sum_error
from pruning.planning.ranking import Place
from pruning.records.evaluation import EvaluationStore
from pruning.records.sensitivity import SensitivityStore
from pruning.requests.evaluation import SensitivityRequest
from pruning.spec.spec import spec_of
from pruning.study import Study
from pruning.tasks.sensitivity import sensitivity_run

CORPORA = tuple(sorted(DEMO_CORPORA))  # on which losses are predicted and measured
CALIBRATED = tuple(name for name in CORPORA if DEMO_CORPORA[name].is_usual)
ORDERS: Mapping[str, Mapping[str, Any]] = {
    "ean": {"corpora": CALIBRATED},
    "heapr": {"corpora": CALIBRATED[:1], "granularity": "neuron"},
    "reap": {"corpora": CALIBRATED[:1]},
    "man": {"corpora": CALIBRATED},
    "frequency": {"corpora": CALIBRATED},
}
SHARES = (25, 50, 75)
SPREADS = (
    0.1,
    0.3,
    0.5,
    0.8,
    1.2,
)  # standard deviation of the log of what a layer loses; a plan each
SEQ_LEN = 256
SAMPLES = 64  # of a corpus, at most
CURVE_SAMPLES = 32
WINDOWS = 2  # samples of a document, at most
LEAST = 64  # tokens of a sample of running text
SEED = 1  # of plans; the constants of the bands were chosen on others


@cache
def demo() -> MoEModel:
    return load_model_index(DEMO_MODEL)


@cache
def unread(corpus: str) -> DrawnSamples:
    """Samples of the part for benchmarks, with the document of each."""
    tokenizer, texts = load_tokenizer(demo()), benchmark_texts(corpus)[:SAMPLES]
    samples: list[tuple[int, Document]] = []
    for number, text in enumerate(texts):
        if text.earlier is not None:
            samples.append((number, demo_document(text)))
            continue
        ids = tokenizer(text.whole)["input_ids"][: WINDOWS * SEQ_LEN]
        windows = [ids[start : start + SEQ_LEN] for start in range(0, len(ids), SEQ_LEN)]
        samples += [(number, Document(input_ids=tuple(w))) for w in windows if len(w) >= LEAST]
    numbers, documents = zip(*samples[:SAMPLES], strict=True)
    has_answers = texts[0].earlier is not None
    sequences = tokenize(
        Source(lambda _seed: iter(documents)),
        tokenizer if has_answers else None,
        Sampling(
            len(documents) * SEQ_LEN,
            SEQ_LEN,
            packing="pad",
            count="response" if has_answers else "all",
        ),
        corpus=corpus,
    )
    facts = {"seed": 0, "drawn": "the part for benchmarks", "skipped": 0, "seq_len": SEQ_LEN}
    facts |= sequences.prepared
    return DrawnSamples(replace(sequences, documents=numbers), facts)


def learned(name: str, stats_dir: Path, windows: int | None) -> tuple[Order, SumError]:
    """An order with its curves on every corpus, and how shipped plans say that they err."""
    spec = spec_of(criterion=name, **ORDERS[name], sparsity="50%", schedule="measured", cost="nll")
    store = stats_store(stats_dir)
    selection = Study(demo(), store, Place(DEMO_MODEL)).ranking(spec).without_budget
    known, evaluated = SensitivityStore([SHIPPED_STATS]), EvaluationStore([SHIPPED_STATS])
    curves = find_sensitivity(selection, spec, known)
    if curves is None or len(curves.curves) < len(CORPORA):
        drain(sensitivity_run(_curves_of(name, stats_dir, windows)))
        curves = find_sensitivity(selection, spec, SensitivityStore([stats_dir]))
    if curves is None:
        raise SystemExit(f"{name} has no curves")
    return order_of(selection, spec), sum_error(selection, curves, evaluated)


def _curves_of(name: str, stats_dir: Path, windows: int | None) -> SensitivityRequest:
    fields = dict(ORDERS[name])
    return SensitivityRequest(
        model=DEMO_MODEL,
        criterion=name,
        calibrated_on=fields.pop("corpora", ()),
        **fields,
        corpora=CORPORA,
        samples=CURVE_SAMPLES,
        windows_per_document=windows,
        cost="nll",
        dtype="float32",
        batch_size=CURVE_SAMPLES,
        stats_dir=stats_dir,
    )


def invented(order: Order, share: int, seed: int) -> Iterator[Removed]:
    """Random counts that remove a share of all."""
    rng, units = np.random.default_rng([seed, share]), order.units
    total = min(units.size * share // 100, units.totals[-1])
    total -= (total - units.totals[0]) % units.step
    for spread in SPREADS:
        weights = np.exp(spread * rng.standard_normal(len(units.sizes)))
        yield apportion(total, (1 + np.rint(1000 * weights).astype(int)).tolist(), units)


def measure(
    name: str, stats_dir: Path, seed: int = SEED, windows: int | None = None
) -> Iterator[dict[str, Any]]:
    """A row per fresh plan of an order and corpus, and one for the mean over corpora."""
    order, error = learned(name, stats_dir, windows)
    asked = {plan: share for share in SHARES for plan in invented(order, share, seed)}
    plans = [plan for plan in asked if plan not in error.known]
    work = Evaluations(
        demo(),
        [order.plan_of(plan) for plan in plans],
        [unread(corpus) for corpus in CORPORA],
        ("nll",),
        CalibrationSettings(seq_len=SEQ_LEN, dtype="float32", batch_size=SAMPLES),
        EvaluationStore([stats_dir / "fresh"]),
    )
    records = drain(run_evaluations(work))
    for number, plan in enumerate(plans):
        rng = np.random.default_rng([seed, number])
        losses, documents = dict[str, float](), dict[str, float]()
        for corpus, record in zip(CORPORA, records[number :: len(plans)], strict=True):
            losses[corpus], documents[corpus] = half_of(record.samples.change, rng)
        mean, bands = error.bands(np.array([plan]), documents)
        bands, losses = {**bands, "mean": mean}, {**losses, "mean": np.mean([*losses.values()])}
        for corpus, loss in losses.items():
            (median,), (low,), (high,) = bands[corpus]
            yield {
                "order": name,
                "share": asked[plan],
                "corpus": corpus,
                "inside": low <= loss <= high,
                "error": loss - median,
                "half width": (high - low) / 2,
                "loss": loss,
            }


def half_of(values: SampleValues, rng: np.random.Generator) -> tuple[float, float]:
    """The mean over the samples of a random half of documents, and the `equal_documents`."""
    places = document_places(values.documents, len(values.numbers))
    count = int(places.max()) + 1
    picked = np.isin(places, rng.permutation(count)[: count // 2])
    sizes = np.unique(places[picked], return_counts=True)[1]
    return float(values.numbers[picked].mean()), equal_documents(sizes)


def summary(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    grouped = rows.assign(off=rows["error"].abs()).groupby(by)
    return grouped.agg(
        plans=("inside", "size"),
        inside=("inside", "mean"),
        loss=("loss", "median"),
        off=("off", "median"),
        bias=("error", "median"),
        half_width=("half width", "median"),
    ).round(3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stats_dir", type=Path)
    parser.add_argument("--seed", type=int, default=SEED, help="of the plans")
    parser.add_argument("--windows", type=int, help="samples of a document that curves read")
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))
    args = parser.parse_args()
    for corpus in CORPORA:
        drawn = unread(corpus)
        number = len(drawn.sequences.rows)
        out.print(f"{corpus}: {number} unread samples of {drawn.num_documents} documents")
    rows = []
    for name in args.orders:
        rows += measure(name, args.stats_dir, args.seed, args.windows)
        out.print(summary(pd.DataFrame([row for row in rows if row["order"] == name]), ["corpus"]))
    table = pd.DataFrame(rows)
    for by in (["share", "corpus"], ["corpus"], ["order"]):
        out.print(summary(table, by).to_string())


if __name__ == "__main__":
    main()
