"""Plans of `moeprune plan` and `moeprune paths`: what they keep, and what is said of them."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from snapshot.running import run_line

_CODE = "--corpus demo-code"
_HALF = f"{_CODE} --sparsity 50%"
_CUT = "--granularity neuron"
CRITERIA = (
    "reap",
    "frequency",
    "seer",
    "ean",
    "man",
    "msan",
    "gate-ean",
    "squared-gate-energy",
    "mone",
    "damage",
    "heapr",
    "camera-p",
    "camera-p:0.5",
    "pathfinder",
    "pathfinder:50",
    "0,0,2",
    "0,2,0",
    "1,1,0",
    "1,2,1",
    "aimer",
)
WITHOUT_TEXT = ("aimer", "magnitude", "hoyer", "random")
_EXPERTS = (
    "reap --corpus demo-code:2 --corpus demo-math:1 --sparsity 50%",
    "ean --corpus demo-code --corpus demo-prose --corpus demo-math --sparsity 34%",
    "frequency --corpus demo-prose:0.5 --corpus demo-math:1.5 --remove 50",
    f"reap {_HALF} --gate renormalized",
    "msan --corpus demo-math --sparsity 25% --gate renormalized",
    f"reap {_CODE} --sparsity 12.5%",
    f"reap {_CODE} --sparsity 0%",
    f"reap {_CODE} --remove 77",
    f"reap {_CODE} --target-size 0.006",
    f"reap {_CODE} --target-size 0.006 --target-dtype bfloat16",
    f"reap {_CODE} --target-size 0.007 --schedule global",
    *(
        f"reap {_HALF} --schedule {name}"
        for name in ("global", "global-rescaled", "frequency", "early", "middle", "late")
    ),
    "aimer --sparsity 40% --schedule global",
    f"reap {_CODE} --schedule file --schedule-file counts.csv",
    f"reap {_CODE} --schedule file --schedule-file counts.json",
    f"reap {_HALF} --protect 0,5",
    f"reap {_HALF} --pin 3:5,7-9 --drop 0:2",
    f"reap {_CODE} --remove 40 --set 4=20 --floor 8",
    f"reap {_HALF} --lock 1,2 --set 3=10",
    f"reap {_CODE} --sparsity 40% --multiple-of 4",
    f"reap {_CODE} --sparsity 60% --schedule global --floor 10 --multiple-of 2",
    "random --sparsity 30% --schedule late --protect 2 --pin 0:0-3",
)
_NEURONS = (
    *(
        f"{name} {_CUT} {_HALF} --neuron-scope {scope}"
        for name in ("heapr", "camera-p")
        for scope in ("expert", "layer", "global")
    ),
    f"neuron-norms {_CUT} --sparsity 50%",
    f"neuron-norms {_CUT} --sparsity 25% --neuron-scope layer",
    f"neuron-norms {_CUT} --sparsity 40% --neuron-scope global",
    f"random {_CUT} --sparsity 25% --neuron-scope global",
    f"heapr {_CUT} {_CODE} --params-share 20%",
    f"heapr {_CUT} {_CODE} --target-size 0.008 --width-mode per-layer",
    f"heapr {_CUT} {_CODE} --target-size 0.008 --width-mode ragged --width-multiple-of 4",
    f"heapr {_CUT} {_CODE} --remove 4000 --multiple-of 8 --neuron-scope layer",
    f"heapr {_CUT} --corpus demo-code:1 --corpus demo-math:2 --sparsity 30% --floor 8",
    f"heapr {_CUT} {_HALF} --protect 1 --pin 0:3 --drop 4:0,9",
)
_PATHS = (
    f"{_CODE} --sparsity 50%",
    f"{_CODE} --top-m 20",
    f"{_CODE} --top-m 60 --clusters 8",
    "--corpus demo-code --corpus demo-math --top-m 200 --sparsity 60%",
    f"{_CODE} --sparsity 40% --schedule uniform --weights importance --transitions measured",
    "--sparsity 50%",
)
_COUNTS = {0: 16, 1: 20, 2: 32, 3: 8, 4: 24, 5: 12}


def write_schedules() -> None:
    """The files that schedules are read from."""
    rows = "".join(f"{layer},{kept}\n" for layer, kept in _COUNTS.items())
    Path("counts.csv").write_text("layer,kept\n" + rows)
    Path("counts.json").write_text(
        json.dumps({"kept": {str(key): kept for key, kept in _COUNTS.items()}})
    )


def texts() -> Iterator[tuple[str, str]]:
    """File and text of every plan."""
    write_schedules()
    lines = [f"plan demo --criterion {name} {_HALF}" for name in CRITERIA]
    lines += [f"plan demo --criterion {name} --sparsity 50%" for name in WITHOUT_TEXT]
    lines += [f"plan demo --criterion {words}" for words in (*_EXPERTS, *_NEURONS)]
    lines += [f"paths demo {words}" for words in _PATHS]
    for number, line in enumerate(lines, 1):
        yield f"{number:02}.txt", _plan(line)


def _plan(line: str) -> str:
    out = Path("plan.json")
    out.unlink(missing_ok=True)
    outcome = run_line(f"{line} -o {out}")
    if not out.exists():
        return outcome.text
    return f"{outcome.text}--- plan\n{plan_text(json.loads(out.read_text('utf-8')))}"


def plan_text(plan: dict[str, Any]) -> str:
    """A plan with counts and digests in place of ids."""
    rest = {key: value for key, value in plan.items() if key not in ("kept", "kept_neurons")}
    lines = [f"{key}: {json.dumps(value, sort_keys=True)}" for key, value in rest.items()]
    lines += [f"kept {layer}: {len(ids)}" for layer, ids in plan["kept"].items()]
    lines.append(f"kept: {_digest(plan['kept'])}")
    neurons = plan.get("kept_neurons")
    if neurons:
        lines += [f"neurons {layer}: {_neurons(experts)}" for layer, experts in neurons.items()]
        lines.append(f"neurons: {_digest(neurons)}")
    return "\n".join(lines) + "\n"


def _neurons(experts: dict[str, list[int]]) -> str:
    return " ".join(f"{expert}={len(ids)}" for expert, ids in experts.items())


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
