"""Folders that are written: whether they can be, as a whole or not at all, by one process at a time."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from worldmodel.errors import UserError


def check_creatable(path: Path) -> None:
    """A UserError if nothing can be made at `path`, because of a folder above it."""
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"{path}: cannot be made, {parent} is no folder that can be written to")


def check_outputs(*folders: Path | None, file: Path | None = None) -> None:
    """Try to make the folders, and that of the file, before hours go into what they will hold; None stands for none.

    What was made for it is gone again: a command that then refuses its other input leaves nothing. A UserError for one
    that cannot be made or written to, and for a file that is a folder.
    """
    for folder in (*folders, None if file is None else file.parent):
        if folder is not None:
            new = [path for path in (folder, *folder.parents) if not path.exists()]
            make_folder(folder)
            writable = os.access(folder, os.W_OK | os.X_OK)
            for path in new:  # the innermost first
                with suppress(OSError):  # somebody has begun to use it
                    path.rmdir()
            if not writable:
                raise UserError(f"{folder}: cannot be written to")
    if file is not None and file.is_dir():
        raise UserError(f"{file}: is a folder; give the name of a file")


def make_folder(folder: Path) -> None:
    """The folder and those above it; one that cannot be made is a UserError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: could not be made ({error.strerror or error})") from error


@contextmanager
def replaced(folder: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """A new folder beside `folder` that takes its place when the block ends without an error.

    names: what belongs to the older content and goes with it; other files in the folder stay. So new files of these
    names never lie beside old ones. A full disk is a UserError; what was there before stays until the end.
    """
    folder = folder.resolve()
    new, old = (folder.with_name(f".{folder.name}.{end}") for end in ("partial", "replaced"))
    try:
        if old.exists():  # a process was killed between the two renames, or after them
            _retire(old, folder, names) if folder.exists() else old.rename(folder)
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        yield new
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        if old.exists():
            _retire(old, folder, names)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        raise UserError(f"{folder}: could not be written ({error.strerror or error})") from error
    except UserError as error:
        shutil.rmtree(new, ignore_errors=True)
        raise UserError(str(error).replace(str(new), str(folder))) from error


def _retire(old: Path, folder: Path, names: tuple[str, ...]) -> None:
    """Remove a replaced folder; what is not of `names` moves to the new one."""
    for path in list(old.iterdir()):
        if path.name not in names and not (folder / path.name).exists():
            path.rename(folder / path.name)
    shutil.rmtree(old)


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Make the folder `out` and be the only process that writes to it, else a UserError.

    The lock is the system's, on `out`/.lock: it ends with the process, however that ends.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / ".lock").open("w")
    except OSError as error:
        raise UserError(f"{out}: cannot be made ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another process writes to {out}: wait for its end, or choose another folder") from error
        except OSError as error:
            raise UserError(f"{out / '.lock'}: cannot be locked ({error.strerror})") from error
        yield


def sync(path: Path) -> None:
    """Have the disk write a file, or a folder's list of names, now."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
