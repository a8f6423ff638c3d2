"""Hidden states of all tokens between two layers of a streamed run, in memory or on disk."""

import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from analysis.calibration.free import free_memory
from analysis.errors import CheckpointError
from analysis.files.durable import write_durably
from analysis.files.json_text import parse_json

_SHARE_OF_MEMORY = 0.25  # of the free memory; larger hidden states go to disk
_NAME = "hidden"


def content_sum(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """CRC-32 of the names, shapes and bytes of CPU tensors, and of a text; detects damage."""
    checksum = zlib.crc32(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        checksum = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), checksum)
        checksum = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, checksum)
    return f"{checksum:08x}"


def are_too_large(nbytes: int) -> bool:
    """Whether hidden states of this size belong on disk."""
    return nbytes > _SHARE_OF_MEMORY * free_memory()


class HiddenStates:
    """Hidden states of every batch before and after the current layer, in memory or on disk.

    `hidden-LAYER/BATCH.safetensors` in the folder is a layer's input for a batch.
    """

    def __init__(self, folder: Path, *, on_disk: bool) -> None:
        self.folder = folder
        self.on_disk = on_disk
        self._layer = 0
        self._hidden_by_batch: dict[int, Tensor] = {}

    def get(self, batch: int) -> Tensor:
        """(sequences, length, width): the current layer's input for a batch."""
        if self.on_disk:
            return _read(self._file(self._layer, batch))
        return self._hidden_by_batch[batch]

    def put(self, layer: int, batch: int, hidden_BTD: Tensor) -> None:
        """Store a layer's input for a batch: of the first layer, or of the one after the current.

        In memory it replaces the current layer's input, which is not read again.
        """
        if self.on_disk:
            _write(self._file(layer, batch), hidden_BTD)
        else:
            self._hidden_by_batch[batch] = hidden_BTD.cpu()

    def advance(self) -> None:
        """Continue with the next layer."""
        self._layer += 1

    def save(self) -> None:
        """Write the current layer's inputs to disk, for a run that resumes later."""
        if not self.on_disk:
            for batch, hidden_BTD in self._hidden_by_batch.items():
                _write(self._file(self._layer, batch), hidden_BTD)

    def resume(self, layer: int, num_batches: int) -> None:
        """Resume before `layer`, from what was saved."""
        self._layer = layer
        files = [self._file(layer, batch) for batch in range(num_batches)]
        if missing := [file for file in files if not file.is_file()]:
            raise CheckpointError(
                f"The hidden states {missing[0]} of the unfinished run are gone; calibrate "
                "again with --no-resume."
            )
        if not self.on_disk:
            self._hidden_by_batch = {batch: _read(file) for batch, file in enumerate(files)}

    def restart(self) -> None:
        """Go back to the first layer."""
        self._layer = 0

    def clear(self, but: int | None = None) -> None:
        """Delete what is on disk, except the inputs of layer `but`."""
        for folder in self.folder.glob(f"{_NAME}-*"):
            if but is None or folder != self._file(but, 0).parent:
                shutil.rmtree(folder)

    def _file(self, layer: int, batch: int) -> Path:
        return self.folder / f"{_NAME}-{layer}" / f"{batch}.safetensors"


class ForwardStates:
    """Tensors of forwards that pause inside of a layer, by name: where hidden states are."""

    def __init__(self, hidden: HiddenStates) -> None:
        self._folder = hidden.folder / f"{_NAME}-inside"
        self._on_disk = hidden.on_disk
        self._tensors: dict[str, Tensor] = {}

    def put(self, name: str, tensor: Tensor) -> None:
        """Store a tensor, in place of one of that name."""
        if self._on_disk:
            file = self._file(name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(_packed(tensor))  # not durably: nothing resumes from it
        else:
            self._tensors[name] = tensor.cpu()

    def get(self, name: str) -> Tensor:
        """The tensor of that name, on the CPU."""
        return _read(self._file(name)) if self._on_disk else self._tensors[name]

    def clear(self) -> None:
        """Delete all."""
        self._tensors.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.safetensors"


def _read(file: Path) -> Tensor:
    # Read, not mapped: address space may be scarce.
    data = file.read_bytes()
    try:
        header = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])
        hidden = safetensors.torch.load(data)
        if content_sum(hidden) != header["__metadata__"]["sum"]:
            raise ValueError("the checksum differs")  # noqa: TRY301
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"The hidden states {file} of the unfinished run are damaged; delete the file "
            "and run again, calibrate with --no-resume."
        ) from error
    hidden_BTD: Tensor = hidden[_NAME]
    return hidden_BTD


def _write(file: Path, hidden_BTD: Tensor) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_durably(file, _packed(hidden_BTD))


def _packed(hidden_BTD: Tensor) -> bytes:
    hidden = {_NAME: hidden_BTD.contiguous().cpu()}
    packed: bytes = safetensors.torch.save(hidden, {"sum": content_sum(hidden)})
    return packed
