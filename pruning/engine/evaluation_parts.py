"""What evaluations cost before they run: the parts of their progress."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from analysis.model.layer_costs import LayerCosts, layer_costs, logits_cost
from analysis.model.moe_model import MoEModel
from analysis.progress import Costs, Parts, Progress, cost
from pruning.engine.speculative import Decoding
from pruning.measures.drawn_samples import DrawnSamples
from pruning.measures.result import ACCEPTANCE, RIGHT
from pruning.measures.samples import Samples

Result = TypeVar("Result")
Steps = Generator[Progress, None, Result]
# Phases of a candidate.
EVALUATING: Final = "evaluating"
DECODING: Final = "decoding"
ANSWERING: Final = "writing answers"
ORIGINAL: Final = "original model"  # where in the phase
_LOADING, _LAYERS = "loading the model", "layers"


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationParts:
    """The parts of evaluations: the model whole or by layers, then each corpus and plan."""

    whole: Parts
    candidates: Mapping[tuple[int, int], Parts]  # by corpus and number of the plan

    @classmethod
    def of(
        cls,
        model: MoEModel,
        draws: Sequence[DrawnSamples],
        samples: Sequence[Samples],
        missing: Sequence[Sequence[Sequence[str]]],
        *,
        stream_layers: bool,
    ) -> "EvaluationParts":
        """`missing` are measures by corpus and plan; layers that are streamed run in one pass."""
        costs, trunk = layer_costs(model), range(model.depth)
        parts: dict[str, Costs] = {}
        candidates = {}
        passes = 0.0  # cost of all layers that are streamed
        for corpus, row in enumerate(missing):
            texts = samples[corpus]
            running = costs.running(texts.sequences.num_tokens, *trunk)
            once = {} if stream_layers else {"multiply": running}
            head = {"compare": logits_cost(model, int(texts.num_scored.sum()))}
            parts[_original(corpus)] = once if any(row) else {}
            passes += running * (any(row) + sum(map(bool, row)))
            asks_first = True
            for plan, lacks in enumerate(row):
                phases: dict[str, Costs] = {EVALUATING: once | head} if lacks else {}
                phases |= _writing(costs, draws[corpus], lacks, first=asks_first)
                asks_first = asks_first and RIGHT not in lacks
                candidates[corpus, plan] = Parts(phases)
                parts[_plan(corpus, plan)] = candidates[corpus, plan].whole.total
        first: dict[str, Costs] = {_LOADING: {"read": costs.reading(*costs.num_bytes)}}
        if stream_layers:
            first = {_LAYERS: {"read": costs.reading(*trunk), "multiply": passes}}
        return cls(Parts(first | parts), candidates)

    def loading(self, num_evaluations: int) -> Steps[None]:
        """The step before the model is loaded."""
        yield Progress(_LOADING, 0, num_evaluations, "evaluations", whole=self.whole.whole)

    def loaded(self) -> None:
        """The whole model is loaded."""
        self.whole.end(_LOADING)

    def layers(self, steps: Steps[Result]) -> Steps[Result]:
        """Steps of the pass through layers that are streamed."""
        return self.whole.run(_LAYERS, steps)

    def original(self, corpus: int, steps: Steps[Result]) -> Steps[Result]:
        """Steps of the original model on a corpus."""
        return self.whole.run(_original(corpus), steps)

    def plan(self, corpus: int, plan: int, steps: Steps[Result]) -> Steps[Result]:
        """Steps of a plan on a corpus."""
        return self.whole.run(_plan(corpus, plan), self.candidates[corpus, plan].by_phase(steps))


def _original(corpus: int) -> str:
    return f"original {corpus}"


def _plan(corpus: int, plan: int) -> str:
    return f"plan {corpus} {plan}"


def _writing(
    costs: LayerCosts, draw: DrawnSamples, lacks: Sequence[str], *, first: bool
) -> dict[str, Costs]:
    """What texts cost that a plan writes, by phase; the first one's have the original's answers."""
    token = sum(costs.active.values())
    phases: dict[str, Costs] = {}
    if ACCEPTANCE in lacks:
        tokens = len(draw.sequences.rows) * Decoding().new_tokens
        phases[DECODING] = {"decode": cost("write text", tokens * token)}
    if RIGHT in lacks and draw.questions:
        tokens = len(draw.questions) * draw.questions.settings.answer_tokens
        phases[ANSWERING] = {"answer": cost("write text", tokens * token)}
        if first:
            phases[f"{ANSWERING} {ORIGINAL}"] = phases[ANSWERING]
    return phases
