"""The table of frozen command lines, in the order in which they run."""

import shlex
from collections.abc import Iterator, Sequence

from tools.freeze import doors
from tools.freeze.plans import KEEP_LIST

_CODE = "--calibrated-on demo-code"
_ALL = f"{_CODE} --calibrated-on demo-math --calibrated-on demo-stories"
_REAP = f"--criterion reap {_CODE}"
_EAN = f"--criterion ean {_ALL}"
_HEAPR = f"--criterion heapr --granularity neuron {_CODE}"
_SELECTIONS = (
    "",
    _REAP,
    f"{_EAN} --schedule global --sparsity 25%",
    f"{_EAN} --schedule measured --with-criterion reap",
    "--criterion aimer --with-criterion man --with-calibrated-on demo-math",
    f"{_HEAPR} --neuron-scope global",
    "--criterion neuron-norms --granularity neuron --sparsity 40%",
)
_MORE_CHARTS = f"""
    pareto {_REAP} --measure kl --evaluated-on demo-math
    evaluation-curves {_REAP} --against bytes --measure nll
    stratification {_REAP} --panel reap --panel ean --scale relative
    paths {_REAP} --top-m 20 --path-weights importance
    text-experts {_EAN} --token 5
    own-capability {_REAP} --at all
    kept-by {_REAP} --shrink 30% --pin 0:0-3 --protect 5
    sizes {_REAP} --target-size 5MiB --uneven
    neuron-layers {_HEAPR} --params-share 20%
"""
# Commands that only read: statistics, records and headers.
_LOOKS = f"""
    inspect demo
    inspect demo --config-only
    inspect nothing
    runs list
    runs show demo-demo-code
    runs show nothing
    runs verify demo-demo-math
    jobs list
    plan demo --config-only --shrink 40%
    plan demo --config-only --sparsity 50% --multiple-of 8
    plan demo --config-only --target-size 4MiB --uneven
    plan demo {_REAP} --sparsity 50% -o plan.json
    plan demo {_EAN} --shrink 30% --schedule global --uneven -o ean.json
    plan demo --criterion ean --calibrated-on demo-math --sparsity 50% --top-k 2 -o fewer.json
    plan demo --criterion random --sparsity 50% -o random.json
    plan demo {_REAP} --schedule measured --sparsity 50% -o measured.json
    plan demo {_HEAPR} --sparsity 40% --neuron-scope layer -o neurons.json
    plan demo --granularity neuron --criterion neuron-norms --sparsity 50% -o norms.json
    plan demo --keep-list {KEEP_LIST} -o kept.plan.json
    plan demo --criterion REAP --sparsity 50%
    plan demo {_REAP} --sparsity 50% --shrink 40%
    plan demo {_REAP} --sparsity 50% --nothing
    plan
    plans show plan.json
    plans show ean.json
    plans show neurons.json
    plans show nothing.json
    plans diff plan.json random.json
    plans diff plan.json ean.json --experts
    plans diff neurons.json norms.json --experts
    paths demo --calibrated-on demo-math --top-m 100 -o paths.json
    paths demo --calibrated-on demo-math --sparsity 50% --table paths.csv -o half.json
    paths demo --calibrated-on demo-code --top-m 50 --transitions measured -o measured-paths.json
    overlap demo --sparsity 30% -o overlap.csv
    overlap demo --sparsity 25% --criterion ean -o ean-overlap.csv
    overlap demo --sparsity 50% --parts -o parts.csv
    overlap demo --sparsity 50% --proxy -o proxy.csv
    blend demo --criterion reap --sparsity 50% --calibrated-on demo-code:2 --calibrated-on demo-math
    blend demo --criterion ean --sparsity 50% {_ALL} --fair
    compare demo {_REAP} --sparsity 50% --with-criterion ean -o compared.csv
    compare demo {_REAP} --sparsity 50% --with-criterion aimer --with-sparsity 25% -o sizes.csv
    fit demo --target-size 3MiB
    fit demo --target-size 5MiB
    fit demo --target-size 1KiB
    report demo {_REAP} --view kept-by --view sizes -o report.html
    report demo --plan plan.json -o decision.html
    recipe init demo -o recipe.yaml
    prune recipe.yaml --dry-run
    search recipe.yaml --dry-run
    calibrate demo --corpus nothing
    evaluate demo --corpus demo-math --plan nothing.json
    verify nothing --source demo
    repair demo --plan neurons.json --dtype nothing
    export demo out --plan plan.json --dry-run
    export demo out --plan neurons.json --dry-run
"""
# The evaluations and the repair of the README, which ship and are only read.
_README = f"""
    plan demo --criterion reap {_ALL} --sparsity 50% -o reap.json
    repair demo --plan reap.json --tokens 32768 --dtype float32 -o reap-repaired.json
    evaluate demo --plan reap-repaired.json --corpus demo-code --corpus demo-stories --corpus
        demo-math --corpus demo-recipes --measure nll --measure right --dtype float32
        -o reap.result.json
"""
# Commands that run the demo, each with statistics of its own, so that none reads another's.
# No repair: its digest is of the bytes of its float32 sums, which differ between processors.
_RUNS = f"""
    evaluate demo --plan plan.json --corpus demo-math --samples 4 -o result.json
    evaluate demo --bits 16 --bits 4 --corpus demo-math --samples 2 -o bits.json
    evaluate demo --plan neurons.json --plan fewer.json --corpus demo-code --samples 2 -o both.json
    ask demo --plan plan.json --prompt 2+2= --max-new-tokens 4
    ask demo --plan plan.json --text "7 * 6 = 42. 42 - 9 = 33."
    bins demo {_REAP} --corpus demo-math --samples 2 -o bins.csv
    variance demo --plan plan.json --corpus demo-math --samples 2 -o variance.csv
    sensitivity demo {_REAP} --corpus demo-math --samples 2 --levels 2
    subsets demo --criterion reap --sparsity 50% {_CODE} --corpus demo-math --samples 2
        -o subsets.csv
    sweep demo --criterion reap --criterion random --sparsity 50% {_CODE} --corpus demo-math
        --samples 2 -o sweep.csv
    calibrate demo --corpus demo-math --tokens 2048
"""
_EXPORTS = f"""
    plan demo {_REAP} --sparsity 50% -o uniform.json
    plan demo {_EAN} --sparsity 50% --schedule global -o global.json
    plan demo {_HEAPR} --sparsity 40% --neuron-scope global -o neurons.json
    plan demo {_REAP} --sparsity 25% --top-k 2 -o fewer.json
    plan demo --criterion reap {_ALL} --sparsity 50% -o reap.json
    repair demo --plan reap.json --tokens 32768 --dtype float32 -o repaired.json
    export demo uniform --plan uniform.json --keep-list --hash-source
    export demo global --plan global.json
    export demo shards --plan global.json --max-shard-size 2MB
    export demo neurons --plan neurons.json
    export demo per-layer --plan neurons.json --width-mode per-layer
    export demo ragged --plan neurons.json --width-mode ragged
    export demo fewer --plan fewer.json
    export demo repaired --plan repaired.json
    export demo bits --plan bits.json
    export demo uniform --plan uniform.json
    export demo padded --plan global.json --pad
    inspect uniform
    inspect ragged
    verify uniform --source demo
    verify neurons --source demo
    verify repaired --source demo
"""
STORE = "store"  # where commands that run a model write their records


def _lines(text: str) -> Iterator[list[str]]:
    """The words of every line; one that is indented further goes on."""
    for line in text.replace("\n        ", " ").strip().splitlines():
        yield shlex.split(line)


def charts() -> Iterator[list[str]]:
    """Every chart of every selection, and of every block of the papers' tables."""
    lines = [
        (name, doors.DEMO, *selection.split())
        for selection in _SELECTIONS
        for name in doors.CHART_NAMES
    ]
    lines += [(name, doors.DEMO, *words) for name, *words in _lines(_MORE_CHARTS)]
    lines.append(("nothing", doors.DEMO))
    for name in doors.PAPER_CHART_NAMES:
        for table in doors.PAPER_TABLES:
            lines.append((name, table))
            lines += [(name, table, "--block", block) for block in doors.blocks(table)[1:]]
    for words in lines:
        yield ["plot", *words, "-o", f"{words[0]}.csv", "--force"]


def scores() -> Iterator[list[str]]:
    """The scores of every criterion, of experts and of neurons."""
    experts = (
        *doors.EXPERT_CRITERIA,
        *doors.EXPONENTS,
        "camera-p:0.5",
        "pathfinder:50",
        "random:2",
    )
    lines = [f"--criterion {name} {_CODE}" for name in experts]
    lines += [f"--criterion {name} {_CODE} --granularity neuron" for name in doors.NEURON_ONES]
    lines += [
        f"{_REAP} --gate renormalized",
        f"--criterion heapr {_ALL} --granularity neuron",
        _EAN,
    ]
    lines += [f"--criterion {name}" for name in ("aimer", "magnitude", "hoyer", "random", "reap")]
    lines += [f"--criterion {name} --granularity neuron" for name in ("neuron-norms", "random")]
    for line in lines:
        yield ["score", doors.DEMO, *line.split(), "-o", "scores.csv", "--force"]


def helps() -> Iterator[list[str]]:
    """The help of the program and of every command."""
    yield from ([], ["--help"], ["--version"], ["nothing"], ["plan", "demo", "--help", "--quiet"])
    for name in doors.command_names():
        yield [*name.split(), "--help"]


def looks() -> Iterator[list[str]]:
    """Commands that run no model."""
    yield from _lines(_LOOKS)
    yield from _lines(_README)


def runs() -> Iterator[list[str]]:
    """Commands that run the demo."""
    for number, words in enumerate(_lines(_RUNS)):
        yield [*words, "--dtype", "float32", "--stats-dir", f"{STORE}-{number}"]


def exports() -> Sequence[list[str]]:
    """Plans, their exports and what `verify` says of these."""
    return list(_lines(_EXPORTS))
