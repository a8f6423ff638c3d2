"""A recipe as the requests that the single commands make, and the request to search."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import Field, field_validator, model_validator

from analysis.corpora.spec import parse_corpus_weight
from analysis.stats.columns import groups_for, ordered
from pruning.plan.plan import PruningPlan
from pruning.requests.calibration import CalibrateRequest, check_blocks
from pruning.requests.evaluation import EvaluateRequest, SensitivityRequest
from pruning.requests.machine import Machine
from pruning.requests.model import ActionRequest, ExportRequest, WeightsRequest
from pruning.requests.plan import SpecRequest
from pruning.requests.recipe import Recipe
from pruning.requests.recipe_file import recipe_from_yaml
from pruning.requests.repair import RepairRequest
from pruning.spec import options
from pruning.spec.base import Kind, Request, command_line, option_words, validated


def machine_of(recipe: Recipe, asked: Machine) -> Machine:
    """Where a recipe runs: as asked, else as the recipe says."""
    section = recipe.calibrate
    return Machine(
        device=asked.device or section.device,
        batch_size=asked.batch_size or section.batch_size,
        stream_layers=asked.stream_layers or section.stream_layers,
        experts_at_once=asked.experts_at_once or section.experts_at_once,
        trust_remote_code=asked.trust_remote_code,
        stats_dir=asked.stats_dir,
    )


def calibrate_requests(recipe: Recipe, machine: Machine) -> list[CalibrateRequest]:
    """A calibration per corpus; none if nothing reads them."""
    if not recipe.plan.reads_text:
        return []
    ranking = recipe.plan.ranking
    read = ranking.rule.columns(ranking.gate)
    groups = ordered([*groups_for(read), *recipe.calibrate.groups])
    corpora = [part.corpus for part in recipe.plan.corpus_weights]
    return [
        _request(CalibrateRequest, recipe, machine, groups=groups, corpus=corpus)
        for corpus in corpora
    ]


# Request -> fields that mean another thing in the recipe, outside of the request's own section.
_OF_ITS_OWN: Final[Mapping[type[Request], tuple[str, ...]]] = {
    SensitivityRequest: ("count", "seed", "repair"),
    EvaluateRequest: (
        *("count", "hidden_states_dir", "repair"),
        *("seq_len", "seed", "answer_tokens"),
    ),
}


def _request(
    kind: type[Kind],
    recipe: Recipe,
    machine: Machine,
    section: Request | None = None,
    **more: Any,
) -> Kind:
    """A request of the values that the recipe shares with it.

    Those of its `section` and `more` come before those of the machine, the recipe and its
    calibration. What is None is left to the next of them, and then to the request.
    """
    own, values = _OF_ITS_OWN.get(kind, ()), dict[str, Any]()
    for part in (recipe.calibrate, recipe, machine_of(recipe, machine)):
        values |= {name: value for name, value in part if name not in own}
    for given in (section or (), more.items()):
        values |= {name: value for name, value in given if value is not None}
    known = kind.model_fields.keys() & values.keys()
    return validated(kind, {name: values[name] for name in known if values[name] is not None})


def other_corpora(recipe: Recipe, machine: Machine) -> list[CalibrateRequest]:
    """The corpora of search, repair and evaluation as calibrations, only to be opened."""
    lengths: dict[str, int | None] = {}
    if recipe.search:
        lengths[recipe.search.corpus] = recipe.seq_len
    if section := recipe.evaluate:
        lengths[section.corpus] = section.seq_len
    if measured := recipe.sensitivity:
        lengths |= dict.fromkeys(measured.corpus, recipe.seq_len)
    if fit := recipe.repair:
        named = (parse_corpus_weight(text).corpus for text in fit.corpora)
        lengths |= dict.fromkeys(named, fit.seq_len or recipe.seq_len)
    return [
        CalibrateRequest(
            model=recipe.model,
            revision=recipe.revision,
            corpus=corpus,
            seq_len=length,
            tokens=max(length, options.DEFAULT_TOKENS) if length else None,
            skip_bad_rows=recipe.skip_bad_rows,
            allow_test_set=recipe.allow_test_set,
            stats_dir=machine.stats_dir,
        )
        for corpus, length in lengths.items()
    ]


def weights_request(recipe: Recipe, machine: Machine) -> WeightsRequest | None:
    """The measurement of weights; None if the criterion does not read them.

    Norms of neurons are not stored: they are measured when needed.
    """
    plan = recipe.plan
    names_all = plan.by_neuron or plan.spread.kept_experts is not None
    if names_all or plan.ranking.rule.source != "weights":
        return None
    return WeightsRequest(model=recipe.model, revision=recipe.revision, stats_dir=machine.stats_dir)


def spec_request(recipe: Recipe, machine: Machine) -> SpecRequest:
    """The request of `moeprune plan`."""
    plan, measured = recipe.plan, recipe.sensitivity
    if measured and plan.spread.is_measured and not plan.spread.measured_on:
        spread = plan.spread.model_copy(update={"measured_on": measured.corpus})
        plan = plan.model_copy(update={"spread": spread})
    return SpecRequest(
        model=recipe.model, revision=recipe.revision, plan=plan, stats_dir=machine.stats_dir
    )


def sensitivity_request(recipe: Recipe, machine: Machine) -> SensitivityRequest | None:
    """The measurement of sensitivity; None if the recipe asks for none."""
    section, plan = recipe.sensitivity, recipe.plan
    if section is None:
        return None
    budget = {} if recipe.search else plan.budget.amounts
    if plan.by_neuron and (plan.budget.shrink or plan.budget.target_size):
        budget = {}  # bytes of neurons depend on padding
    for name, several in (("sparsity", "sparsities"), ("shrink", "shrink")):
        if name in budget:
            budget[several] = (budget.pop(name),)
    return _request(
        SensitivityRequest,
        recipe,
        machine,
        section,
        corpora=section.corpus,
        criterion=plan.ranking.criterion,
        granularity=plan.ranking.granularity,
        gate=plan.ranking.gate,
        calibrated_on=plan.ranking.corpora,
        refine=section.refine if budget else 0,
        cost=plan.spread.cost,
        across=plan.spread.across,
        target_dtype=plan.budget.target_dtype,
        limits=plan.limits,
        **budget,
    )


def export_request(
    recipe: Recipe, machine: Machine, text: str, plan: PruningPlan
) -> ExportRequest | None:
    """The export, with the recipe's text; None if the recipe asks for none.

    `plan` is one of the model that is exported.
    """
    if recipe.export is None:
        return None
    values = recipe.export.model_dump()
    widths = recipe.plan.budget.model_dump(include={"width_mode", "width_multiple_of"})
    if recipe.export.model:
        values |= {"plan_model": recipe.model, "plan_model_revision": recipe.revision}
    else:
        values |= {"model": recipe.model, "revision": recipe.revision}
    return validated(
        ExportRequest,
        {
            "plan": plan.to_dict(),
            "recipe": text,
            "stats_dir": machine.stats_dir,
            **values,
            **(widths if recipe.plan.by_neuron else {}),
        },
    )


def repair_request(recipe: Recipe, machine: Machine, plan: PruningPlan) -> RepairRequest | None:
    """The repair of a plan; None if the recipe asks for none."""
    section = recipe.repair
    if section is None:
        return None
    return _request(
        RepairRequest,
        recipe,
        machine,
        section,
        # By name, as plans record them, files would be looked for beside the recipe alone.
        corpora=section.corpora or recipe.plan.ranking.corpora,
        plan=plan.to_dict(),
    )


def evaluate_request(
    recipe: Recipe, machine: Machine, plans: Sequence[PruningPlan] = ()
) -> EvaluateRequest | None:
    """The evaluation of plans; None if the recipe asks for none."""
    section = recipe.evaluate
    if section is None:
        return None
    return _request(
        EvaluateRequest,
        recipe,
        machine,
        section,
        corpora=(section.corpus,),
        measures=section.fitness,
        plans=tuple(plan.to_dict() for plan in plans),
    )


class SearchRequest(ActionRequest, Machine):
    """A search for the allocation; `recipe` is the text of a recipe.

    `out` is the folder of plan and result; a search that was interrupted is resumed.
    """

    asked_by = "search"
    recipe: str = Field(min_length=1, max_length=1 << 20)
    out: options.SearchFolder

    @field_validator("recipe")
    @classmethod
    def _asks_for_a_search(cls, value: str) -> str:
        if recipe_from_yaml(value).search is None:
            raise ValueError("the recipe has no key search; it needs at least search: {corpus: C}")
        return value

    @model_validator(mode="after")
    def _blocks_are_of_layers(self) -> "SearchRequest":
        machine = self.machine
        check_blocks(machine.experts_at_once, stream_layers=machine.stream_layers)
        return self

    def parsed(self) -> Recipe:
        """The recipe."""
        return recipe_from_yaml(self.recipe)

    @property
    def machine(self) -> Machine:
        """Where it runs."""
        return machine_of(self.parsed(), self)

    def command(self, recipe: str = "recipe.yaml") -> str:
        """The equivalent command line; `recipe` names the file that holds the recipe."""
        return command_line(self.asked_by, recipe, *option_words(self))


def search_of_file(path: Path, out: Path, machine: Machine) -> SearchRequest:
    """The search of a recipe in a file."""
    return machine.into(SearchRequest, recipe=path.read_text(encoding="utf-8-sig"), out=out)
