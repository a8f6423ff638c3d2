"""What the fit of a layer keeps of each expert: in memory, or in files where that is too small."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


class ExpertStore:
    """Tensors by name, each appended to along its first axis."""

    def __init__(self, folder: Path | None = None, memory: torch.device | None = None) -> None:
        """In files of `folder`; else in `memory`, None: on the device where they are."""
        self._folder, self._memory = folder, memory
        self._parts: dict[str, list[Tensor]] = {}
        self._empty: dict[str, Tensor] = {}  # of tensors in files: without rows

    def add(self, name: str, rows: Tensor) -> None:
        """Append rows, which nobody changes later, to the tensor of that name."""
        if self._folder is None:
            here = rows if self._memory is None else rows.to(self._memory)
            self._parts.setdefault(name, []).append(here)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        # What an earlier run may have left under this name is replaced.
        mode = "ab" if name in self._empty else "wb"
        self._empty[name] = rows[:0].cpu().clone()
        with (self._folder / name).open(mode) as file:
            file.write(_content(rows.contiguous().cpu()))

    def get(self, name: str, device: torch.device) -> Tensor:
        """The tensor of that name."""
        if self._folder is None:
            parts = self._parts[name]
            if len(parts) > 1:
                parts[:] = [torch.cat(parts)]
            return parts[0].to(device)
        empty, path = self._empty[name], self._folder / name
        row = empty.new_empty(1, *empty.shape[1:]).nbytes
        # Memory of its own, as products depend on where their operands begin.
        rows = empty.new_empty(path.stat().st_size // max(1, row), *empty.shape[1:])
        with path.open("rb") as file:
            file.readinto(_content(rows))
        return rows.to(device)

    def move(self, name: str, target: str) -> None:
        """Append a tensor to another."""
        if self._folder is None:
            self._parts.setdefault(target, []).extend(self._parts.pop(name))
            return
        with (self._folder / name).open("rb") as rows, (self._folder / target).open("ab") as file:
            shutil.copyfileobj(rows, file)
        self.drop(name)

    def drop(self, name: str) -> None:
        """Forget the tensor of that name."""
        if self._folder is None:
            del self._parts[name]
        else:
            del self._empty[name]
            (self._folder / name).unlink()

    def clear(self) -> None:
        """Forget all."""
        self._parts.clear()
        self._empty.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _content(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


@dataclass(frozen=True, slots=True)
class OfExperts(Sequence[Tensor]):
    """A kept tensor of each expert, read when it is asked for."""

    kept: ExpertStore
    name: str
    num_experts: int
    device: torch.device

    def __len__(self) -> int:
        return self.num_experts

    def __getitem__(self, expert: int) -> Tensor:  # type: ignore[override]
        if not 0 <= expert < self.num_experts:
            raise IndexError(expert)
        return self.kept.get(named(self.name, expert), self.device)

    def drop(self) -> None:
        """Forget them."""
        for expert in range(self.num_experts):
            self.kept.drop(named(self.name, expert))


def named(name: str, expert: int) -> str:
    """The name of what is kept of one expert."""
    return f"{name}-{expert}"
