"""The work of commands and jobs, as generators of progress.

Heavy libraries are imported when a task starts.
"""

from collections.abc import Generator
from typing import TypeVar

from analysis.progress import Progress

Value = TypeVar("Value")
Steps = Generator[Progress, None, Value]
