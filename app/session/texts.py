"""The texts that a person may choose from, to calibrate on or to measure on."""

from analysis.corpora import PRESETS
from analysis.demo.texts import TEXTS
from analysis.model import DEMO_MODEL
from app.charts.context import Context
from app.session.data import text_files


def calibration_texts() -> list[str]:
    """What a model can be calibrated on: the demo's texts, own files, those of the hub."""
    return [*TEXTS, *text_files(), *PRESETS]


def held_out_texts(context: Context) -> list[str]:
    """What a model can be measured on here: the demo's texts, and files of the models folder."""
    return [*(TEXTS if context.model.name == DEMO_MODEL else ()), *text_files()]


def text_label(text: str) -> str:
    """A text for people: those that have to be fetched say so."""
    return f"{text} (from the hub)" if text in PRESETS else text
