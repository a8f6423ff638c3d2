"""The tree of modules: every file of code with its docstring's first line."""

import ast
from pathlib import Path

__all__ = ["PACKAGES", "tree"]

PACKAGES = ("analysis", "pruning", "app")
_WIDTH = 36


def tree(root: Path) -> str:
    """The tree of all modules as a block of Markdown.

    Args:
        root: the folder that holds the packages.

    Returns:
        One line a module, files before folders, each in the order of their names.
    """
    lines = [line for name in PACKAGES for line in _folder(root / name, 0)]
    return "\n".join(["```", *lines, "```"])


def _folder(folder: Path, depth: int) -> list[str]:
    inner = [path for path in sorted(folder.iterdir()) if path.name != "__pycache__"]
    modules = [path for path in inner if path.suffix == ".py" and path.name != "__init__.py"]
    folders = [path for path in inner if path.is_dir() and any(path.rglob("*.py"))]
    return [
        _line(f"{folder.name}/", folder / "__init__.py", depth),
        *(_line(path.name, path, depth + 1) for path in modules),
        *(line for path in folders for line in _folder(path, depth + 1)),
    ]


def _line(name: str, module: Path, depth: int) -> str:
    return f"{'  ' * depth + name:<{_WIDTH}}{_first_line(module)}".rstrip()


def _first_line(module: Path) -> str:
    """The first sentence line of a module's docstring; nothing for a folder that is no package."""
    if not module.exists():
        return ""
    said = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return said.partition("\n")[0].removesuffix(".")
