"""The shape of the code: who may import whom, what the dashboard loads, sizes, and habits."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

from analysis.families.listing import FAMILIES

ROOT = Path(__file__).parent.parent
# From the top: each may import those to its right, never the other way.
PACKAGES = ("app", "pruning", "analysis")
# Within app, from the bottom: each imports from those before it only.
APP_LAYERS = ("tables", "choices", "loaded", "charts", "session", "widgets", "pages")
# The rooms of a package, from the bottom: each imports itself and those before it only.
ROOMS = {
    "analysis": (
        "numbers files machine checkpoint families model demo corpora nonuniform stats criteria "
        "calibration ranking traffic"
    ),
    "pruning": (
        "plan measures measurements schedules spec records engine serving surgery benchmarks "
        "requests search planning repair tasks actions"
    ),
}
MAX_FILE_LINES = 500
# Complexity is what ruff limits; a figure is one long expression.
MAX_FUNCTION_LINES = 60
HEAVY = {"torch", "transformers"}


def source_files(*packages):
    found = {name: list((ROOT / name).rglob("*.py")) for name in packages}
    assert all(found.values()), found
    return sorted(path for paths in found.values() for path in paths)


def layer_files(layer):
    """The files of a layer of app, which is a folder or one file."""
    file = ROOT / "app" / f"{layer}.py"
    return [file] if file.is_file() else source_files(f"app/{layer}")


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def within(name, packages):
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@cache
def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes(path):
    return tuple(ast.walk(parse(path)))


@cache
def imported(path):
    """Dotted names of all imports in a file, also those inside functions."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    names = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return names


def top(name):
    return name.partition(".")[0]


def relative(path):
    return str(path.relative_to(ROOT))


def text_files():
    """Text that git would carry: tracked and not yet tracked, without what is ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in path.read_bytes()[:8192]:
            yield path


def test_imports_go_from_app_to_pruning_to_analysis():
    for higher, lower in pairwise(PACKAGES):
        above = set(PACKAGES[: PACKAGES.index(higher) + 1])
        wrong = {
            relative(path): sorted(found)
            for path in source_files(lower)
            if (found := {name for name in imported(path) if top(name) in above})
        }
        assert wrong == {}


def test_layers_of_app_import_downwards():
    for position, layer in enumerate(APP_LAYERS):
        above = {f"app.{name}" for name in APP_LAYERS[position + 1 :]}
        wrong = {
            relative(path): sorted(found)
            for path in layer_files(layer)
            if (found := {name for name in imported(path) if within(name, above)})
        }
        assert wrong == {}, layer


def names_of(path):
    """What a module has at its top, also under a condition."""
    names, todo = set(), [parse(path)]
    for node in todo:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        else:
            todo += ast.iter_child_nodes(node)
    return names


def test_tools_import_what_there_is():
    # The type checker reads the packages alone.
    packages = (*PACKAGES, "tools")
    known = {module_name(path): path for path in source_files(*packages)}
    wrong = [
        f"{relative(path)}: {node.module}.{alias.name}"
        for path in source_files("tools")
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and top(node.module or "") in packages
        for alias in node.names
        if f"{node.module}.{alias.name}" not in known
        if node.module not in known or alias.name not in names_of(known[node.module])
    ]
    assert wrong == []


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_downwards(package):
    rooms = ROOMS[package].split()
    assert {path.parent.name for path in (ROOT / package).glob("*/*.py")} == set(rooms)
    for position, room in enumerate(rooms):
        above = {f"{package}.{name}" for name in rooms[position + 1 :]}
        wrong = {
            relative(path): sorted(names)
            for path in source_files(f"{package}/{room}")
            if (names := {name for name in imported(path) if within(name, above)})
        }
        assert wrong == {}, room


def part(name):
    """The part of a package that a dotted name lies in: a folder or file directly in it."""
    return ".".join(name.split(".")[:2])


@pytest.mark.parametrize("package", ["app", *ROOMS])
def test_no_parts_import_each_other_in_a_circle(package):
    parts = {part(module_name(path)) for path in source_files(package)} - {package}
    graph = {name: set() for name in parts}
    for path in source_files(package):
        importer = part(module_name(path))
        if importer in parts:
            graph[importer] |= {part(name) for name in imported(path)} & parts - {importer}
    assert set(TopologicalSorter(graph).static_order()) == parts  # a circle is its CycleError


def test_the_page_of_the_architecture_lists_the_rooms_in_their_order():
    page = (ROOT / "docs/dev/architecture.md").read_text(encoding="utf-8")
    for package, rooms in ROOMS.items():
        block = page.partition(f"\n{package}/ ")[2].partition("\n```")[0]
        block = re.split(r"\n(?=\w)", block)[0]
        listed = " ".join(line for line in block.splitlines() if re.match(r"  \w", line))
        assert re.findall(r"(?<!\S)(\w+)/(?=\s)", listed) == rooms.split()


def test_pages_do_not_know_each_other():
    wrong = {}
    for path in source_files("app/pages"):
        page = path.relative_to(ROOT / "app/pages").with_suffix("").parts[0]
        others = {name for name in imported(path) if name.startswith("app.pages.")}
        others -= {name for name in others if within(name, {f"app.pages.{page}"})}
        if others and page not in ("main", "listing"):
            wrong[relative(path)] = sorted(others)
    assert wrong == {}


def test_streamlit_finds_no_pages_of_its_own():
    # It runs every file of a folder `pages` beside the entry script, before anybody logs in.
    (entry,) = (ROOT / "app").rglob("main.py")
    assert not (entry.parent / "pages").exists()


@pytest.mark.parametrize("layer", ["tables", "choices", "loaded", "charts", "jobs", "cli"])
def test_what_commands_and_workers_share_knows_no_streamlit(layer):
    # Of the layers of pages, commands may use none.
    pages = {f"app.{name}" for name in ("session", "widgets", "pages")} | {"streamlit"}
    wrong = {
        relative(path): sorted(found)
        for path in layer_files(layer)
        if (found := {name for name in imported(path) if within(name, pages)})
    }
    assert wrong == {}


def test_only_app_imports_streamlit():
    wrong = [
        relative(path)
        for path in source_files("analysis", "pruning")
        if "streamlit" in map(top, imported(path))
    ]
    assert wrong == []


# What stands above a room without being one -> who may import it besides itself.
ABOVE = {
    "pruning.tasks": ("pruning/tasks/", "pruning/actions/", "pruning/model.py"),
    "pruning.actions": ("pruning/actions/", "pruning/model.py"),
    "pruning.model": ("pruning/model.py", "pruning/__init__.py"),
    "pruning.study": ("pruning/tasks/", "pruning/actions/", "pruning/model.py"),
}


@pytest.mark.parametrize("module", ABOVE)
def test_what_is_above_the_rooms_is_imported_only_by_the_interface(module):
    wrong = [
        relative(path)
        for path in source_files("analysis", "pruning")
        if not relative(path).startswith(ABOVE[module])
        and any(within(name, {module}) for name in imported(path))
    ]
    assert wrong == []


@cache
def imported_at_once(path):
    """Dotted names of the imports that run when a file is imported."""
    pending, names = list(parse(path).body), set()
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_type_check = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            pending += node.orelse if is_type_check else ast.iter_child_nodes(node)
    # A package is imported before what is in it.
    return names | {name.rpartition(".")[0] for name in names if "." in name}


@cache
def heavy_modules():
    """Our modules that load torch when they are imported, by what their files import."""
    files = {module_name(path): path for path in source_files(*PACKAGES)}
    heavy, before = set(HEAVY), set()
    while heavy != before:
        before = set(heavy)
        heavy |= {
            name
            for name, path in files.items()
            if any(module in heavy or top(module) in HEAVY for module in imported_at_once(path))
        }
    return heavy - HEAVY


def test_imports_inside_functions_only_put_off_torch():
    # Any other would hide a cycle. Nothing below imports tasks, which put off what they use.
    free = ("pruning/tasks/", "pruning/actions/", "pruning/__init__.py")
    wrong = [
        f"{relative(path)}:{node.lineno}"
        for path in source_files("analysis", "pruning")
        if not relative(path).startswith(free)
        for function in nodes(path)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom)
        and top(node.module or "") in PACKAGES
        and node.module not in heavy_modules()
    ]
    assert wrong == []


def test_the_dashboard_and_its_commands_load_neither_torch_nor_transformers():
    # Not scripts; what the dashboard's imports is imported here too.
    scripts = ("main.py", "__main__.py", "worker.py")
    modules = [module_name(path) for path in source_files("app") if path.name not in scripts]
    assert heavy_modules().isdisjoint(modules)
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    heavy = sorted({'torch', 'transformers'} & set(sys.modules))\n"
        "    assert not heavy, f'{name} loads {heavy}'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *modules],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_no_file_is_longer_than_500_lines():
    lengths = {
        relative(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in source_files(*PACKAGES)
    }
    assert {name: n for name, n in lengths.items() if n > MAX_FILE_LINES} == {}


def function_lengths(path):
    """Lines from `def` to the end, without the docstring.

    Of commands only the body counts: their signature is the table of their options.
    """
    is_command = "cli" in path.parts
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            start = node.body[0].lineno if is_command else node.lineno
            lines = node.end_lineno - start + 1
            if ast.get_docstring(node) is not None:
                lines -= node.body[0].end_lineno - node.body[0].lineno + 1
            yield f"{relative(path)}:{node.lineno} {node.name}", lines


def test_no_function_is_longer_than_a_page():
    offenders = {
        where: lines
        for path in source_files(*PACKAGES)
        for where, lines in function_lengths(path)
        if lines > MAX_FUNCTION_LINES
    }
    assert offenders == {}


@pytest.mark.parametrize("name", ["utils", "helpers", "common", "misc"])
def test_no_module_is_a_drawer(name):
    assert [relative(path) for path in source_files(*PACKAGES) if name in path.parts] == []
    assert [relative(p) for p in source_files(*PACKAGES) if p.stem == name] == []


def test_nothing_is_pickled():
    names = {"pickle", "cloudpickle", "dill", "joblib", "shelve"}
    # A file that imports one has its name in it; the others need not be parsed.
    named = re.compile("|".join(names))
    wrong = [
        relative(path)
        for path in source_files(*PACKAGES, "tests")
        if named.search(path.read_text(encoding="utf-8")) and names & set(map(top, imported(path)))
    ]
    assert wrong == []
    calls = [
        f"{relative(path)}:{node.lineno}"
        for path in source_files(*PACKAGES)
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("load", "save")
        and ast.unparse(node.func) in ("torch.load", "torch.save", "np.load", "numpy.load")
    ]
    assert calls == []


def test_model_types_are_named_only_by_their_families():
    names = set(FAMILIES)
    wrong = [
        f"{relative(path)}:{node.lineno} {node.value}"
        for path in source_files(*PACKAGES)
        if "families" not in path.parts
        for node in nodes(path)
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert wrong == []


def test_no_path_of_one_machine_is_in_the_tree():
    # Put together here, so that this file does not find itself.
    machine = re.compile(rf"(?<![\w.:/~$}}-])/({'|'.join(('root', 'home', 'work', 'opt'))})/\w")
    wrong = [
        f"{relative(path)}:{number}"
        for path in text_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if machine.search(line)
    ]
    assert wrong == []
