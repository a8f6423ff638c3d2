"""Options that the commands share which run a model on texts, each with one meaning."""

from pathlib import Path
from typing import Annotated

import typer

from pruning.evaluate.drawing import SCORED
from pruning.evaluate.result import MEASURES
from pruning.requests.base import DEFAULT_SEQ_LEN

Evaluated = Annotated[
    list[str],
    typer.Option("--corpus", help="Text to evaluate on, as for calibrate; repeatable."),
]
CalibratedOn = Annotated[
    list[str] | None,
    typer.Option(
        help="Calibrated corpus that ranks, CORPUS or CORPUS:WEIGHT; repeatable: a blend."
    ),
]
Measures = Annotated[
    str, typer.Option(help=f"What is measured, joined by commas: {', '.join(MEASURES)}.")
]
Samples = Annotated[int, typer.Option(help="Samples of each corpus.")]
SeqLen = Annotated[
    int | None,
    typer.Option(help=f"Tokens of a sample; default: a preset's own, else {DEFAULT_SEQ_LEN}."),
]
Seed = Annotated[
    int | None,
    typer.Option(help="Seed of documents, draws, bootstrap; default: the calibration's order, 42."),
]
Counted = Annotated[
    str,
    typer.Option(
        "--count", help=f"Tokens that are predicted: {', '.join(SCORED)} (auto: answers if any)."
    ),
]
Dtype = Annotated[str, typer.Option(help="Element type: auto, float32, bfloat16 ...")]
Device = Annotated[str, typer.Option(help="Device: auto, cpu, cuda ...")]
DeviceOfRecipe = Annotated[
    str | None, typer.Option(help="Device: auto, cpu, cuda ...; default: the recipe's.")
]
BatchSize = Annotated[int, typer.Option(help="Samples in one forward.")]
Attention = Annotated[str, typer.Option(help="Attention: auto, eager, sdpa ...")]
DeviceMap = Annotated[
    str | None, typer.Option(help="Spread the weights over devices, memory and disk: auto ...")
]
MaxMemory = Annotated[
    list[str] | None, typer.Option(help="With --device-map, DEVICE=SIZE; repeatable.")
]
OffloadFolder = Annotated[
    Path | None, typer.Option(help="With --device-map, where weights go that fit nowhere else.")
]
HiddenStatesDir = Annotated[
    Path | None,
    typer.Option(help="Keep the full model's hidden states here; default: in memory if small."),
]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the checkpoint.")
]
