"""A folder in diffusers' layout: where it is (on disk or on the hub) and its tensors, read one by one.

config.json
NAME.safetensors                            or, for large models,
NAME-0000i-of-0000n.safetensors             with NAME.safetensors.index.json
"""

from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from worldmodel.errors import UserError
from worldmodel.serial import read_json
from worldmodel.weights import PICKLES


def resolve(source: Path | str, subfolder: str, revision: str | None = None) -> Path:
    """The folder that holds config.json of one model.

    source: that folder, a pipeline's folder with `subfolder` in it, or a hub name "org/model", which is downloaded into
    (or, with HF_HUB_OFFLINE, only read from) the hub's cache.
    """
    folder = Path(source)
    if not folder.is_dir():
        if folder.exists():
            raise UserError(f"{source}: a file; give the folder that holds config.json")
        parts = str(source).split("/")
        if len(parts) != 2 or not all(parts) or str(source)[0] in ".~":
            raise UserError(f"{source}: no such folder, and no name of the form 'org/model'")
        folder = _download(str(source), subfolder, revision)
    if (folder / "config.json").is_file():
        return folder
    if (folder / subfolder / "config.json").is_file():
        return folder / subfolder
    raise UserError(f"{source}: neither config.json nor {subfolder}/config.json is there")


def _download(name: str, subfolder: str, revision: str | None) -> Path:
    files = [f"{place}{kind}" for place in ("", f"{subfolder}/") for kind in ("config.json", "*.safetensors*")]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=files))
    except LocalEntryNotFoundError as error:
        raise UserError(f"{name}: no such folder, and not in the hub's cache; the hub could not be asked") from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise UserError(f"{name}: no such folder, and the hub does not give it ({error})") from error


class FolderTensors:
    """The tensors of a folder by name. Files are mapped, not read: only what is asked for is touched."""

    def __init__(self, folder: Path, skip: tuple[str, ...] = ()) -> None:
        """skip: names of safetensors files that do not belong to the model."""
        self._file_of: dict[str, Path] = {}
        self._open: dict[Path, Any] = {}
        indices = sorted(folder.glob("*.safetensors.index.json"))
        files = sorted(f for f in folder.glob("*.safetensors") if f.name not in skip)
        if len(indices) > 1 or (not indices and len(files) > 1):
            names = [f.name for f in indices or files]
            raise UserError(f"{folder}: several models, {names}; leave the files of one")
        if indices:
            self._read_index(indices[0])
        elif files:
            self._file_of = dict.fromkeys(self._handle(files[0]).keys(), files[0])
        else:
            pickles = sorted(f.name for f in folder.glob("*") if f.suffix in PICKLES)
            why = f"; {pickles} could run code and are not read" if pickles else ""
            raise UserError(f"{folder}: no safetensors file{why}")

    def _read_index(self, index: Path) -> None:
        content = read_json(index)
        names = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(names, dict) or not all(isinstance(v, str) for v in names.values()):
            raise UserError(f"{index}: no 'weight_map' from weights to files")
        for name, file in names.items():
            if Path(file).name != file:
                raise UserError(f"{index}: weight '{name}' is said to be in '{file}', outside the folder")
            path = index.parent / file
            if name not in self._handle(path).keys():  # noqa: SIM118 (no mapping, only keys())
                raise UserError(f"{path}: weight '{name}' is missing, which {index.name} places there")
            self._file_of[name] = path

    def _handle(self, path: Path) -> Any:
        if path not in self._open:
            if not path.is_file():
                raise UserError(f"{path}: no such file")
            try:
                self._open[path] = safe_open(path, "pt")
            except (SafetensorError, OSError, ValueError) as error:
                raise UserError(f"{path}: not a complete safetensors file ({error})") from error
        return self._open[path]

    @property
    def names(self) -> set[str]:
        return set(self._file_of)

    def place(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._file_of[name]

    def read(self, name: str) -> Tensor:
        """A tensor, backed by the mapped file: copy it before changing it."""
        return self._handle(self._file_of[name]).get_tensor(name)
