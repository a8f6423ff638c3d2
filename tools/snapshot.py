"""Record what the program does as plain text, so that it can be compared before and after a change.

    python tools/snapshot.py record OUT [--only charts,plans,...] [--root CHECKOUT] [--jobs N]
    python tools/snapshot.py compare BEFORE AFTER

`record` uses only what a refactoring keeps: the command line, and the pages at their addresses. It
works on the demo model and the shipped statistics, offline, in folders of its own. It writes:

    charts/     the CSV of every view of `moeprune plot`, for several recipes
    plans/      plans of `moeprune plan` and `moeprune paths`: digest, kept counts by layer
    sizes/      `plans show`, `inspect`, `export --dry-run`
    exports/    manifest, config.json and hashes of all files of exports
    commands/   command line, exit status, output and files written
    pages/      every element of a page in order, as AppTest sees it

What differs from run to run is masked: see `snapshot/masks.py`. What fails is recorded as a
failure. `compare` prints what differs and exits 1 if anything does. Another checkout can be
recorded with `--root`, so that both sides are recorded by the same tool.

The one thing that a refactoring may have to change is `ENTRY` in `snapshot/pages.py`: the script of
the dashboard.
"""

import argparse
import sys
from pathlib import Path

from snapshot.comparing import compare
from snapshot.recording import SECTIONS, record, record_section

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Run one of the two commands; the exit status."""
    chosen = _parser().parse_args()
    if chosen.command == "compare":
        return compare(chosen.before, chosen.after, chosen.lines)
    if chosen.command == "section":
        record_section(chosen.name, chosen.out)
        return 0
    return record(chosen.out, _names(chosen.only), chosen.root.resolve(), chosen.jobs)


def _names(only: str) -> list[str]:
    """The sections that were asked for, in their order."""
    wanted = only.split(",") if only else list(SECTIONS)
    unknown = [name for name in wanted if name not in SECTIONS]
    if unknown:
        raise SystemExit(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    return [name for name in SECTIONS if name in wanted]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("record", help="record into a folder")
    making.add_argument("out", type=Path, help="folder; sections in it are written anew")
    making.add_argument("--only", default="", help=f"of {','.join(SECTIONS)}")
    making.add_argument("--root", type=Path, default=HERE.parent, help="checkout to record")
    making.add_argument("--jobs", type=int, default=1, help="sections at the same time")
    comparing = commands.add_parser("compare", help="print what differs between two folders")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--lines", type=int, default=30, help="lines of each difference")
    section = commands.add_parser("section", help="what `record` starts for each section")
    section.add_argument("name", choices=list(SECTIONS))
    section.add_argument("out", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
