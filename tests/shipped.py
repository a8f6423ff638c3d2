"""Records that ship as lines: the text of each by its id."""

import json

from analysis.stats.store import SHIPPED_STATS


def shipped_lines(folder, prefix="demo-"):
    """Id -> line of the records of a folder, by id, without those of the grid."""
    lines = (SHIPPED_STATS / folder / "demo.jsonl").read_text().splitlines()
    # An id is the second field: answers_id, evaluation_id, lens_id or record_id.
    by_id = {list(json.loads(line).values())[1]: line for line in lines}
    return {name: line for name, line in by_id.items() if name.startswith(prefix)}
