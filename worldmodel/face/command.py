"""`worldmodel swap`: the stream from a source to a sink, with what responsible use asks for."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel import __version__
from worldmodel.errors import UserError
from worldmodel.face.ahead import Behind, ahead
from worldmodel.face.consent import Consent, check_consent, file_sha256
from worldmodel.face.faces import Networks
from worldmodel.face.label import draw_label
from worldmodel.face.methods import find_method
from worldmodel.face.occlude import Nothing, SkinColour
from worldmodel.face.parts import Parts, check_output
from worldmodel.face.pipeline import Swapper, reference_face
from worldmodel.face.reading import Info, Picture, Sound, Source, open_source, read_image
from worldmodel.face.sign import signing_key, write_side_file
from worldmodel.face.track import Tracker, Tracking, Tracks
from worldmodel.face.watermark import Watermark
from worldmodel.face.writing import STREAMS, ImageSink, LiveSink, Sink
from worldmodel.options import check_range, check_threads
from worldmodel.progress import StopSignal, progress_bar

DEPTH = 8  # pictures that are read ahead, and that wait to be written
WARM = 24  # pictures before the place where a job goes on that tracking looks at again


def swap(
    target: str,
    reference: Path,
    out: str,
    consent: Path | None = None,
    method: str = "copy-paste",
    faces: int = 1,
    size: int | None = None,
    every: int = 8,
    rate: float = 25.0,
    occlusion: bool = True,
    label: bool = True,
    watermark: bool = True,
    lossless: bool = False,
    threads: int = 1,
) -> int:
    """Swap the faces of a video for that of a reference picture, as a stream.

    Example: worldmodel swap talk.mp4 --reference me.jpg --consent me.json --out swapped.mp4

    TARGET is a video file, a folder of images (shown at --rate), an rtmp:// or http:// URL, or camera:0. --out is a
    video file, a folder (its name ends in /) for images, or an rtmp:// URL. --method: copy-paste, poisson, or the
    folder of a trained swap. --faces: how many people at once. --size: side of the aligned region, 256 by default, of
    a trained swap its own. --every: pictures between detections. --no-occlusion swaps what is before the face too.
    Ctrl-C leaves a file that plays, and the same command goes on from there. --lossless keeps all pixels outside the
    faces bit for bit, with --no-label and --no-watermark.
    """
    check_range(1, 8, faces=faces)
    if size is not None:
        check_range(64, 1024, size=size)
    check_range(1, 120, every=every)
    check_threads(threads)
    if not 0.1 <= rate <= 1000:
        raise UserError(f"--rate must be in [0.1, 1000], not {rate}")
    torch.set_num_threads(threads)
    agreed = check_consent(consent, reference)  # before anything else: nothing runs without it
    key = signing_key()
    check_place(out, target)
    generator, known = find_method(method, size)
    networks = default_networks()
    face = reference_face(read_image(reference), networks, generator.size, str(reference))
    source = open_source(target, Fraction(rate).limit_denominator(1001))
    tracker = Tracker(networks, Tracking(every=every, faces=faces))
    swapper = Swapper(tracker, generator, face, SkinColour() if occlusion else Nothing())
    settings = {"method": known, "faces": faces, "size": generator.size, "every": every, "occlusion": occlusion}
    settings |= {"label": label, "watermark": watermark, "lossless": lossless, "rate": rate}
    job = {"reference_sha256": agreed.reference_sha256, "version": __version__} | settings
    if not source.info.live and Path(target).is_file():
        job["target_sha256"] = file_sha256(Path(target))
    sink = open_sink(out, source, job, lossless)
    try:
        done = stream(source, sink, swapper, marks(source.info, agreed, label, watermark))
    finally:
        source.close()
    print(_summary(swapper, source, done))
    stopped = done.stopped
    if isinstance(sink, Parts):
        file = Path(out)
        if not sink.done:
            raise UserError(f"{target}: stopped before the first picture was written")
        sink.join(Path(target) if Path(target).is_file() else None, cleaned=not stopped)
        write_side_file(file, _facts(agreed, target, job, done), key)
        print(file if not stopped else f"{file}: the first {sink.done} pictures; the same command goes on from there")
    elif isinstance(sink, ImageSink):
        print(out)
    return 130 if stopped else 0


class Done:
    """What a stream did: pictures in and swapped, in how many seconds, whether it was stopped."""

    def __init__(self) -> None:
        self.pictures, self.swapped, self.seconds, self.stopped = 0, 0, 0.0, False


Mark = Callable[[NDArray[np.uint8]], None]  # draws on a picture, in place


def marks(info: Info, consent: Consent, label: bool, watermark: bool) -> tuple[Mark, ...]:
    """What every picture gets: the label, and the watermark with the first 16 bits of the reference's hash."""
    drawn: list[Mark] = [draw_label] if label else []
    if watermark:
        drawn.append(Watermark(info.height, info.width, int(consent.reference_sha256[:4], 16)).draw)
    return tuple(drawn)


def stream(source: Source, sink: Sink, swapper: Swapper[Any], marks: tuple[Mark, ...] = ()) -> Done:
    """Run a source through a swapper into a sink, until it ends or a person stops it. Memory does not grow."""
    done, info = Done(), source.info
    skipped = sink.done if isinstance(sink, Parts) else 0
    state, began = swapper.begin(), time.perf_counter()

    def write(event: Picture | Sound) -> None:
        if isinstance(event, Picture):
            for mark in marks:
                mark(event.pixels)
        sink.write(event)

    with StopSignal() as signal, progress_bar("swap", info.frames or 0, done=skipped, unit="frames") as advance:
        writing = Behind(write, DEPTH)
        try:
            events = _after(ahead(source, DEPTH), skipped, WARM)
            groups = _chunks(events, swapper.generator.chunk)
            for group, new, seen in ahead(_tracked(groups, swapper, info.time_base), 1):
                pictures = _pictures(group)
                seams, state = swapper.swap(pictures, seen, state)
                if not new:
                    continue
                for event in group:
                    writing.put(event)
                done.pictures += len(pictures)
                done.swapped += sum(bool(seam) for seam in seams)
                advance(len(pictures))
                if signal.requested:
                    done.stopped = True
                    break
            writing.close()
        except BaseException:
            writing.abandon()
            raise
        sink.close()
    done.seconds = time.perf_counter() - began
    return done


def _after(events: Iterable[Picture | Sound], skipped: int, warm: int) -> Iterator[tuple[Picture | Sound, bool]]:
    """Events from the picture `skipped - warm` on, with whether they are new: at or after the picture `skipped`."""
    seen = 0
    for event in events:
        if isinstance(event, Picture):
            seen += 1
        if seen > skipped - warm:
            yield event, seen > skipped or not skipped


def _chunks(
    events: Iterable[tuple[Picture | Sound, bool]], length: int
) -> Iterator[tuple[list[Picture | Sound], bool]]:
    """Groups of `length` pictures, all new or none, with the sounds between them; the last may be shorter."""
    group: list[Picture | Sound] = []
    new = False
    for event, fresh in events:
        full = sum(isinstance(each, Picture) for each in group) == length
        if group and (full or fresh != new):
            yield group, new
            group = []
        group.append(event)
        new = fresh
    if group:
        yield group, new


def _tracked(
    groups: Iterable[tuple[list[Picture | Sound], bool]], swapper: Swapper[Any], time_base: Fraction
) -> Iterator[tuple[list[Picture | Sound], bool, list[Tracks]]]:
    """The same groups with the tracks in their pictures."""
    tracks: Tracks | None = None
    for group, new in groups:
        seen = swapper.track(_pictures(group), time_base, tracks)
        tracks = seen[-1] if seen else tracks
        yield group, new, seen


def _pictures(group: list[Picture | Sound]) -> list[Picture]:
    return [event for event in group if isinstance(event, Picture)]


def default_networks() -> Networks:
    """The published detector, landmarks and identity."""
    from worldmodel.face.networks.detector import TinyDetector
    from worldmodel.face.networks.identity import DlibIdentity
    from worldmodel.face.networks.landmarks import Landmarks68

    return Networks(TinyDetector(), Landmarks68(), DlibIdentity())


def check_place(out: str, target: str) -> None:
    """A UserError if nothing can be written to `out`, or if it is the source."""
    if "://" in out:
        if out.split("://")[0] not in STREAMS:
            raise UserError(f"{out}: streams go to {', '.join(f'{name}://' for name in STREAMS)}")
        return
    if not out.endswith("/"):
        check_output(Path(out))
    if Path(target).exists() and Path(out).exists() and Path(out).samefile(target):
        raise UserError(f"{out}: is the target itself; give another --out")


def open_sink(out: str, source: Source, job: dict[str, Any], lossless: bool) -> Sink:
    """The sink that a place asks for."""
    if "://" in out:
        return LiveSink(out, source, lossless)
    if out.endswith("/"):
        return ImageSink(Path(out))
    return Parts(Path(out), source.info, job, lossless)


def _facts(consent: Consent, target: str, job: dict[str, Any], done: Done) -> dict[str, Any]:
    return {
        "made_by": f"worldmodel {__version__} swap",
        "assertion": "faces in this video were swapped by software",
        "target": Path(target).name,
        "settings": job,
        "consent": asdict(consent),
        "pictures": done.pictures,
        "pictures_with_a_swap": done.swapped,
    }


def _summary(swapper: Swapper[Any], source: Source, done: Done) -> str:
    times = swapper.times
    per = {name: 1e3 * seconds / max(times.pictures, 1) for name, seconds in times.seconds.items()}
    stages = ", ".join(f"{name} {milliseconds:.1f} ms" for name, milliseconds in per.items())
    late = 1e3 * swapper.generator.chunk / float(source.info.rate)
    rate = done.pictures / max(done.seconds, 1e-9)
    text = (
        f"{done.pictures} pictures, {done.swapped} with a swapped face, {rate:.1f} a second; per picture: {stages}; a "
        f"chunk is {late:.0f} ms"
    )
    if source.damaged:
        text += f"; {source.damaged} damaged packets were skipped"
    if not done.swapped:
        text += "; no face was found that could be swapped"
    return text
