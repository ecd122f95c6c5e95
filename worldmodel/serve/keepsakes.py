"""What a client takes home from its session: a video, and replay files."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from worldmodel.errors import UserError

from .downloads import Downloads
from .protocol import Error, File, Notice, ServerMessage
from .recorder import Recorder
from .sources import Pixels


class Keepsakes:
    """One session's files. Used by the engine's thread; a recording is finished in a thread of its own."""

    def __init__(self, downloads: Downloads, fps: float, limit: int, say: Callable[[ServerMessage], None]) -> None:
        """limit: pictures of one recording. say: tells the client, from any thread."""
        self._downloads, self._fps, self._limit, self._say = downloads, fps, limit, say
        self._recorder: Recorder | None = None
        self._closed = False

    @property
    def recording(self) -> bool:
        """Whether a video is being made."""
        return self._recorder is not None

    def start(self, name: str) -> None:
        """Start a video that is offered under a name. Raises UserError if one is running."""
        if self._recorder is not None:
            raise UserError("a recording is running")
        path = self._downloads.path(".mp4")
        self._recorder = Recorder(path, self._fps, self._limit, lambda result: self._recorded(result, name))

    def add(self, frames: Pixels) -> None:
        """Pictures [P, H, W, 3] that were shown."""
        if self._recorder is not None and not self._recorder.add(frames):
            self._recorder = None
            self._say(Notice(text="the recording has reached its limit"))

    def finish(self) -> None:
        """End the video: it is offered when its file is closed. Raises UserError if none is running."""
        if self._recorder is None:
            raise UserError("no recording is running")
        self._recorder.finish()
        self._recorder = None

    def save(self, data: bytes, name: str) -> None:
        """Offer a replay file. Raises UserError if it cannot be written."""
        path = self._downloads.path(".safetensors")
        try:
            path.write_bytes(data)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise UserError(f"the replay file cannot be written: {error.strerror}") from error
        self._offer("replay", path, name)

    def close(self) -> None:
        """The session ends: a video that is being made is thrown away."""
        self._closed = True
        if self._recorder is not None:
            self._recorder.finish()

    def _recorded(self, result: Path | str, name: str) -> None:
        """Called in the recorder's thread."""
        if isinstance(result, str):
            self._say(Error(message=result))
        elif self._closed:
            result.unlink(missing_ok=True)
        else:
            self._offer("video", result, name)

    def _offer(self, kind: Literal["video", "replay"], path: Path, name: str) -> None:
        key = self._downloads.add(path, name)
        self._say(File(kind=kind, url=f"api/files/{key}", name=name, bytes=path.stat().st_size))
