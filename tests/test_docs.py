"""Documentation that cannot rot: commands, criteria, families, files and snippets are checked."""

import ast
import re
from pathlib import Path

import pytest

from analysis.criteria import CRITERIA, RANKABLE
from analysis.families import FAMILIES
from analysis.stats import EXPERT_COLUMNS
from app.reference.commands import all_commands, options_of
from app.reference.pages import COMMAND, stale

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def snippets(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.S)


def test_what_is_written_from_the_code_is_up_to_date():
    behind = [str(path.relative_to(ROOT)) for path in stale(ROOT)]
    assert behind == [], f"these pages are behind the code: run `{COMMAND}` and commit them"


def test_readme_lists_every_criterion_with_its_exponents():
    assert f"{len(RANKABLE)} rankable" in README
    for criterion in CRITERIA.values():
        row = next(line for line in README.splitlines() if line.startswith(f"| `{criterion.name}`"))
        if criterion.exponents:
            assert "({},{},{})".format(*criterion.exponents) in row


def test_readme_lists_every_family():
    rows = [f"| `{f.model_type}` | {f.label} | {f.gate_rule} |" for f in FAMILIES.values()]
    assert [row for row in rows if row not in README] == []


def test_the_tree_has_a_line_for_every_module_with_what_it_says_of_itself():
    page = (ROOT / "docs" / "architecture.md").read_text()
    tree = page.partition("<!-- written: tree -->")[2].partition("<!-- /written -->")[0]
    listed = re.findall(r"^ *(\w+\.py) +(\S.+)$", tree, flags=re.M)
    modules = [
        (path.name, ast.get_docstring(ast.parse(path.read_text())).splitlines()[0].rstrip("."))
        for top in ("analysis", "pruning", "app")
        for path in (ROOT / top).rglob("*.py")
        if path.name != "__init__.py"
    ]
    assert sorted(listed) == sorted(modules)


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


def test_formats_document_every_column_of_the_statistics():
    formats = (ROOT / "docs" / "formats.md").read_text()
    named = re.sub(r"\{1,2\}_f\{0,1,2\}", "", formats)
    plain = [name for name in EXPERT_COLUMNS if "_g1_" not in name and "_g2_" not in name]
    assert [name for name in plain if f"`{name}`" not in named] == []
    assert "applied_g" in formats
    assert "renormalized_g" in formats


def test_the_python_snippet_of_the_readme_prunes_the_demo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (snippet,) = snippets(ROOT / "README.md")
    exec(compile(snippet, "README.md", "exec"), {})  # noqa: S102
    assert (tmp_path / "pruned-demo" / "config.json").is_file()


def test_the_snippet_on_criteria_makes_a_working_criterion(make_expert_stats):
    namespace: dict[str, object] = {}
    (snippet,) = snippets(ROOT / "docs" / "adding-a-criterion.md")
    exec(compile(snippet, "adding-a-criterion.md", "exec"), namespace)  # noqa: S102
    criterion = namespace["GATE_ENERGY"]
    table = make_expert_stats().table
    scores = criterion.score(table[list(criterion.columns("applied"))], "applied")
    assert scores.tolist() == pytest.approx(table["applied_g2_f0"].tolist())


def test_the_snippet_on_families_makes_a_working_family():
    namespace: dict[str, object] = {}
    (snippet,) = snippets(ROOT / "docs" / "adding-a-family.md")
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


def test_every_relative_link_of_the_documentation_leads_to_a_file():
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    broken = [
        (page.name, target)
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
