"""Tiny checkpoints, saved once for all tests of this folder; nobody writes into them."""

from collections.abc import Callable
from typing import Any

import pytest
from neuron_cases import Exported, Source, export_widths, make_source
from nonuniform_cases import NAMED, Pruned, make_pruned
from threads import one_thread  # noqa: F401

from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from builders import TinyCheckpoint, tiny_checkpoint
from families.configs import Case

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


@pytest.fixture(scope="session")
def pruned_case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Pruned]:
    """`pruned_case(case)`: the non-uniform export of a family; each is made once."""
    made: dict[str, Pruned] = {}

    def get(case: Case) -> Pruned:
        if case.name not in made:
            made[case.name] = make_pruned(case, tmp_path_factory.mktemp(case.name))
        return made[case.name]

    return get


@pytest.fixture(scope="session")
def neuron_source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Source]:
    """`neuron_source(case)`: the checkpoint of a family, a plan of neurons; each is made once."""
    made: dict[str, Source] = {}

    def get(case: Case) -> Source:
        if case.name not in made:
            made[case.name] = make_source(case, tmp_path_factory.mktemp(case.name))
        return made[case.name]

    return get


@pytest.fixture(scope="session")
def width_export(
    tmp_path_factory: pytest.TempPathFactory, neuron_source: Callable[[Case], Source]
) -> Callable[[Case, str], Exported]:
    """`width_export(case, mode)`: the plan of a family's neurons, exported; each is made once."""
    made: dict[tuple[str, str], Exported] = {}

    def get(case: Case, mode: str) -> Exported:
        if (case.name, mode) not in made:
            path = tmp_path_factory.mktemp(f"{case.name}-{mode}") / "out"
            made[case.name, mode] = export_widths(neuron_source(case), path, mode)
        return made[case.name, mode]

    return get


@pytest.fixture(scope="session")
def demo() -> MoEModel:
    return load_model_index("demo")


@pytest.fixture(scope="session")
def olmoe(checkpoint: MakeCheckpoint) -> MoEModel:
    """The tiny OLMoE: layers 0, 1, 2 of 7 experts of 24 neurons, top-2."""
    return load_model_index(str(checkpoint("olmoe").path))


@pytest.fixture(scope="session")
def flex_olmo(pruned_case: Callable[[Case], Pruned]) -> Pruned:
    """A non-uniform export of the plainest family, with 6 and 3 of 7 experts."""
    return pruned_case(NAMED["flex_olmo"])
