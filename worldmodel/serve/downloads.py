"""Files that a session made and its client fetches: under addresses that cannot be guessed, for some minutes."""

import secrets
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

KEEP_SECONDS = 600.0
KEEP_FILES = 32


@dataclass(frozen=True, slots=True)
class Download:
    """A file that waits to be fetched."""

    path: Path
    name: str  # that a browser saves it under
    since: float


class Downloads:
    """A temporary folder with the newest files. Any thread may use it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="worldmodel-")
        self._files: dict[str, Download] = {}
        self._lock = threading.Lock()

    def path(self, suffix: str) -> Path:
        """A new path to write to."""
        return Path(self._folder.name) / f"{secrets.token_hex(8)}{suffix}"

    def add(self, path: Path, name: str) -> str:
        """Offer a file; returns its key. Old files are deleted."""
        key, now = secrets.token_urlsafe(16), time.monotonic()
        with self._lock:
            self._files[key] = Download(path, name, now)
            old = [k for k, file in self._files.items() if now - file.since > KEEP_SECONDS]
            old += [k for k in list(self._files)[:-KEEP_FILES] if k not in old]
            gone = [self._files.pop(k) for k in old]
        for file in gone:
            file.path.unlink(missing_ok=True)
        return key

    def get(self, key: str) -> Download | None:
        """The file of a key, None if there is none (any more)."""
        with self._lock:
            file = self._files.get(key)
        return file if file is not None and file.path.is_file() else None

    def close(self) -> None:
        """Delete the folder."""
        self._folder.cleanup()
