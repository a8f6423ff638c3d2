"""What evaluations cost before they run: the parts of their progress."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from analysis.model.layer_costs import ENDS, LayerCosts, layer_costs, logits_cost
from analysis.model.moe_model import MoEModel
from analysis.progress import LOADING, RUNNING_ORIGINAL, Costs, Parts, Progress, cost
from pruning.engine.answering import ANSWERING, ORIGINAL
from pruning.engine.candidate import EVALUATING
from pruning.engine.speculative import DECODING, Decoding
from pruning.measures.drawn_samples import DrawnSamples
from pruning.measures.result import ACCEPTANCE, RIGHT
from pruning.measures.samples import Samples

Result = TypeVar("Result")
Steps = Generator[Progress, None, Result]
_LAYERS: Final = "layers"


@dataclass(frozen=True, slots=True)
class Missing:
    """What is missing of a plan on a corpus."""

    measures: Sequence[str]
    reads_text: bool  # or questions alone


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
        missing: Sequence[Sequence["Missing"]],
        *,
        stream_layers: bool,
    ) -> "EvaluationParts":
        """`missing` is by corpus and plan; layers that are streamed run in one pass."""
        costs, trunk = layer_costs(model), range(model.depth)
        parts: dict[str, Costs] = {}
        candidates = {}
        passes = 0.0  # cost of all layers that are streamed
        for corpus, row in enumerate(missing):
            texts = samples[corpus]
            running = costs.running(texts.sequences.num_tokens, *trunk)
            once = {} if stream_layers else {"multiply": running}
            head = {"compare": logits_cost(model, int(texts.num_scored.sum()))}
            if any(lacks.reads_text for lacks in row):
                parts[_original(corpus)] = once
            running_plans = sum(bool(lacks.measures) for lacks in row)
            passes += running * (running_plans + (running_plans > 0))
            asks_first = True
            for plan, lacks in enumerate(row):
                phases: dict[str, Costs] = {EVALUATING: once | head} if lacks.reads_text else {}
                phases |= _writing(costs, draws[corpus], lacks.measures, first=asks_first)
                asks_first = asks_first and RIGHT not in lacks.measures
                candidates[corpus, plan] = Parts(phases)
                parts[_plan(corpus, plan)] = candidates[corpus, plan].whole.total
        first: dict[str, Costs] = {LOADING: {"read": costs.reading(*costs.num_bytes)}}
        if stream_layers:
            first = {_LAYERS: {"read": costs.reading(*trunk, ENDS), "multiply": passes}}
        return cls(Parts(first | parts), candidates)

    def loading(self, num_evaluations: int) -> Steps[None]:
        """The step before the model is loaded."""
        yield Progress(LOADING, 0, num_evaluations, "evaluations", whole=self.whole.whole)

    def loaded(self) -> None:
        """The whole model is loaded."""
        self.whole.finish(LOADING)

    def layers(self, steps: Steps[Result]) -> Steps[Result]:
        """Steps of the pass through layers that are streamed."""
        return self.whole.run(_LAYERS, steps)

    def original(self, corpus: int, steps: Steps[Result]) -> Steps[Result]:
        """Steps of the original model on a corpus."""
        name = _original(corpus)
        phases = Parts({RUNNING_ORIGINAL: self.whole.costs(name)})
        return self.whole.run(name, phases.by_phase(steps))

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
        phases[DECODING] = {"decode": cost("decode", tokens * token)}
    if RIGHT in lacks and draw.questions:
        tokens = len(draw.questions) * draw.questions.settings.answer_tokens
        phases[ANSWERING] = {"answer": cost("answer", tokens * token)}
        if first:
            phases[f"{ANSWERING} {ORIGINAL}"] = phases[ANSWERING]
    return phases
