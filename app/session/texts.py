"""Corpora offered for calibration and evaluation."""

from analysis.corpora import PRESETS
from analysis.demo.texts import TEXTS
from analysis.model import DEMO_MODEL
from app.charts.context import Context
from app.session.data import text_files


def calibration_texts() -> list[str]:
    """Calibration corpora: the demo's, own files, and those of the hub."""
    return [*TEXTS, *text_files(), *PRESETS]


def held_out_texts(context: Context) -> list[str]:
    """Held-out corpora: the demo's, and files in the models folder."""
    return [*(TEXTS if context.model.name == DEMO_MODEL else ()), *text_files()]


def text_label(text: str) -> str:
    """Display name of a corpus; marks those that are downloaded."""
    return f"{text} (from the hub)" if text in PRESETS else text
