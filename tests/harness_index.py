"""The index of the harness's own tasks, read once for a module of tests."""

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def one_index_of_the_harness() -> Iterator[None]:
    """Every index of the harness reads its thousands of files, which are the same each time."""
    from lm_eval import tasks
    from lm_eval.tasks._index import TaskIndex

    build, own = TaskIndex.build, Path(tasks.__file__).parent
    known = cache(lambda: build([own]))

    def joined(paths: Iterable[Path], **options: Any) -> dict[str, Any]:
        places = [*paths]
        if places[:1] != [own]:
            return build(places, **options)
        return known() | build(places[1:], **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskIndex, "build", staticmethod(joined))
        yield
