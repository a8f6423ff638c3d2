"""The table of frozen plans: specs by section, combined in a fixed order."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from tools.freeze import doors
from tools.freeze.values import Value, stable

Spec = Mapping[str, Any]
CODE, MATH, STORIES = "demo-code", "demo-math", "demo-stories"
CORPORA = (CODE, MATH, STORIES)
KEEP_LIST, KEPT_NEURONS, COUNTS = "kept.json", "kept-neurons.json", "counts.csv"
_HALF = {"sparsity": "50%"}
_REAP = {"criterion": "reap", "corpora": (CODE,)}
_EAN = {"criterion": "ean", "corpora": (MATH,)}
_AIMER = {"criterion": "aimer"}
_HEAPR = {"criterion": "heapr", "corpora": (CODE,), "granularity": "neuron"}
_NORMS = {"criterion": "neuron-norms", "granularity": "neuron"}
_FREE = ("aimer", "magnitude", "hoyer", "random", "random:2", "neuron-norms")  # read no corpus
_BUDGETS: Sequence[Spec] = (
    *({"sparsity": share} for share in ("0", "3%", "0.1", "33%", "40%", "75%", "87.5%", "90%")),
    *({"shrink": share} for share in ("5%", "20%", "40%", "60%", "95%")),
    *({"params_share": share} for share in ("10%", "20%", "45%", "80%")),
    *({"remove": count} for count in (0, 1, 50, 96, 100, 168, 169)),
    *({"target_size": size} for size in ("9MiB", "6 MiB", "4MiB", "1MiB", "0.005")),
    {"shrink": "20%", "target_dtype": "bfloat16"},
    {"shrink": "20%", "uneven": True},
    {"target_size": "5MiB", "uneven": True},
    {"params_share": "25%", "uneven": True},
    {"sparsity": "50%", "uneven": True},
    {"sparsity": "50%", "remove": 96},
    *({"sparsity": "50%", "top_k": top_k} for top_k in (1, 2, 4, 5)),
    {"shrink": "20%", "top_k": 3},
)
_LIMITS: Sequence[Spec] = (
    *({"multiple_of": count} for count in (2, 3, 4, 8, 16, 64)),
    *({"floor": count} for count in (1, 4, 12, 20, 40)),
    *({"protect": layers} for layers in ("0", "0,5", "1-4", "0-5", "9")),
    *({"pin": experts} for experts in ("0:0", "3:5,7-9", "2:0-31", "0:99")),
    *({"drop": experts} for experts in ("0:0", "3:5,7-9", "1:0-29", "9:0")),
    {"pin": "0:1", "drop": "0:1"},
    {"keep_super": True},
    *({"set": counts} for counts in ("0=20", "0-2=24", "0-5=16", "0=2")),
    {"set": "0=20", "lock": "5"},
    {"set": "1=24", "lock": "2-4"},
    {"lock": "5"},
    {"multiple_of": 4, "floor": 8, "protect": "0"},
)
_BLENDS: Sequence[Spec] = (
    *({"corpora": pair} for pair in ((CODE, MATH), (CODE, STORIES), (MATH, STORIES), CORPORA)),
    {"corpora": ("demo-code:2", MATH)},
    {"corpora": (CODE, "demo-math:0.25", "demo-stories:3")},
    {"corpora": (), "runs": ("demo-demo-code",)},
    {"corpora": (), "runs": ("demo-demo-math", "demo-demo-stories")},
    {"corpora": (), "runs": ("nothing",)},
    {"runs": ("demo-demo-code",)},
    {"corpora": ("demo-recipes",)},
    {"corpora": ()},
    {"corpora": (MATH,), "gate": "renormalized"},
)
_NEURON_BUDGETS: Sequence[Spec] = (
    *({"sparsity": share} for share in ("0", "5%", "33%", "75%", "95%")),
    *({"remove": count} for count in (1, 4000, 12000)),
    *({"params_share": share} for share in ("10%", "30%")),
    *({"shrink": "30%", "width_mode": mode} for mode in ("uniform", "per-layer", "ragged")),
    {"shrink": "30%", "width_mode": "per-layer", "width_multiple_of": 16},
    {"shrink": "15%", "width_multiple_of": 1},
    {"target_size": "6MiB", "width_mode": "ragged"},
    {"sparsity": "40%", "top_k": 2},
)
_NEURON_LIMITS: Sequence[Spec] = (
    *({"multiple_of": count} for count in (4, 8, 16)),
    *({"floor": count} for count in (8, 32)),
    {"protect": "0,3"},
    {"pin": "3:5,7-9"},
    {"drop": "3:5,7-9"},
    {"keep_super": True},
    {"set": "0=20"},
    {"lock": "1"},
    {"uneven": True},
    {"schedule": "global"},
)


def _of_criteria() -> Iterator[Spec]:
    experts = (*doors.EXPERT_CRITERIA, "camera-p:0.5", "pathfinder:500", "random:2")
    for criterion in experts:
        for corpus in CORPORA[: 1 if criterion in _FREE else 3]:
            yield {**_of(criterion, corpus), **_HALF}
    for criterion in doors.EXPONENTS:
        yield {**_of(criterion, CODE), **_HALF}
        yield {**_of(criterion, STORIES), "sparsity": "25%", "schedule": "global"}
    for criterion in ("1,0,0", "2,0,0", "neuron-norms", "reep", "REAP", ""):
        yield {**_of(criterion, CODE), **_HALF}


def _of(criterion: str, corpus: str) -> Spec:
    return {"criterion": criterion, "corpora": () if criterion in _FREE else (corpus,)}


def _of_schedules() -> Iterator[Spec]:
    criteria = ("reap", "ean", "frequency", "heapr", "pathfinder", "aimer", "random")
    schedules = [name for name in doors.SCHEDULE_NAMES if name not in ("measured", "file")]
    for criterion, schedule, share in product(criteria, schedules, ("25%", "62.5%")):
        yield {**_of(criterion, CODE), "sparsity": share, "schedule": schedule}
    yield {**_REAP, **_HALF, "schedule": "nothing"}
    yield {**_REAP, **_HALF, "schedule": "file"}
    orders = ({**_EAN, "corpora": CORPORA}, _REAP, _EAN, _of("mone", CODE))
    for ranking, share in product(orders, ("10%", "50%", "75%")):
        yield {**ranking, "sparsity": share, "schedule": "measured"}
    on: Sequence[Spec] = ({"measured_on": (CODE,)}, {"measured_on": (CODE, MATH)}, {})
    for place, cost, across in product(on, ("esap", "kl", "nll"), ("mean", "worst")):
        measured = {"schedule": "measured", **place, "cost": cost, "across": across}
        yield {**orders[0], "sparsity": "40%", **measured}
    yield {**_REAP, **_HALF, "cost": "nll"}


def _of_files(work: Path) -> Iterator[Spec]:
    for search in sorted((doors.SHIPPED / "searches").glob("*.json")):
        criterion = search.stem.removeprefix("demo-")
        yield {**_of(criterion, CODE), "schedule_file": search}
        yield {**_of(criterion, MATH), **_HALF, "schedule_file": search}
    for path in (work / COUNTS, work / "nothing.csv"):
        yield {**_AIMER, "schedule_file": path}
    for path in (work / KEEP_LIST, work / COUNTS, work / "nothing.json"):
        yield {"kept_experts": path}
    yield {"kept_experts": work / KEEP_LIST, "top_k": 2}
    yield {"kept_experts": work / KEEP_LIST, **_HALF}
    for path in (work / KEPT_NEURONS, work / KEEP_LIST):
        yield {"granularity": "neuron", "criterion": "heapr", "kept_neurons": path}


def _of_neurons() -> Iterator[Spec]:
    scopes = ("expert", "layer", "global")
    for criterion, scope in product((*doors.NEURON_ONES, "camera-p:0.5", "random:2"), scopes):
        for corpus in CORPORA[: 1 if criterion in _FREE else 3]:
            ranking = {**_of(criterion, corpus), "granularity": "neuron"}
            yield {**ranking, "sparsity": "40%", "neuron_scope": scope}
    for ranking, budget in product((_HEAPR, _NORMS), _NEURON_BUDGETS):
        yield {**ranking, **budget, "neuron_scope": "global"}
    for scope, limits in product(("expert", "global"), _NEURON_LIMITS):
        yield {**_HEAPR, **_HALF, "neuron_scope": scope, **limits}
    yield {**_NORMS, **_HALF, "keep_super": True}
    for blend in _BLENDS:
        yield {**_HEAPR, **_HALF, **blend}
    for share in ("10%", "30%", "60%"):
        yield {**_HEAPR, "sparsity": share, "schedule": "measured"}
        yield {**_NORMS, "sparsity": share, "schedule": "measured"}
    yield {**_HEAPR, **_HALF, "schedule": "measured", "cost": "nll", "measured_on": (MATH,)}
    yield {**_HEAPR, **_HALF, "schedule": "measured", "neuron_scope": "layer"}
    yield {**_REAP, **_HALF, "neuron_scope": "layer"}
    yield {**_REAP, **_HALF, "granularity": "neuron"}


def table(work: Path) -> list[Spec]:
    """Every frozen spec; `work` is the folder of the files that some name."""
    rankings = ({**_REAP}, {**_EAN, "schedule": "global"}, {**_AIMER, "schedule": "early"})
    specs = [
        *_of_criteria(),
        *_of_schedules(),
        *({**ranking, **budget} for ranking, budget in product(rankings, _BUDGETS)),
        *({**ranking, **_HALF, **limits} for ranking, limits in product(rankings, _LIMITS)),
        *(
            {**_of(criterion, CODE), **_HALF, **blend}
            for criterion, blend in product(("reap", "man", "heapr"), _BLENDS)
        ),
        *_of_files(work),
        *_of_neurons(),
    ]
    return list({_name(spec): spec for spec in specs}.values())


def write_files(work: Path) -> None:
    """The files that specs of the table name."""
    kept = {str(layer): list(range(layer, 32, 2)) for layer in range(6)}
    (work / KEEP_LIST).write_text(json.dumps(kept))
    neurons = {"0": {"3": list(range(0, 64, 2)), "7": []}, "4": {"31": [5, 9, 60]}}
    (work / KEPT_NEURONS).write_text(json.dumps(neurons))
    counts = "".join(f"{layer},{20 - layer}\n" for layer in range(6))
    (work / COUNTS).write_text(f"layer,kept\n{counts}")


def _name(spec: Spec) -> str:
    return " ".join(f"{name}={_word(value)}" for name, value in spec.items())


def _word(value: object) -> str:
    if isinstance(value, Path):
        return value.name
    return "+".join(value) if isinstance(value, tuple) else str(value)


def values_of(specs: Sequence[Spec], folders: Mapping[Path, str]) -> Iterator[Value]:
    """The plan of every spec: its digest, and that of plan.json and notes; a refusal as its text.

    `folders` have these names in texts.
    """
    for spec in specs:
        try:
            digest, text = doors.plan(spec)
        except doors.Refusal as refusal:
            yield Value(_name(spec), stable(f"refused: {refusal}", folders))
        except Exception as error:  # noqa: BLE001  (a fault is frozen as what it says)
            yield Value(_name(spec), stable(f"{type(error).__name__}: {error}", folders))
        else:
            yield Value(_name(spec), digest[:16], stable(text, folders))
