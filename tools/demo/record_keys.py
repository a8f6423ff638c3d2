"""Which record of the table a stored one is: its `Key`, by what it says of itself."""

from collections.abc import Callable, Mapping
from typing import Any

from tools.demo.orders import RUNS, WEIGHTS, Key, about


def key_of(kind: str, raw: Mapping[str, Any]) -> Key:
    """The key of a record, or of the manifest of a run."""
    return _READERS[kind](kind, raw)


def _run(kind: str, raw: Mapping[str, Any]) -> Key:
    return Key(kind, corpus="+".join(corpus["name"] for corpus in raw["corpora"]))


def _of_plan(raw: Mapping[str, Any]) -> str:
    plan = raw["plan"]
    return about(
        plan.get("spec", {}),
        repaired="repair" in plan,
        bits=plan.get("bits", ""),
        searched=plan["schedule"] == "search",
    )


def _plan_on_corpus(kind: str, raw: Mapping[str, Any]) -> Key:
    return Key(kind, _of_plan(raw), raw["corpus"]["name"])


def _search(kind: str, raw: Mapping[str, Any]) -> Key:
    return Key(kind, about(raw["search"]["spec"]))


def _bins(kind: str, raw: Mapping[str, Any]) -> Key:
    ranked = raw["ranked"]
    ranking = {name: ranked[name] for name in ("criterion", "corpora") if ranked[name]}
    if ranked["granularity"] != "expert":
        ranking["granularity"] = ranked["granularity"]
    order = ranked["how"]["order"]
    words = about({"ranking": ranking})
    return Key(kind, words + (order if order != "saliency" else ""), raw["corpus"]["name"])


def _subset(kind: str, raw: Mapping[str, Any]) -> Key:
    ranking = {"ranking": raw["plan"]["spec"]["ranking"]}
    return Key(kind, about(ranking), raw["corpus"]["name"])


def _curves(kind: str, raw: Mapping[str, Any]) -> Key:
    return Key(kind, about(raw["order"]["spec"]), raw["corpus"]["name"])


_READERS: Mapping[str, Callable[[str, Mapping[str, Any]], Key]] = {
    RUNS: _run,
    WEIGHTS: _run,
    "evaluations": _plan_on_corpus,
    "variances": _plan_on_corpus,
    "subsets": _subset,
    "repairs": lambda kind, raw: Key(kind, about(raw["plan"]["spec"], repaired=True)),
    "searches": _search,
    "sensitivity": _curves,
    "bins": _bins,
    "benchmarks": lambda kind, raw: Key(kind, _of_plan(raw)),
    "answers": lambda kind, raw: Key(kind, _of_plan(raw), raw["prompt"]),
    "lenses": lambda kind, raw: Key(kind),
}
