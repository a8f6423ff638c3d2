"""Names of files that mean harm or are only unusual, for the tests of every medium."""

import json
import shutil
from pathlib import Path

# Names that a file may have, and that `calibrate` takes.
FILES = (
    "run:2.jsonl",
    "2026-11-24T10:30:00.jsonl",
    "a,b.jsonl",
    "x=y.jsonl",
    "c4=y.jsonl",
    "a|b.jsonl",
    "a`b.jsonl",
    "<b>x.jsonl",
    "100%.jsonl",
    "%{x}.jsonl",
    "# $x$ *y* _z_ [q](r).jsonl",
    "~nobody.jsonl",
    "-o.jsonl",
    "=cmd()+1.jsonl",
    ":smile: &lt;.jsonl",
    "\u05e9\u200f\u6f22 \N{ROCKET}.jsonl",
)
# Names that another program or machine wrote into a manifest.
FOREIGN = (
    "foo",
    "foo:2",
    "foo:bar",
    "foo:0",
    "red.jsonl+blue.jsonl",
    "(blend)",
    "hub:x.jsonl",
    "\x1b[31mred\x1b]0;title\x07",
    "two\nerror: lines\r\t\x9b2J\u202e",
    "<script>alert(1)</script>![x](http://127.0.0.1:9/p)\n\n## License\n\nfree",
)


def renamed_run(run: Path, name: str, number: int) -> Path:
    """A copy of a calibration run, whose corpus has another name."""
    copy = shutil.copytree(run, run.with_name(f"{run.name}-{number}"))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["corpora"][0]["name"] = name
    manifest["run_id"] = copy.name
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy
