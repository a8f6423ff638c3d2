"""Options of commands that are no part of what is asked: where results go, files to read."""

from pathlib import Path
from typing import Annotated

from app.cli.files import REPLACES
from pruning.option import Option
from pruning.spec.options import Switch

Out = Annotated[Path, Option("File to write.", ("--out", "-o"), file="new")]
OutTable = Annotated[Out, Option("File to write: .csv or .parquet.", endings=(".csv", ".parquet"))]
OutFigure = Annotated[Path, Option(file="new", endings=(".html", ".svg", ".png", ".pdf"))]
Plan = Annotated[Path, Option("plan.json.", ("--plan",), file="plan")]
Recipe = Annotated[Path, Option("recipe.yaml.", place="RECIPE")]
Force = Annotated[Switch, REPLACES]
DryRun = Annotated[Switch, Option("Show what it would take; write nothing.")]
Cost = Annotated[Switch, Option("Show what it would take; run nothing.")]
