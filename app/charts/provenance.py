"""Provenance lines: what a chart was drawn from, by which version, and when."""

from datetime import UTC, datetime

from analysis.files.own_package import tool_version
from app.loaded import Loaded
from pruning.planning.choice import corpora_words
from pruning.planning.ranking import Ranking, criterion_badge


def made_by(*facts: str) -> str:
    """The facts, the version of this program, the date."""
    today = datetime.now(UTC).date().isoformat()
    return " | ".join([*filter(None, facts), f"moe-prune-studio {tool_version()}", today])


def model_fact(loaded: Loaded) -> str:
    """The model, told apart from others of its name."""
    return f"{loaded.model.name} {loaded.model.identity[:8]}"


def models_fact(loaded: Loaded) -> tuple[str, ...]:
    """The compared models; empty if only this one."""
    return (f"models: {', '.join(loaded.models)}",) if loaded.models else ()


def of_corpora(loaded: Loaded, *facts: str) -> str:
    """The line of a chart of all corpora."""
    runs = ", ".join(run.manifest.run_id for run in loaded.runs.values())
    return made_by(model_fact(loaded), runs, f"sparsity {loaded.sparsity}", *facts)


def of_both_plans(loaded: Loaded) -> str:
    """The line of a chart of both plans."""
    a, b = both_names(loaded)
    choices = (loaded.first.choice, loaded.second.choice)
    runs = dict.fromkeys(run.manifest.run_id for choice in choices for run in choice.runs)
    return made_by(model_fact(loaded), f"A: {a}", f"B: {b}", ", ".join(runs))


def plan_fact(loaded: Loaded) -> str:
    """Origin of the plan on screen, or the criterion if there is none."""
    if loaded.shown is None:
        return loaded.choices.ranking_criterion.label
    origin, repair = loaded.shown.plan.provenance, loaded.shown.plan.repair
    words = loaded.shown.file or ", ".join(filter(None, (origin.criterion, origin.schedule)))
    return f"{words}, repaired" if repair else words


def both_names(loaded: Loaded) -> tuple[str, str]:
    """Both plans in a few words."""
    file = loaded.shown.file if loaded.shown else ""
    return file or _in_words(loaded.first), _in_words(loaded.second)


def _in_words(ranking: Ranking) -> str:
    source = corpora_words(ranking.choice.corpora) or criterion_badge(ranking.criterion)
    gate = ", renormalized" if ranking.gate != "applied" else ""
    amount = next(iter(ranking.spec.budget.amounts.values()), "")
    return f"{ranking.criterion.label}, {source}{gate}, {amount}"
