"""Serving engines against transformers, on exports of every family.

Left out unless asked for: `python -m tools.engines mlx`, then `python -m pytest -m engines -k mlx`.
With `--write-engine-results` the rows go into `pruning/serving/engine_results.json`.
"""

import pytest
from engines.checkpoints import ENGINE_CASES

from pruning.serving.engine_results import CUTS, ENGINES, results


@pytest.mark.engines
@pytest.mark.parametrize("cut", CUTS, ids=[cut.replace(" ", "-") for cut in CUTS])
@pytest.mark.parametrize("case", ENGINE_CASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_row(rows_of, engine, case, cut):
    found = rows_of(engine, case).get(cut)
    if found is None:
        pytest.skip(f"{case} has no such cut")
    known = {row.id: row for row in results()}[found.id]
    assert (found.works, found.question) == (known.works, known.question), found
    if found.works:
        assert found.equal == found.tokens
