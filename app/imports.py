"""Imports that a server keeps: nothing that libraries make while they are imported is garbage."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pkgutil import iter_modules

from app import pages

_SCRIPT = "main"  # draws when it is imported


@contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage meanwhile, and never look through what is there at the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def without(library: str) -> Iterator[None]:
    """Let a library that is not there yet be missing for what is imported meanwhile."""
    if library in sys.modules:
        yield
        return
    sys.modules[library] = None  # type: ignore[assignment]  # importing it raises an ImportError
    try:
        yield
    finally:
        del sys.modules[library]


def import_pages() -> None:
    """Import all pages, for a thread: the first visitor's browser is busy with its own scripts."""
    with importing():
        for module in iter_modules(pages.__path__, f"{pages.__name__}."):
            if not module.name.endswith(f".{_SCRIPT}"):
                import_module(module.name)
