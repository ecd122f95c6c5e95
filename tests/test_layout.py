"""The shape of the repository: which folder may import which, under which name, and what may be in a file."""

import ast
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SIBLINGS = ("kernels", "datasets", "policies")  # folders at the top, imported as worldmodel.NAME
ORDER = ("kernels", "worldmodel", "datasets", "policies", "configs", "demos", "tests")  # right may import left
CLI = "worldmodel/cli/"  # joins the parts, and may import everything
MAY_IMPORT_CLI = {"worldmodel/__main__.py"}
MAX_BYTES = 25_000_000
# Written so that they do not find themselves here.
PATHS = re.compile(r"(?<![\w.])/(?:work|root|home)[/]")
REGISTRIES = re.compile(
    r"pypi[.](?:org|python)|pythonhosted[.]org|registry[.](?:npm|yarn)|(?:deb|security)[.]debian[.]org|"
    r"download[.]pytorch[.]org|index[-]url|find[-]links"
)


@dataclass(frozen=True)
class Imported:
    """A module that a file names: absolute name, line, and whether the import runs when the file is imported."""

    name: str
    line: int
    at_import: bool


def module_name(path: Path) -> str:
    """Import name of a file, relative to the root of the repository."""
    parts = list(path.with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(["worldmodel", *parts] if parts[0] in SIBLINGS else parts)


def imports(root: Path, path: Path) -> list[Imported]:
    """Everything that a file imports. `from a import b` gives a.b: b can be a module."""
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: list[Imported] = []

    def absolute(name: str, level: int, package: str = package) -> str:
        base = package.split(".")[: len(package.split(".")) - level + 1] if level else []
        return ".".join([*base, *([name] if name else [])])

    def visit(node: ast.AST, at_import: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Imported(alias.name, node.lineno, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node.module or "", node.level)
            found.extend(Imported(f"{base}.{alias.name}", node.lineno, at_import) for alias in node.names)
        elif isinstance(node, ast.Call) and (literal := imported_by_call(node)):
            target, anchor = literal
            dots = len(target) - len(target.lstrip("."))
            found.append(Imported(absolute(target.lstrip("."), dots, anchor or package), node.lineno, at_import))
        lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and child in node.body
            visit(child, at_import and not lazy and not typing_only)

    visit(ast.parse((root / path).read_text(encoding="utf-8"), str(path)), True)
    return found


def imported_by_call(node: ast.Call) -> tuple[str, str] | None:
    """Name and anchor of import_module("...") or __import__("...") with a literal name."""
    function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if function not in ("import_module", "__import__"):
        return None
    values = [*node.args, *(word.value for word in node.keywords if word.arg in ("name", "package"))]
    words = [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    return (words[0], words[1] if len(words) > 1 else "") if words else None


def home(name: str) -> str | None:
    """Which of our folders a module lives in, None if it is not ours."""
    top, _, rest = name.partition(".")
    if top == "worldmodel":
        second = rest.split(".")[0]
        return second if second in SIBLINGS else top
    return top if top in ORDER and top not in SIBLINGS else None


def by_folder_name(root: Path, name: str) -> bool:
    """Whether a name such as datasets.clips or policies means our folder; Hugging Face owns `datasets`, `kernels`."""
    top, *rest = name.split(".")
    if top not in SIBLINGS:
        return False
    if top == "policies":
        return True
    return bool(rest) and ((root / top / rest[0]).is_dir() or (root / top / f"{rest[0]}.py").is_file())


def sources(root: Path) -> list[Path]:
    return [path.relative_to(root) for folder in ORDER for path in sorted((root / folder).rglob("*.py"))]


def import_violations(root: Path) -> list[str]:
    bad = []
    for path in sources(root):
        folder = path.parts[0]
        for found in imports(root, path):
            target, place = home(found.name), f"{path.as_posix()}:{found.line}"
            if by_folder_name(root, found.name):
                bad.append(f"{place} imports {found.name} by folder name, write worldmodel.{found.name}")
            elif target and ORDER.index(target) > ORDER.index(folder) and not path.as_posix().startswith(CLI):
                bad.append(f"{place} imports {found.name}: {folder} may not import {target}")
            elif (
                (found.name == "worldmodel.cli" or found.name.startswith("worldmodel.cli."))
                and ORDER.index(folder) <= ORDER.index("policies")
                and path.as_posix() not in MAY_IMPORT_CLI
                and not path.as_posix().startswith(CLI)
            ):
                bad.append(f"{place} imports worldmodel.cli, which may import everything")
    return bad


def cycles(root: Path) -> list[list[str]]:
    """Groups of our modules that import each other when imported (strongly connected components)."""
    modules = {module_name(path): path for path in sources(root)}
    graph = {}
    for name, path in modules.items():
        graph[name] = {
            prefix
            for found in imports(root, path)
            if found.at_import and (prefix := next((p for p in prefixes(found.name) if p in modules), None))
        }
    return [sorted(group) for group in components(graph) if len(group) > 1]


def prefixes(name: str) -> Iterator[str]:
    """a.b.c, a.b, a: the first that is a module is what `from a.b import c` or `import a.b.c` needs."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def components(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Tarjan, Depth-first search and linear graph algorithms, 1972."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(node: str) -> Iterator[list[str]]:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in order:
                yield from visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            yield group

    for node in sorted(graph):
        if node not in order:
            yield from visit(node)


def file_violations(root: Path, files: list[Path]) -> list[str]:
    """What no file of the repository may be or contain."""
    bad = []
    for path in files:
        place, full = path.as_posix(), root / path
        if path.name in ("utils.py", "util.py", "helpers.py"):
            bad.append(f"{place}: name it after what it does")
        if path.name == "__init__.py" and path.parent.as_posix() in SIBLINGS:
            bad.append(f"{place}: it would hide Hugging Face's package {path.parent}")
        if full.is_symlink() or not full.is_file():
            continue
        data = full.read_bytes()
        if len(data) > MAX_BYTES:
            bad.append(f"{place}: {len(data) / 1e6:.1f} MB")
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), start=1):
            for what, pattern in (("a path of one machine", PATHS), ("the address of a package registry", REGISTRIES)):
                if match := pattern.search(line):
                    bad.append(f"{place}:{number}: {what}: {match.group()}")
    return bad


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [Path(name) for name in listed.split("\0") if name]


def test_imports_point_one_way() -> None:
    assert not import_violations(ROOT)


def test_no_circular_imports() -> None:
    assert not cycles(ROOT)


def test_files() -> None:
    files = tracked()
    assert Path("worldmodel/__init__.py") in files
    assert not file_violations(ROOT, files)


def test_siblings_have_no_init() -> None:
    assert not [folder for folder in SIBLINGS if (ROOT / folder / "__init__.py").exists()]


# The checks must be able to fail: small planted trees.


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("worldmodel/a.py", "import worldmodel.datasets.x", "worldmodel may not import datasets"),
        ("worldmodel/a.py", "from worldmodel.datasets.x import y", "worldmodel may not import datasets"),
        ("worldmodel/a.py", "from worldmodel import policies", "worldmodel may not import policies"),
        ("worldmodel/a.py", "from . import datasets", "worldmodel may not import datasets"),
        ("worldmodel/a.py", "from .datasets import x", "worldmodel may not import datasets"),
        ("worldmodel/sub/a.py", "from .. import policies", "worldmodel may not import policies"),
        ("worldmodel/sub/__init__.py", "from .. import policies", "worldmodel may not import policies"),
        ("worldmodel/a.py", "def f():\n    from worldmodel.policies import x", "worldmodel may not import policies"),
        (
            "worldmodel/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import worldmodel.policies",
            "worldmodel may not import policies",
        ),
        ("worldmodel/a.py", "import importlib as i\ni.import_module('worldmodel.policies.x')", "not import policies"),
        ("worldmodel/a.py", "import_module(name='worldmodel.policies')", "worldmodel may not import policies"),
        ("worldmodel/a.py", "import_module('.policies', 'worldmodel')", "worldmodel may not import policies"),
        ("worldmodel/a.py", "__import__('worldmodel.datasets')", "worldmodel may not import datasets"),
        ("worldmodel/commands/cli.py", "import worldmodel.policies", "worldmodel may not import policies"),
        ("worldmodel/a.py", "import configs.doom", "worldmodel may not import configs"),
        ("worldmodel/a.py", "from worldmodel import cli", "imports worldmodel.cli"),
        ("datasets/a.py", "from worldmodel.cli import main", "imports worldmodel.cli"),
        ("datasets/a.py", "from worldmodel import policies", "datasets may not import policies"),
        ("datasets/a.py", "from .. import policies", "datasets may not import policies"),
        ("datasets/worlds/a.py", "from ...policies import x", "datasets may not import policies"),
        ("datasets/worlds/__init__.py", "from ... import policies", "datasets may not import policies"),
        ("policies/a.py", "import tests.x", "policies may not import tests"),
        ("kernels/op/a.py", "import worldmodel.flow", "kernels may not import worldmodel"),
        ("kernels/op/a.py", "import worldmodel", "kernels may not import worldmodel"),
        ("kernels/op/a.py", "from worldmodel.datasets import clips", "kernels may not import datasets"),
        ("tests/a.py", "import datasets.clips", "by folder name"),
        ("tests/a.py", "from datasets import worlds", "by folder name"),
        ("datasets/a.py", "import policies", "by folder name"),
        ("demos/a.py", "from kernels.op import x", "by folder name"),
    ],
)
def test_import_violations_are_found(tmp_path: Path, path: str, source: str, expected: str) -> None:
    plant(tmp_path, {"datasets/clips.py": "", "datasets/worlds/maze.py": "", "kernels/op/reference.py": ""})
    plant(tmp_path, {path: source})
    bad = import_violations(tmp_path)
    assert bad and all(expected in line and line.startswith(f"{path}:") for line in bad)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("worldmodel/cli/worlds.py", "from worldmodel import datasets, policies\nfrom worldmodel.cli import models"),
        ("worldmodel/__main__.py", "from worldmodel.cli import main"),
        ("worldmodel/a.py", "from worldmodel.kernels.op import x\nfrom . import kernels\nfrom .flow import y"),
        ("worldmodel/a.py", "import datasets\nfrom datasets import load_dataset\nimport kernels"),
        ("datasets/a.py", "from .clips import x\nfrom . import worlds\nfrom ..flow import z\nimport datasets"),
        ("datasets/worlds/__init__.py", "from .maze import Maze\nfrom ..clips import x"),
        ("policies/a.py", "from worldmodel.datasets.clips import x\nfrom worldmodel import kernels"),
        ("kernels/op/__init__.py", "from worldmodel.kernels.op.reference import x\nfrom .reference import x"),
        ("tests/a.py", "import configs.doom, demos\nfrom worldmodel import policies\nfrom worldmodel.cli import main"),
    ],
)
def test_allowed_imports(tmp_path: Path, path: str, source: str) -> None:
    plant(tmp_path, {"datasets/clips.py": "", "datasets/worlds/maze.py": "", "kernels/op/reference.py": ""})
    plant(tmp_path, {path: source})
    assert not import_violations(tmp_path)


def test_cycles_are_found(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "worldmodel/__init__.py": "",
            "worldmodel/a.py": "import worldmodel.b",
            "worldmodel/b.py": "from . import c",
            "worldmodel/c.py": "from worldmodel.a import x",
            "worldmodel/sub/__init__.py": "from worldmodel.sub.d import y",
            "worldmodel/sub/d.py": "from worldmodel.sub import y\nfrom worldmodel.sub import g",
            "worldmodel/sub/g.py": "",
            "datasets/e.py": "from .f import z",
            "datasets/f.py": "try:\n    from worldmodel.datasets.e import z\nexcept ImportError:\n    z = 1",
        },
    )
    assert sorted(cycles(tmp_path)) == [
        ["worldmodel.a", "worldmodel.b", "worldmodel.c"],
        ["worldmodel.datasets.e", "worldmodel.datasets.f"],
        ["worldmodel.sub", "worldmodel.sub.d"],
    ]


def test_what_is_no_cycle(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "worldmodel/__init__.py": "",
            "worldmodel/a.py": "import worldmodel.b",
            "worldmodel/b.py": "def f():\n    import worldmodel.a",
            "worldmodel/c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import worldmodel.d",
            "worldmodel/d.py": "import worldmodel.c",
            "worldmodel/sub/__init__.py": "from worldmodel.sub.e import y",
            "worldmodel/sub/e.py": "from worldmodel.sub import g\nimport worldmodel.sub.g",
            "worldmodel/sub/g.py": "",
        },
    )
    assert not cycles(tmp_path)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("worldmodel/utils.py", b"", "name it after"),
        ("datasets/__init__.py", b"", "would hide"),
        ("kernels/__init__.py", b"", "would hide"),
        ("a.md", b"see /" + b"work/main/x", "a path of one machine"),
        ("a.json", b'{"path": "/' + b'home/me/x"}', "a path of one machine"),
        ("a.sh", b"cd /" + b"root/x", "a path of one machine"),
        ("a.lock", b"--extra-index" + b"-url x", "package registry"),
        ("a.md", b"https://pypi" + b".org/simple", "package registry"),
        ("a.safetensors", b"\0" * (MAX_BYTES + 1), "25.0 MB"),
    ],
)
def test_file_violations_are_found(tmp_path: Path, name: str, data: bytes, expected: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(data)
    (bad,) = file_violations(tmp_path, [Path(name)])
    assert expected in bad


def test_what_files_may_contain(tmp_path: Path) -> None:
    text = "homework/x ~/x https://host/work/x datasets/worlds/__init__.py"
    (tmp_path / "a.md").write_text(text)
    assert not file_violations(tmp_path, [Path("a.md"), Path("datasets/worlds/__init__.py")])
