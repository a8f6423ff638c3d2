"""Temporary replacements of what a model's modules compute; its layers and its device."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from analysis.errors import UnsupportedModelError
from analysis.families.base import MoEFamily

Forward = Callable[..., Any]
# Old forward -> new forward.
Wrapper = Callable[[Forward], Forward]


def decoder_stack(model: nn.Module, family: MoEFamily) -> tuple[str, nn.ModuleList]:
    """The decoder layers of a loaded model: path of the list, and the list."""
    for trunk in family.module_trunks:
        try:
            layers = model.get_submodule(trunk)
        except AttributeError:
            continue
        if isinstance(layers, nn.ModuleList):
            return trunk, layers
    raise UnsupportedModelError(
        f"The layers of {family.label} are not a plain stack, so they cannot be run one by one; "
        "leave out what needs that, and spread a large model with --device-map auto."
    )


def decoder_layers(model: nn.Module, family: MoEFamily) -> list[nn.Module]:
    """The decoder layers of a loaded model, in order; see `decoder_stack`."""
    return list(decoder_stack(model, family)[1])


def input_device(model: nn.Module) -> torch.device:
    """The device of a model's input: that of its first weights that are not offloaded."""
    devices = (parameter.device for parameter in model.parameters() if not parameter.is_meta)
    return next(devices, torch.device("cpu"))


def wrap_forward(module: nn.Module, make: Wrapper, restore: ExitStack) -> None:
    """Replace a module's forward by `make(forward)` until `restore` closes."""
    # accelerate replaces `forward` by a hook that loads weights, then calls `_old_forward`.
    attribute = "_old_forward" if "_old_forward" in module.__dict__ else "forward"
    is_set = attribute in module.__dict__
    inner: Forward = getattr(module, attribute)
    setattr(module, attribute, make(inner))
    if is_set:
        restore.callback(setattr, module, attribute, inner)
    else:
        restore.callback(delattr, module, attribute)


def listening(hear: Callable[[Any], None]) -> Wrapper:
    """Hands what each call of a forward returns to `hear`, such as the `append` of a list."""

    def wrapper(inner: Forward) -> Forward:
        def forward(*args: Any, **kwargs: Any) -> Any:
            output = inner(*args, **kwargs)
            hear(output)
            return output

        return forward

    return wrapper


def instead(output: Any) -> Wrapper:
    """Returns `output` at each call of a forward, which does not run."""
    return lambda _inner: lambda *_args, **_kwargs: output


@contextmanager
def other_forwards(modules: Sequence[nn.Module], forwards: Sequence[Forward]) -> Iterator[None]:
    """Other forwards while open; modules keep their attributes, which their model may read.

    Unlike `wrap_forward` this also replaces accelerate's hook: a module that does not run needs no
    weights.
    """
    with ExitStack() as restore:
        for module, forward in zip(modules, forwards, strict=True):
            if previous := module.__dict__.get("forward"):
                restore.callback(setattr, module, "forward", previous)
            else:
                restore.callback(delattr, module, "forward")
            module.forward = forward
        yield


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
