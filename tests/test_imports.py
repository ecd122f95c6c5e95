"""Our folders are worldmodel.datasets, worldmodel.kernels and worldmodel.policies wherever Python is started, and
`datasets` and `kernels` stay Hugging Face's.

A stand-in for Hugging Face's `kernels` (not a dependency) lies at the very end of sys.path, where a package in
site-packages would be: it must win over our folder of that name.
"""

import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = [name for name in ("datasets", "kernels", "policies") if any((ROOT / name).rglob("*.py"))]
LOOK = """
import importlib, importlib.util, json, pkgutil, sys
import worldmodel
sys.path.append({stand_in!r})
found = {{"worldmodel": worldmodel.__file__}}
for name in ("datasets", "kernels"):
    found[name] = importlib.util.find_spec(name).origin
for name in {folders!r}:
    package = importlib.import_module("worldmodel." + name)
    found["worldmodel." + name] = list(package.__path__)
    found["in " + name] = [
        importlib.util.find_spec("worldmodel." + name + "." + module.name).origin
        for module in pkgutil.iter_modules(package.__path__)
    ]
print(json.dumps(found))
"""


def code(stand_in: Path) -> str:
    return LOOK.format(stand_in=str(stand_in), folders=FOLDERS)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "kernels").mkdir()
    (folder / "kernels" / "__init__.py").write_text("")
    return folder


def look(command: list[str], cwd: Path, path: str = "") -> dict:
    """What a Python started like this finds."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path:
        environment["PYTHONPATH"] = path
    done = subprocess.run([sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(found: dict, ours: Path, stand_in: Path) -> None:
    """ours: the folder that holds datasets/, kernels/ and policies/."""
    assert "site-packages" in found["datasets"]
    assert found["kernels"] == str(stand_in / "kernels" / "__init__.py")
    for folder in FOLDERS:
        assert str(ours / folder) in found[f"worldmodel.{folder}"]
        assert all(Path(origin).is_relative_to(ours / folder) for origin in found[f"in {folder}"])
    assert found["in datasets"]


@pytest.mark.parametrize("path", ["", str(ROOT)], ids=["installed", "PYTHONPATH"])
@pytest.mark.parametrize("how", ["-c", "-m", "script"])
@pytest.mark.parametrize("where", ["root", "worldmodel", "elsewhere"])
def test_every_way_to_start_python(where: str, how: str, path: str, stand_in: Path, tmp_path: Path) -> None:
    cwd = {"root": ROOT, "worldmodel": ROOT / "worldmodel", "elsewhere": tmp_path}[where]
    (tmp_path / "look_around.py").write_text(code(stand_in))
    commands = {"-c": ["-c", code(stand_in)], "-m": ["-m", "look_around"], "script": [str(tmp_path / "look_around.py")]}
    if how == "-m" and where != "elsewhere":
        path = os.pathsep.join([str(tmp_path), path])
    found = look(commands[how], cwd, path)
    check(found, ROOT, stand_in)
    assert found["worldmodel"] == str(ROOT / "worldmodel" / "__init__.py")


def test_hugging_face_datasets_imports_from_the_root() -> None:
    both = "import datasets, worldmodel.datasets, json; print(json.dumps(datasets.Dataset.from_dict({'a': [1]})[0]))"
    assert look(["-c", both], ROOT) == {"a": 1}


def test_under_pytest() -> None:
    assert "site-packages" in importlib.util.find_spec("datasets").origin
    assert str(ROOT / "datasets") in importlib.import_module("worldmodel.datasets").__path__


def _in_child(name: str) -> list[str]:
    package = importlib.import_module(f"worldmodel.{name}")
    return list(package.__path__)


def test_in_a_spawned_process() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_in_child, FOLDERS) == [_in_child(name) for name in FOLDERS]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel, built without network."""
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    (path,) = out.glob("worldmodel-*.whl")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(out / "unpacked")
    return out / "unpacked"


def test_wheel_imports(wheel: Path, stand_in: Path, tmp_path: Path) -> None:
    found = look(["-c", code(stand_in)], tmp_path, str(wheel))
    check(found, wheel / "worldmodel", stand_in)
    assert found["worldmodel"] == str(wheel / "worldmodel" / "__init__.py")


def test_wheel_contents(wheel: Path) -> None:
    tops = {path.name for path in wheel.iterdir()}
    (info,) = (name for name in tops if name.endswith(".dist-info"))
    assert tops == {"worldmodel", info}
    assert "worldmodel = worldmodel.cli:main" in (wheel / info / "entry_points.txt").read_text()
    assert "Apache License" in (wheel / info / "licenses" / "LICENSE").read_text()
    listed = subprocess.run(["git", "ls-files", "worldmodel", *FOLDERS], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().splitlines():
        if name.startswith("policies/lerobot_plugin/"):  # a distribution of its own
            assert not (wheel / "worldmodel" / name).exists(), name
            continue
        inside = wheel / name if name.startswith("worldmodel/") else wheel / "worldmodel" / name
        assert inside.read_bytes() == (ROOT / name).read_bytes(), name
