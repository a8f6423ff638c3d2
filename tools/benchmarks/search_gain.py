"""What searches gained: ESAP of their plans on samples that the search has not seen.

Arguments: folders of searches on the demo (`moeprune search`). The samples follow, in the seeded
order, those that the searches were made on.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from analysis.calibration.loading import CalibrationSettings, load_model, load_tokenizer
from analysis.corpora.sequences import TokenSequences
from analysis.corpora.streams import open_corpus
from analysis.drain import drain
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from pruning.engine.candidate import MeasureSettings, run_candidate
from pruning.engine.full_side import run_full
from pruning.measures.drawing import draw
from pruning.measures.sample_settings import SampleSettings
from pruning.measures.samples import make_samples
from pruning.plan.plan import PruningPlan
from pruning.plan.plan_file import load_plan
from pruning.search.store import load_search

SAMPLES = 128


def unseen(model: MoEModel, corpus: str, seen: int, samples: int = SAMPLES) -> TokenSequences:
    """Samples behind the first `seen` of a corpus."""
    wanted = SampleSettings(samples=seen + samples)
    drawn = draw(corpus, open_corpus(corpus), [], wanted, lambda: load_tokenizer(model))
    return drawn.sequences.picked(range(seen, len(drawn.sequences.rows)))


def esap_of(
    model: MoEModel, sequences: TokenSequences, plans: Sequence[PruningPlan]
) -> list[tuple[float, float, float]]:
    """Mean and 95% interval by documents of each plan."""
    settings = CalibrationSettings(seq_len=sequences.longest, dtype="float32", device="cpu")
    loaded = load_model(model, settings)
    full = drain(run_full(loaded, make_samples(sequences, 16)))
    found = []
    for plan in plans:
        result = drain(run_candidate(loaded, model.family, plan, full, MeasureSettings(("esap",))))
        metric = result.metrics["esap"]
        found.append((metric.mean, metric.low, metric.high))
    return found


def main(folders: list[Path]) -> None:
    """Print ESAP on the search samples and on others, of uniform and of what was found."""
    torch.set_num_threads(1)
    model = load_model_index("demo")
    for folder in folders:
        result = load_search(folder / "search.json")
        uniform = next(entry for entry in result.entries if entry.origin == "uniform")
        best_plan = load_plan(folder / "plan.json", model=model)
        evenly = load_plan(folder / "uniform.json", model=model)
        corpus = result.header["corpus"]
        sequences = unseen(model, corpus["name"], corpus["samples"])
        values = esap_of(model, sequences, [evenly, best_plan])
        print(
            f"{folder}: generation {len(result.generations) - 1}, {len(result.entries)} "
            f"candidates, {result.cost['whole_layers'] / result.cost['layers']:.2f}x fewer layers"
        )
        for name, entry, value in zip(
            ("uniform", "best"), (uniform, result.best_entry), values, strict=True
        ):
            print(
                f"  {name:8} removed {entry.removed}: search samples {entry.fitness:.4f}, "
                f"{len(sequences.rows)} others {value[0]:.4f} [{value[1]:.4f}, {value[2]:.4f}]"
            )


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
