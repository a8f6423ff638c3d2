"""How often the band of a predicted loss holds the loss of a fresh plan on texts nobody has read.

    OMP_NUM_THREADS=1 python -m tools.benchmarks.bands STATS_DIR

Plans are invented: random counts by layer at 25, 50 and 75%, in the order of several criteria. They
are measured on the half of the demo's held-out texts that no calibration, curve, search or
evaluation draws from, at most two windows a document; each plan is judged on a random half of these
documents, so that the draw of texts varies too. Curves that do not ship are measured in STATS_DIR
first. What is there is not measured again. Prints share x corpus -> plans, inside, errors.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from analysis.calibration.loading import CalibrationSettings, load_tokenizer
from analysis.corpora import Sampling, TokenSequences, tokenize
from analysis.corpora.documents import Document, demo_document
from analysis.demo.held_out import benchmark_texts
from analysis.drain import drain
from analysis.model import DEMO_MODEL, load_model_index
from analysis.stats.store import SHIPPED_STATS, stats_store
from pruning.allocation import Removed, apportion
from pruning.constraints import Room
from pruning.evaluate.drawing import DrawnSamples
from pruning.evaluate.record import EvaluationRecord, EvaluationStore
from pruning.evaluate.run import Evaluations, run_evaluations
from pruning.planning.measured import Order, find_sensitivity, order_of, without_budget
from pruning.planning.predicted import sum_error
from pruning.planning.ranking import select_measured
from pruning.requests.evaluation import SensitivityRequest
from pruning.requests.plan import SpecRequest
from pruning.sensitivity.error import SumError
from pruning.sensitivity.record import SensitivityStore
from pruning.spec import spec_of
from pruning.tasks.sensitivity import sensitivity_run

CORPORA = ("demo-code", "demo-math", "demo-prose")
SHARES = (25, 50, 75)
ORDERS = {
    "ean": {"corpora": CORPORA},
    "reap": {"corpora": CORPORA[:1]},
    "heapr": {"corpora": CORPORA[:1], "granularity": "neuron"},
    "man": {"corpora": CORPORA},
    "frequency": {"corpora": CORPORA},
    "aimer": {},
}
SEQ_LEN = 256
SAMPLES = 64
WINDOWS = 2  # of a document, at most
LEAST = 64  # tokens of a window
PLANS = 5  # of an order and share
SPREADS = (0.1, 0.3, 0.5, 0.8, 1.2)  # standard deviations of the log of what a layer loses


@cache
def demo():
    return load_model_index(DEMO_MODEL)


@cache
def fresh_samples(corpus: str) -> tuple[DrawnSamples, tuple[int, ...]]:
    """Samples of the texts of benchmarks, and the document of each."""
    tokenizer = load_tokenizer(demo())
    documents, numbers = [], []
    for number, text in enumerate(benchmark_texts(corpus)):
        if text.response:
            documents.append(demo_document(text.prompt, text.response))
            numbers.append(number)
            continue
        ids = tokenizer(text.prompt)["input_ids"]
        for start in range(0, WINDOWS * SEQ_LEN, SEQ_LEN):
            if len(window := ids[start : start + SEQ_LEN]) >= LEAST:
                documents.append(Document(input_ids=tuple(window)))
                numbers.append(number)
    documents, numbers = documents[:SAMPLES], tuple(numbers[:SAMPLES])
    order = _Ordered(documents)
    sampling = Sampling(
        len(documents) * SEQ_LEN,
        SEQ_LEN,
        packing="pad",
        count="response" if text.response else "all",
    )
    sequences = tokenize(order.source, tokenizer if text.response else None, sampling, corpus=corpus)
    sequences = replace(sequences, documents=numbers)
    facts = {"seed": 0, "drawn": "the half for benchmarks", "skipped": 0, "seq_len": SEQ_LEN}
    return DrawnSamples(sequences, facts | dict(sequences.prepared)), numbers


@dataclass
class _Ordered:
    documents: list

    @property
    def source(self):
        from analysis.corpora.sources import Source

        return Source(lambda _seed: iter(self.documents))


def measured_order(name: str, stats_dir: Path) -> tuple[Order, SumError]:
    """An order, and what the shipped evaluations say of its curves; measures missing curves."""
    fields = {"criterion": name, **ORDERS[name]}
    granularity = fields.get("granularity", "expert")
    request = SensitivityRequest(
        model=DEMO_MODEL,
        criterion=name,
        calibrated_on=ORDERS[name].get("corpora", ()),
        granularity=granularity,
        corpora=CORPORA,
        samples=32,
        cost="nll",
        dtype="float32",
        batch_size=32,
        stats_dir=stats_dir,
    )
    shipped = SensitivityStore([SHIPPED_STATS])
    spec = spec_of(**fields, sparsity="50%", schedule="measured", cost="nll")
    store = stats_store(stats_dir)
    selection = without_budget(
        drain(select_measured(SpecRequest(model=DEMO_MODEL, plan=spec), demo(), store))
    )
    curves = find_sensitivity(selection, spec, shipped)
    if curves is None or len(curves.curves) < len(CORPORA):
        drain(sensitivity_run(request))
        curves = find_sensitivity(selection, spec, SensitivityStore([stats_dir]))
    known = EvaluationStore([SHIPPED_STATS])
    error = sum_error(selection, curves, known, SensitivityStore(store.directories), ())
    return order_of(selection, spec), error


def invented(order: Order, share: int, seed: int, plans: int) -> Iterator[Removed]:
    """Random counts that remove a share of all."""
    rng = np.random.default_rng([seed, share])
    sizes = np.array(list(order.sizes.values()))
    rooms = order.rooms
    total = int(sizes.sum()) * share // 100
    total = min(total, sum(room.most for room in rooms))
    total -= (total - sum(room.least for room in rooms)) % rooms[0].step
    for number in range(plans):
        spread = SPREADS[number % len(SPREADS)]
        weights = 1 + np.round(1000 * np.exp(spread * rng.standard_normal(len(rooms)))).astype(int)
        yield apportion(total, weights.tolist(), rooms)


def measure(stats_dir: Path, seed: int, plans: int):
    out = {}
    for name in ORDERS:
        order, error = measured_order(name, stats_dir)
        print(name, "curves", [(c.corpus, c.samples) for c in error.curves.curves], "known", len(error.known), flush=True)
        invent = {s: [r for r in dict.fromkeys(invented(order, s, seed, plans)) if r not in error.known] for s in SHARES}
        every = [r for s in SHARES for r in invent[s]]
        made = [order.plan_of(r) for r in every]
        draws = [fresh_samples(c)[0] for c in CORPORA]
        work = Evaluations(
            demo(), made, draws, ("nll",), CalibrationSettings(seq_len=SEQ_LEN, dtype="float32", batch_size=64),
            EvaluationStore([stats_dir / "fresh"]),
        )
        import time
        t = time.time()
        records = drain(run_evaluations(work))
        print("  ", len(made), "plans", time.time() - t, flush=True)
        n = len(every)
        for i, c in enumerate(CORPORA):
            for r, rec in zip(every, records[i * n : (i + 1) * n]):
                out[name, r, c] = (rec.samples.means - rec.samples.full_means, rec.samples.tokens)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stats_dir", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plans", type=int, default=PLANS)
    args = parser.parse_args()
    for c in CORPORA:
        d, n = fresh_samples(c)
        print(c, len(n), "samples", len(set(n)), "documents", d.sequences.num_tokens)
    out = measure(args.stats_dir, args.seed, args.plans)
    import pickle
    with open(args.stats_dir / f"out-{args.seed}.pkl", "wb") as f:
        pickle.dump({"losses": out, "documents": {c: fresh_samples(c)[1] for c in CORPORA}}, f)


if __name__ == "__main__":
    main()
