"""The request for a plan of a model: its spec, and where the statistics are."""

from typing import Annotated

from pydantic import model_validator

from analysis.errors import PlanError
from pruning.option import Option
from pruning.requests.model import ModelRequest
from pruning.schedules import get_schedule
from pruning.spec import options
from pruning.spec.base import flags_of, flat_fields
from pruning.spec.spec import PlanSpec, RankingSpec, given

# What chooses experts, and not how many.
_OF_CHOICE = ("criterion", "corpora", "runs", "gate", "granularity")


class SpecRequest(ModelRequest):
    """A plan of a model; with `config_only` nothing ranks, so only counts and sizes."""

    asked_by = "plan"
    writes = "plan.json"
    plan: PlanSpec
    config_only: Annotated[
        options.ConfigOnly,
        Option(
            "Only show counts and sizes, from config.json and the headers of a hub model; needs no "
            "weights, writes no plan."
        ),
    ] = False
    stats_dir: options.StatsDir | None = None

    @model_validator(mode="after")
    def _says_what_ranks(self) -> "SpecRequest":
        if self.config_only:
            self._check_counts()
        elif self.plan.spread.kept_experts is None and not self.plan.keeps_all:
            check_criterion(self.plan.ranking, self.asked_by)
        return self

    def _check_counts(self) -> None:
        fields = flat_fields(type(self))
        flags = [flags_of(name, fields[name])[0] for name in given(self.plan.ranking, _OF_CHOICE)]
        if self.stats_dir is not None:
            flags.append("--stats-dir")
        if self.plan.limits.keep_super:
            flags.append("--keep-super")
        if self.plan.spread.kept_experts is not None:
            flags.append("--keep-list")
        if self.plan.budget.mean_top_k is not None:
            flags.append("--mean-top-k")
        schedule = self.plan.spread.schedule
        if not get_schedule(schedule).needs <= {"counts"}:
            flags.append(f"--schedule {schedule}")
        if flags:
            raise PlanError(
                f"{flags[0]} chooses experts by statistics or weights, which --config-only does "
                "not read; leave it out for counts and sizes, or leave --config-only out."
            )


def check_criterion(ranking: RankingSpec, command: str) -> None:
    """Refuse a ranking by nothing."""
    if not ranking.criterion:
        raise PlanError(
            f"`moeprune {command}` needs --criterion: a name such as reap or aimer, or exponents "
            "b,alpha,beta."
        )
