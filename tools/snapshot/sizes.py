"""What is said of sizes: of plans, of the demo, of exports that are not written."""

from collections.abc import Iterator

from snapshot.running import run_line

_CODE = "--corpus demo-code"
_CUT = "--granularity neuron --criterion heapr"
_PLANS = (
    f"--criterion reap {_CODE} --sparsity 50%",
    f"--criterion reap {_CODE} --sparsity 25% --schedule global",
    "--criterion aimer --sparsity 50%",
    f"--criterion reap {_CODE} --target-size 0.006",
    f"--criterion ean {_CODE} --remove 40 --set 4=20 --floor 8",
    f"--criterion reap {_CODE} --corpus demo-math:2 --sparsity 34% --protect 0",
    f"{_CUT} {_CODE} --sparsity 50% --neuron-scope expert",
    f"{_CUT} {_CODE} --sparsity 50% --neuron-scope layer",
    f"{_CUT} {_CODE} --sparsity 40% --neuron-scope global",
    "--granularity neuron --criterion neuron-norms --sparsity 25% --neuron-scope layer",
)
_MODES = ("uniform", "per-layer", "ragged")


def texts() -> Iterator[tuple[str, str]]:
    """File and text of everything that is said of sizes."""
    yield "inspect.txt", run_line("inspect demo").text
    yield "inspect-config-only.txt", run_line("inspect demo --config-only").text
    for number, words in enumerate(_PLANS, 1):
        plan = f"plan-{number:02}.json"
        run_line(f"plan demo {words} -o {plan}")
        lines = (f"plans show {plan}", f"plans show {plan} --corpus demo-math", *_exports(plan))
        yield f"{number:02}.txt", f"# plan demo {words}\n" + _all(lines)
    yield "diff.txt", _all(_differences())


def _exports(plan: str) -> list[str]:
    modes = [f"export demo out --plan {plan} --dry-run --width-mode {mode}" for mode in _MODES]
    several = f"export demo out --plan {plan} --dry-run --width-mode per-layer"
    return [f"export demo out --plan {plan} --dry-run", *modes, f"{several} --width-multiple-of 16"]


def _differences() -> list[str]:
    pairs = (("01", "02"), ("01", "03"), ("07", "08"), ("01", "08"))
    lines = [f"plans diff plan-{first}.json plan-{second}.json" for first, second in pairs]
    return [*lines, f"{lines[0]} --experts", f"{lines[2]} --experts"]


def _all(lines: tuple[str, ...] | list[str]) -> str:
    return "\n".join(run_line(line).text for line in lines)
