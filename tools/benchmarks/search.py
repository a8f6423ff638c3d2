"""ESAP search on the demo against whole forwards with the logits of every position.

Same seeds, samples and candidates. The plain way runs each candidate through the whole model and
takes softmax and overlap at every position; it keeps the original model's logits (arXiv:2603.06003,
Algorithm 1, line 3), or runs the original model again each time, which is what there is memory for
with a large vocabulary.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from analysis.calibration.distributed import Processes
from analysis.calibration.feed import model_inputs
from analysis.drain import drain
from pruning.engine.masking import masked
from pruning.measurements.table import Measurements
from pruning.requests.recipe_steps import SearchRequest
from pruning.search.fitness import RunFitness, masked_fitness
from pruning.search.run import search
from pruning.search.scores import BlockFitness
from pruning.search.sitting import make_fitness
from pruning.tasks.search import problem_of

RECIPE = """
model: demo
corpora: [demo-code]
tokens: 65536
dtype: float32
criterion: frequency
budget: {sparsity: 50%}
search: {corpus: demo-math, samples: 32, population: 16, generations: GENERATIONS}
"""


class Plain:
    """Whole forwards, logits and overlap of every position, mean over those of the answer."""

    def __init__(self, inner: RunFitness, *, keeps_logits: bool) -> None:
        self._inner = inner
        self._subject = inner.runs.subject
        self._logits: dict[int, torch.Tensor] | None = {} if keeps_logits else None
        self.num_blocks, self.num_layers = inner.num_blocks, inner.num_layers
        self.ahead, self.open = 0, inner.open

    def begin(self, removed):
        """Nothing: each runs when it is measured."""

    def prepare(self, candidates):
        """Nothing: each is measured by itself."""
        yield from ()
        return 0.0

    def block(self, removed, number):
        subject, batch = self._subject, self._inner.runs.batches[number]
        inputs = model_inputs(batch.tokens, torch.device("cpu"))
        with torch.no_grad():
            p_BTV = self._full(number, inputs)
            with masked(subject.loaded, subject.family, subject.plan_of(removed)):
                logits_BTV = subject.loaded(**inputs, use_cache=False).logits
            q_BTV = logits_BTV.float().softmax(-1)
            overlap_BT = torch.minimum(p_BTV, q_BTV).sum(-1, dtype=torch.float64)
        scored_BT = torch.from_numpy(batch.scored)
        sums = (overlap_BT * scored_BT).sum(-1)
        return BlockFitness(sums.numpy(), batch.counts, self.num_layers)

    def _full(self, number, inputs):
        if self._logits is None:
            return self._subject.loaded(**inputs, use_cache=False).logits.float().softmax(-1)
        if number not in self._logits:
            self._logits[number] = self._subject.loaded(**inputs, use_cache=False).logits
        return self._logits[number].float().softmax(-1)

    def hold(self, candidates):
        pass


def main(generations: int = 3) -> None:
    """Print layer evaluations, processor time and agreement of the ways."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        request = SearchRequest(
            recipe=RECIPE.replace("GENERATIONS", str(generations)),
            out=Path(folder) / "out",
            stats_dir=Path(folder),
            batch_size=16,
        )
        problem = drain(problem_of(request))
        ours = drain(make_fitness(problem, Path(), Processes()))
        subject, settings = ours.runs.subject, problem.task.settings
        ways = {
            "reuse": ours,
            "no reuse": masked_fitness(subject, "esap", settings.seed, 0),
            "whole forwards, full logits kept": Plain(ours, keeps_logits=True),
            "whole forwards, original model again": Plain(ours, keeps_logits=False),
        }
        outcomes, seconds = {}, {}
        for name, fitness in ways.items():
            # A table for each way, or it would take over what the others measured.
            table = Measurements([Path(folder) / f"way-{len(outcomes)}"])
            scores = replace(problem, table=table).scores(Processes())
            started = time.process_time()
            outcomes[name] = drain(search(problem.task, fitness, scores, lambda _: None))
            seconds[name] = time.process_time() - started
    report(outcomes, seconds)


def report(outcomes, seconds) -> None:
    """One line a way."""
    own = outcomes["reuse"]
    for name, outcome in outcomes.items():
        same = outcome.candidates == own.candidates
        pairs = zip(outcome.scores.values(), own.scores.values(), strict=True) if same else ()
        apart = max((np.abs(a.samples - b.samples).max() for a, b in pairs), default=np.nan)
        print(
            f"{name:34} {len(outcome.scores)} candidates, {outcome.layers} layers "
            f"({outcome.layers / own.layers:.2f}x), {seconds[name]:.1f} s "
            f"({seconds[name] / seconds['reuse']:.2f}x), best {outcome.best.removed}, "
            f"largest difference {apart:.1e}"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
