"""Display names of models."""

from typing import Final

FULL: Final = "Original model"
