"""Records that ship as lines: the text of each by its id."""

import json
from functools import cache

import numpy as np

from analysis.files.shipped import SHIPPED_STATS


def shipped_lines(folder, prefix="demo-"):
    """Id -> line of the records of a folder, by id, without those of the grid."""
    lines = (SHIPPED_STATS / folder / "demo.jsonl").read_text().splitlines()
    # An id is the second field: answers_id, evaluation_id, lens_id or record_id.
    by_id = {list(json.loads(line).values())[1]: line for line in lines}
    return {name: line for name, line in by_id.items() if name.startswith(prefix)}


@cache
def _rows(stem):
    """(plan, samples) -> measure -> (samples,) sums, and the counts, of a shard that ships."""
    rows = {}
    for line in (SHIPPED_STATS / "measurements" / f"{stem}.jsonl").read_text().splitlines():
        raw = json.loads(line)
        sums = dict(zip(raw["measure"], raw["sum"], strict=True))
        rows.setdefault((raw["plan"], raw["samples"]), {}).update(sums, count=raw["count"])
    return rows


@cache
def _results(stem):
    """The evaluations of a file, in order; tests read them alone."""
    rows, results = _rows(f"{stem}-evaluations"), []
    for line in (SHIPPED_STATS / "evaluations" / f"{stem}.jsonl").read_text().splitlines():
        raw = json.loads(line)
        own, full = (
            rows[plan, raw["corpus"]["digest"]] for plan in (raw["plan_digest"], "original")
        )
        values = {
            "num_samples": len(own["count"]),
            "metrics": {
                name: {"mean": _mean(own, name)} for name in raw["measures"] if name in own
            },
            "full": {"nll": {"mean": _mean(full, "nll")}},
            "samples": {"tokens": own["count"], "nll": own["nll"], "full_nll": full["nll"]},
        }
        results.append(raw | values)
    return results


def shipped_results(prefix="demo-", stem="demo"):
    """The evaluations of a file, by id, with their losses as the lines of the table have them."""
    return (raw for raw in _results(stem) if raw["evaluation_id"].startswith(prefix))


def _mean(rows, measure):
    return float(np.divide(rows[measure], rows["count"]).mean())


def shipped_losses(**facts):
    """Digest -> corpus -> loss increase of the plans with these facts, without repair, in own bits.

    On the usual 64 samples; without the plans of the grid.
    """
    found = {}
    for raw in shipped_results():
        if raw["plan"].get("repair") or raw["plan"].get("bits"):
            continue
        if raw["num_samples"] == 64 and facts.items() <= raw["plan"].items():
            added = raw["metrics"]["nll"]["mean"] - raw["full"]["nll"]["mean"]
            found.setdefault(raw["plan_digest"], {})[raw["corpus"]["name"]] = added
    return found


def shipped_loss(criterion, *corpora):
    """Corpus -> loss increase of the plan that halves every layer by this criterion."""
    facts = {"criterion": criterion, "corpora": list(corpora), "granularity": "expert"}
    (added,) = shipped_losses(**facts, schedule="uniform", sparsity="50%").values()
    return added


def shipped_run(corpus):
    """The folder of the calibration on a corpus that ships."""
    (folder,) = SHIPPED_STATS.glob(f"demo-{corpus}-????????")
    return folder
