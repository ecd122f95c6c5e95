"""A long video file as parts: each is whole on disk, so that a job goes on after any end; joined, they are the output.

Parts are in NUT, which keeps every tick and can be read however it ended. The sound is copied from the source when the
parts are joined. Ctrl-C joins what there is: the output plays, and the same command goes on from there.
"""

import heapq
import shutil
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from worldmodel.errors import UserError
from worldmodel.face.reading import Info, Picture, Sound
from worldmodel.face.writing import VIDEOS, Encoder
from worldmodel.folders import check_creatable, sync
from worldmodel.serial import read_json, write_json

SECONDS = 60.0  # of video in a part


def check_output(out: Path) -> None:
    """A UserError if no video can be written there."""
    if out.suffix.lower() not in VIDEOS:
        raise UserError(f"{out}: a video's name ends in one of {', '.join(VIDEOS)}")
    if out.is_dir():
        raise UserError(f"{out}: is a folder, a video is a file")
    check_creatable(out)


class Parts:
    """The parts of one output. job: what they are made of (JSON data); parts of another job are an error."""

    def __init__(self, out: Path, info: Info, job: dict[str, Any], lossless: bool) -> None:
        check_output(out)
        self.out, self._info, self._lossless = out, info, lossless
        self.folder = out.with_name(f".{out.name}.parts")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.folder}: could not be made ({error.strerror})") from error
        note = self.folder / "job.json"
        if note.exists() and read_json(note) != job:
            raise UserError(f"{self.folder}: parts of another swap; delete the folder, or choose another --out")
        write_json(job, note)
        self._counts: list[int] = []
        while (path := self._path(len(self._counts)).with_suffix(".json")).is_file():
            self._counts.append(int(read_json(path)["frames"]))
        self._open: tuple[Any, Encoder] | None = None
        self._frames, self._began = 0, 0

    @property
    def done(self) -> int:
        """Frames in whole parts."""
        return sum(self._counts)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.nut"

    def write(self, event: Picture | Sound) -> None:
        if isinstance(event, Sound):
            return
        try:
            if self._open is None:
                container = av.open(str(self._path(len(self._counts))), "w", format="nut")
                self._open = container, Encoder(container, self._info, self._lossless, live=False)
                self._frames, self._began = 0, event.pts
            self._open[1].write(event)
            self._frames += 1
            if (event.pts - self._began) * self._info.time_base >= SECONDS:
                self._finish()
        except (av.FFmpegError, OSError) as error:
            raise UserError(f"{self.out}: could not be written ({error.strerror or error})") from error

    def _finish(self) -> None:
        if self._open is None:
            return
        container, encoder = self._open
        encoder.finish()
        container.close()
        self._open = None
        path = self._path(len(self._counts))
        sync(path)
        write_json({"frames": self._frames}, path.with_suffix(".json"))
        self._counts.append(self._frames)

    def close(self) -> None:
        """End the open part."""
        try:
            self._finish()
        except (av.FFmpegError, OSError) as error:
            raise UserError(f"{self.out}: could not be written ({error.strerror or error})") from error

    def join(self, sound: Path | None, cleaned: bool) -> None:
        """Make the output of all whole parts, with the sound of a file; it takes its place when it is whole.

        cleaned: whether the parts are then removed.
        """
        partial = self.out.with_name(f".{self.out.stem}.partial{self.out.suffix}")
        try:
            _join([self._path(i) for i in range(len(self._counts))], sound, partial, self._info.time_base)
            sync(partial)
            partial.replace(self.out)
        except UserError as error:
            raise UserError(f"{self.out}: {error}") from error
        except (av.FFmpegError, OSError) as error:
            raise UserError(f"{self.out}: could not be written ({error.strerror or error})") from error
        finally:
            partial.unlink(missing_ok=True)
        if cleaned:
            shutil.rmtree(self.folder)


def _join(parts: list[Path], sound: Path | None, out: Path, time_base: Fraction) -> None:
    first = av.open(str(parts[0]))
    source = None if sound is None else av.open(str(sound))
    with first, av.open(str(out), "w") as container:
        video: Any = container.add_stream_from_template(first.streams.video[0], opaque=True)
        video.time_base = time_base
        streams = {}
        for stream in source.streams.audio if source is not None else ():
            try:
                streams[stream.index] = container.add_stream_from_template(stream)
            except (av.FFmpegError, ValueError) as error:
                codec = stream.codec_context.name
                raise UserError(f"{out.suffix} cannot hold {codec} sound; a name that ends in .mkv can") from error
        try:
            container.start_encoding()
        except av.FFmpegError as error:
            raise UserError(f"{out.suffix} cannot hold the sound of {sound}; a name that ends in .mkv can") from error
        pictures = _pictures(parts)
        end = _last(parts[-1])
        heard = () if source is None else _heard(source, end)
        for _, number, packet in heapq.merge(pictures, heard, key=lambda entry: entry[0]):
            packet.stream = video if number < 0 else streams[number]
            container.mux(packet)
    if source is not None:
        source.close()


Timed = tuple[float, int, av.Packet]  # seconds, index of the sound stream or -1, packet


def _pictures(parts: list[Path]) -> Iterator[Timed]:
    for path in parts:
        with av.open(str(path)) as container:
            for packet in container.demux(video=0):
                if packet.pts is not None:
                    packet.dts = packet.pts  # no picture needs a later one; NUT's reader guesses, and not at once
                    yield float(packet.pts * packet.time_base), -1, packet


def _last(part: Path) -> float:
    """When the last picture of a part is over, in seconds."""
    times = [time for time, _, _ in _pictures([part])]
    return times[-1] + (times[-1] - times[0]) / max(len(times) - 1, 1) if len(times) > 1 else times[-1] + 1.0


def _heard(source: Any, end: float) -> Iterator[Timed]:
    """The sound's packets that begin before `end`."""
    if not source.streams.audio:
        return
    for packet in source.demux(*source.streams.audio):
        if packet.dts is not None and (time := float(packet.dts * packet.time_base)) < end:
            yield time, packet.stream_index, packet
