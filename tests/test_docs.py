"""Documentation that cannot rot: commands, criteria, families, files and snippets are checked."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pandas as pd
import pytest
import yaml
from pyarrow import parquet
from shipped import shipped_lines, shipped_run
from typer.testing import CliRunner

from analysis.criteria import CRITERIA, VARIANTS
from analysis.families.base import MoELayer
from analysis.families.listing import FAMILIES
from analysis.ranking.published import PAPERS
from app.cli import cli
from builders.statistics import expert_stats
from pruning.plan.budget import count_budget
from pruning.plan.plan_file import load_plan
from pruning.plan.units import expert_units
from pruning.schedules.spreads import Evidence
from tools.reference.commands import all_commands, options_of
from tools.reference.pages import COMMAND, stale

ROOT = Path(__file__).parent.parent
DEV = ROOT / "docs" / "dev"
README = (ROOT / "README.md").read_text()


def snippets(path: Path) -> list[str]:
    return re.findall(r"```python[^\n]*\n(.*?)```", path.read_text(), flags=re.S)


def test_what_is_written_from_the_code_is_up_to_date():
    behind = [str(path.relative_to(ROOT)) for path in stale(ROOT)]
    assert behind == [], f"these pages are behind the code: run `{COMMAND}` and commit them"


def test_the_reference_has_a_row_for_every_criterion_and_family():
    pages = "\n".join(
        (ROOT / "docs" / "reference" / f"{name}.md").read_text()
        for name in ("criteria", "families")
    )
    rows = {line.split("|")[1].strip() for line in pages.splitlines() if line.startswith("| `")}
    wanted = (*CRITERIA, *FAMILIES, *("{},{},{}".format(*exponents) for exponents in VARIANTS))
    assert {f"`{name}`" for name in wanted} <= rows
    assert f"[{len(FAMILIES)} families]" in README
    assert f"{len(FAMILIES)} model types" in README


def command_lines():
    """(page, command line) of every block of shell in the documentation, continued lines joined."""
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for block in re.findall(r"```(?:bash|sh)\n(.*?)```", page.read_text(), flags=re.S):
            for line in block.replace("\\\n", " ").splitlines():
                for part in re.split(r"&&|;|\| ", line.partition(" #")[0]):
                    if found := re.search(r"(?:moeprune|-m app\.cli) (.+)", part):
                        yield page.name, found[1].strip()


def test_every_command_line_of_the_documentation_is_one_that_exists():
    known = dict(all_commands())
    shown = list(command_lines())
    assert len(shown) > 50
    wrong = []
    for page, line in shown:
        words = line.split()
        wide = [" ".join(words[:count]) for count in (2, 1)]
        name = next((name for name in wide if name.partition("|")[0] in known), None)
        if name is None:
            wrong.append((page, line))
            continue
        options = options_of(known[name.partition("|")[0]]) | {"--help", "--debug"}
        used = re.findall(r"(?<!\S)--?[a-z][a-z-]*", line)
        wrong += [(page, line, option) for option in used if option not in options]
    assert wrong == []


def test_readme_has_the_two_commands_and_ci_runs_the_second():
    command = README.partition("<!-- tests -->")[2].partition("<!-- /tests -->")[0]
    assert "pip install -c constraints.txt -e '.[dev]' && pytest" in command
    assert "&& moeprune demo\n" in README
    assert "<!-- tests -->" in (ROOT / ".ci" / "run").read_text()


def keys_of(value) -> set[str]:
    """Keys of JSON at the top, and one level below in plain objects."""
    inner = [item for item in value.values() if isinstance(item, dict)]
    return {*value, *(key for item in inner for key in item if key.isidentifier())}


def test_git_status_shows_nothing_that_the_readme_writes(tmp_path):
    """Its commands may be run in the clone that they are installed from."""
    files = {"recipe.yaml", "recipe.plan.json", "recipe.result.json", "result.json"}
    files |= set(re.findall(r"^moeprune \w+ demo .* -o (\S+)", README, re.M))
    folders = {"demo-pruned", *re.findall(r"^moeprune export demo (\S+)/ ", README, re.M)}
    folders |= set(re.findall(r'model\.export\(plan, "(.+)"\)', README))
    assert (len(files), len(folders)) == (8, 3)
    (tmp_path / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    for name in (*files, *(f"{folder}/config.json" for folder in folders), "other.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    said = subprocess.check_output(["git", "status", "--porcelain"], cwd=tmp_path, text=True)
    assert said.splitlines() == ["?? .gitignore", "?? other.json"]


def test_formats_name_every_key_of_the_files_that_ship():
    named = set(re.findall(r"`([\w.]+)`", (ROOT / "docs" / "reference" / "files.md").read_text()))
    manifest = shipped_run("demo-math") / "manifest.json"
    texts = [manifest.read_text(), *shipped_lines("evaluations").values()]
    for raw in map(json.loads, texts):
        # Names of files, measures and libraries are data.
        free = {key for part in ("files", "metrics", "full") for key in raw.get(part, {})}
        assert keys_of(raw) - free - named == set()


def test_the_columns_of_the_reference_are_those_of_the_statistics_that_ship():
    page = (ROOT / "docs" / "reference" / "formats.md").read_text()
    names = {"double": "float64", "string": "text"}
    files = list(shipped_run("demo-math").glob("*.parquet"))
    assert len(files) == 8
    for file in files:
        section = page.partition(f"### {file.name}\n")[2].partition("\n###")[0]
        rows = re.findall(r"^\| `(\w+)` \| ([\w ]+) \|", section, flags=re.M)
        for field in parquet.read_schema(file):
            kind = "list of float64" if field.name == "vector_sum" else str(field.type)
            assert (field.name, names.get(kind, kind)) in rows


def test_the_python_snippet_of_the_readme_prunes_the_demo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (snippet,) = snippets(ROOT / "README.md")
    exec(compile(snippet, "README.md", "exec"), {})  # noqa: S102
    assert (tmp_path / "pruned-demo" / "config.json").is_file()


def test_the_snippets_of_the_page_on_python_do_what_the_command_line_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    named: dict[str, object] = {}
    for snippet in snippets(ROOT / "docs" / "guide" / "python.md"):
        exec(compile(snippet, "python.md", "exec"), named)  # noqa: S102
    words = ["plan", "demo", "--force", "--calibrated-on", "demo-code", "-o", "by-command.json"]
    for plan, own in (
        ("plan", "--criterion reap --sparsity 50% --schedule global"),
        (
            "narrower",
            "--criterion heapr --granularity neuron --params-share 20% --neuron-scope layer",
        ),
    ):
        done = CliRunner().invoke(cli, [*words, *own.split()])
        assert done.exit_code == 0, done.output
        assert plan_digest(Path("by-command.json")) == named[plan].digest
    assert plan_digest(Path("plan.json")) == named["plan"].digest
    assert named["result"].metrics["nll"].mean > named["result"].full["nll"].mean


def test_the_snippet_on_schedules_makes_a_working_schedule():
    names: dict[str, object] = {}
    (snippet,) = snippets(ROOT / "docs" / "dev" / "adding-a-schedule.md")
    exec(compile(snippet, "adding-a-schedule.md", "exec"), names)  # noqa: S102
    layers = tuple(MoELayer(number, 8, 2) for number in range(4))
    units = expert_units(layers)
    assert names["spread_ends"](units, count_budget(units, 6), Evidence()) == (1, 2, 2, 1)


def plan_digest(path):
    return load_plan(path).digest


@pytest.fixture
def gate_energy():
    namespace: dict[str, object] = {}
    (snippet,) = snippets(ROOT / "docs" / "dev" / "adding-a-criterion.md")
    exec(compile(snippet, "adding-a-criterion.md", "exec"), namespace)  # noqa: S102
    return namespace["GATE_ENERGY"]


def test_the_snippet_on_criteria_makes_a_working_criterion(gate_energy):
    criterion = gate_energy
    table = expert_stats().table
    scores = criterion.score(table[list(criterion.columns("applied"))], "applied")
    assert scores.tolist() == pytest.approx(table["applied_g2_f0"].tolist())


def test_the_command_on_criteria_ranks_by_it(tmp_path, monkeypatch, gate_energy):
    page = (ROOT / "docs" / "dev" / "adding-a-criterion.md").read_text()
    words = re.search(r"^moeprune (score .+?) -o", page, flags=re.M)[1].split()
    monkeypatch.setitem(CRITERIA, gate_energy.name, gate_energy)
    out = tmp_path / "scores.csv"
    done = CliRunner().invoke(cli, [*words, "-o", str(out), "--stats-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    scores = pd.read_csv(out)
    measured = pd.read_parquet(shipped_run("demo-code") / "experts.parquet")
    assert scores["score"].tolist() == pytest.approx(measured["applied_g2_f0"].tolist())
    best = measured.loc[measured[measured["layer"] == 3]["applied_g2_f0"].idxmax(), "expert"]
    assert scores[(scores["layer"] == 3) & (scores["rank"] == 0)]["expert"].item() == best


def test_the_snippet_on_families_makes_a_working_family():
    namespace: dict[str, object] = {}
    snippet, _ = snippets(ROOT / "docs" / "dev" / "adding-a-family.md")
    exec(compile(snippet, "adding-a-family.md", "exec"), namespace)  # noqa: S102
    family = namespace["NEW_MOE"]
    for block, bias in (("mlp", "gate.e_score"), ("block_sparse_moe", "e_score")):
        slot = family.locate(f"model.layers.3.{block}.{bias}_correction_bias")
        assert (slot.layer, slot.role) == (3, "gate.e_score_correction_bias")
    assert family.locate("model.layers.3.block_sparse_moe.experts.2.w3.weight").projection == "up"


def test_constraints_are_plain_public_pins():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9_.\-]+==[0-9][A-Za-z0-9.]*", line), line
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text()


def test_the_citation_has_the_papers_and_the_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    assert cited["authors"] == project["authors"]
    titles = [reference["title"].lower() for reference in cited["references"]]
    words = (
        "one-shot",
        *(PAPERS[name].split(",")[0].lower() for name in PAPERS if name != "unified"),
    )
    assert len(titles) == len(PAPERS)
    assert all(any(word in title for title in titles) for word in words)
    numbers = str([reference.get("identifiers") for reference in cited["references"]])
    assert all(number in numbers for number in re.findall(r"arXiv:[\d.]+", str(PAPERS)))


def test_the_jobs_of_the_forge_run_ci_and_both_ends_of_the_versions():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    steps = {name: [step.get("run", "") for step in job["steps"]] for name, job in jobs.items()}
    assert ".ci/run" in steps["all"]
    assert "python -m tools.versions test ${{ matrix.versions }}" in steps["versions"]
    matrix = jobs["versions"]["strategy"]["matrix"]
    assert matrix["versions"] == ["lowest", "newest"]
    assert matrix["python"][0] == "3.11"
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert {hook["repo"] for hook in hooks} == {"local"}  # nothing is fetched


def test_every_relative_link_of_the_documentation_leads_to_a_file():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    broken = [
        (page.name, target)
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def links_of(page: Path) -> set[Path]:
    """The pages that a page leads to; a folder stands for all pages in it."""
    targets = re.findall(r"\]\(([^)#:]+)", page.read_text())
    places = {(page.parent / target).resolve() for target in targets}
    inside = {path for place in places if place.is_dir() for path in place.glob("*.md")}
    return {place for place in places | inside if place.suffix == ".md"}


def test_every_page_of_the_documentation_is_reached_from_the_readme():
    reached: set[Path] = set()
    waiting = {ROOT / "README.md"}
    while waiting:
        page = waiting.pop()
        reached.add(page)
        waiting |= links_of(page) - reached
    pages = {page.resolve() for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(page.name for page in pages - reached) == []


def test_the_site_lists_every_page():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    listed = re.findall(r"'([\w/-]+\.md)'", str(nav))
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(pages)


def test_the_files_that_guides_for_developers_name_exist():
    pages = [ROOT / "CONTRIBUTING.md", DEV / "security.md", *DEV.glob("adding-*.md")]
    named = [
        (page.name, name)
        for page in pages
        for name in re.findall(
            r"`((?:analysis|app|pruning|tests|tools|docs)/[\w./*-]+)`", page.read_text()
        )
    ]
    assert len(named) > 60
    assert [(page, name) for page, name in named if not list(ROOT.glob(name))] == []


def test_the_tests_that_the_page_on_security_names_exist():
    named = re.findall(
        r"`((?:tests/[\w/]*/)?(?:test_\w+\.py)?)(?:::(\w+))?`", (DEV / "security.md").read_text()
    )
    named = [pair for pair in named if any(pair)]
    assert len(named) > 50
    missing = []
    for file, name in named:
        # See below its table: where they are without a folder or a file.
        place = file if "/" in file else f"tests/app/{file or 'test_security.py'}"
        text = (ROOT / place).read_text() if (ROOT / place).is_file() else ""
        if not text or (name and not re.search(rf"^def {name}\(", text, flags=re.M)):
            missing.append((place, name))
    assert missing == []


def test_the_documentation_of_users_stays_short():
    """What is said twice goes, before something is added."""
    pages = [ROOT / "README.md", *(ROOT / "docs" / "guide").glob("*.md")]
    pages += (ROOT / "docs" / "concepts").glob("*.md")
    # 15,800; pages on traffic, published checkpoints and ways to shrink; bits and experts per token
    # by layer, placement, recipes of other programs; the whole path at real size, measured.
    assert sum(len(page.read_text().split()) for page in pages) <= 17_600
    reference = (ROOT / "docs" / "reference").glob("*.md")
    written = re.compile(r"<!-- written: .*?<!-- /written -->", flags=re.S)
    texts = [written.sub("", page.read_text()) for page in reference]
    assert sum(len(text.split()) for text in texts) <= 7_000  # with the page of versions
