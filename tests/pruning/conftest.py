"""Tiny checkpoints, saved once for all tests of this folder; nobody writes into them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from builders import TinyCheckpoint, tiny_checkpoint

MakeCheckpoint = Callable[..., TinyCheckpoint]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> MakeCheckpoint:
    """`checkpoint("olmoe", fused=True)`: see `tiny_checkpoint`; each is made once."""
    made: dict[str, TinyCheckpoint] = {}

    def get(model_type: str, **options: Any) -> TinyCheckpoint:
        key = "-".join([model_type, *(f"{name}={options[name]}" for name in sorted(options))])
        if key not in made:
            path = tmp_path_factory.mktemp(key, numbered=False)
            made[key] = tiny_checkpoint(path, model_type, **options)
        return made[key]

    return get


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    # For matrices this small more threads only wait for each other, and long on a busy machine.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
