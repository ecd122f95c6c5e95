"""One client's stream: pictures in, swapped and marked pictures out, in a thread of its own.

Between intake and outbox nothing waits: what comes too fast is dropped before the swap, what is not read is dropped
after it. An error ends this stream with one line, and no picture leaves that is not marked.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel import __version__
from worldmodel.errors import UserError, out_of_memory
from worldmodel.face.consent import Consent
from worldmodel.face.faces import Networks
from worldmodel.face.generator import Generator
from worldmodel.face.label import TEXT
from worldmodel.face.live.feed import Feed, Opens
from worldmodel.face.live.guarded import Guarded, Kept
from worldmodel.face.live.intake import Intake, Shot
from worldmodel.face.live.marking import Marking
from worldmodel.face.live.memories import held
from worldmodel.face.live.messages import CODECS, Hello, write
from worldmodel.face.live.overlay import Numbers
from worldmodel.face.live.references import Reference
from worldmodel.face.occlude import Nothing, SkinColour
from worldmodel.face.pipeline import Swapper, Swapping, Times
from worldmodel.face.reading import Picture, decode_image
from worldmodel.face.region import PADDING
from worldmodel.face.sign import signed
from worldmodel.face.track import Track, Tracker, Tracking, Tracks
from worldmodel.serve.outbox import Outbox
from worldmodel.serve.outbox import Picture as Sent
from worldmodel.serve.pictures import encode
from worldmodel.serve.protocol import CLOSE_FAILED, REAL, FrameHeader, in_words

_log = logging.getLogger("worldmodel.face.live")
TICK = Fraction(1, 1_000_000)  # seconds per tick of a shot
WAITING = 4  # chunks that may wait for the swap
CONSENT = 5.0  # seconds between looks at whether the consent still stands
IDLE = 0.5  # seconds without a picture after which the thread looks at its other work


@dataclass(frozen=True, slots=True)
class Settings:
    """Of all streams of a server. faces: swapped at once; every: pictures between detections."""

    faces: int = 1
    every: int = 8
    occlusion: bool = True
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """What a stream makes. method, reference: names."""

    method: str
    reference: str


@dataclass(frozen=True, slots=True, eq=False)
class Stock:
    """What all streams share. known: what each method is known by, for the record. loaded: SHA-256 of the pictures from
    which the aligned faces [3, S, S], by name and size, were cut. key: signs."""

    networks: Networks
    methods: dict[str, Generator[Any]]
    known: dict[str, Any]
    references: dict[str, Reference]
    loaded: dict[str, str]
    faces: dict[tuple[str, int], torch.Tensor]
    key: Any

    def consent(self, name: str) -> Consent:
        """As the record says now; a UserError if it does not stand, or not for the face that was loaded."""
        agreed = self.references[name].check()
        if agreed.reference_sha256 != self.loaded[name]:
            raise UserError(f"{self.references[name].picture}: is another picture than when this server was started")
        return agreed


class Watched(Tracker):
    """A tracker that keeps what it saw since it was last asked."""

    def __init__(self, networks: Networks, settings: Tracking) -> None:
        super().__init__(networks, settings)
        self.seen: list[Tracks] = []

    def step(self, tracks: Tracks | None, picture: NDArray[np.uint8], time: float) -> Tracks:
        self.seen.append(super().step(tracks, picture, time))
        return self.seen[-1]


class Stream:
    """See the module. `begin` starts it, `stop` ends it; the other methods may be called from any thread."""

    def __init__(
        self, stock: Stock, settings: Settings, hello: Hello, choice: Choice, outbox: Outbox, opens: Opens | None
    ) -> None:
        """opens: the server's source; None if the client sends pictures. A UserError if there is no consent now."""
        self._stock, self._settings, self._hello, self._outbox, self._opens = stock, settings, hello, outbox, opens
        self.choice, self.own = choice, opens is not None
        self.numbers = Numbers()
        self.seen = time.monotonic()  # when the client last sent something
        longest = max(generator.chunk for generator in stock.methods.values())
        self._intake = Intake(WAITING * longest)
        self._tracker = Watched(stock.networks, Tracking(every=settings.every, faces=settings.faces))
        self._times = Times()
        self._wanted: Choice | None = None
        self._lock = threading.Lock()
        self._feed: Feed | None = None
        self._ticks = -1
        self._index = self._streams = self._lost = self._held = 0
        self._size: tuple[int, int] | None = None
        self._marking: Marking | None = None
        self._state: Swapping[Kept] | None = None
        self._consent, self._looked = stock.consent(choice.reference), time.monotonic()
        self._memory: dict[str, Any] = {}
        self._take(choice)
        self._thread = threading.Thread(target=self._run, name="swap", daemon=True)

    # -- from the event loop -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._thread.start()
        if self._opens is not None:
            self._feed = Feed(self._opens, self._own_picture, self._fail)

    def put(self, number: int, ticks: int, data: bytes) -> None:
        """A picture of the client, a file; a time that does not rise is moved up."""
        self.seen = time.monotonic()
        self._ticks = max(self._ticks + 1, ticks)
        self._add(Shot(data, number, self._ticks, time.perf_counter()))

    def _own_picture(self, picture: NDArray[np.uint8], ticks: int) -> None:
        self._add(Shot(picture, self._intake.received + 1, ticks, time.perf_counter()))

    def _add(self, shot: Shot) -> None:
        self.numbers.came(shot.came)
        self._intake.put(shot)

    @property
    def wanted(self) -> Choice:
        """What it makes, or will from the next chunk on."""
        with self._lock:
            return self._wanted or self.choice

    def change(self, choice: Choice) -> None:
        with self._lock:
            self._wanted = choice
        self.seen = time.monotonic()

    def stop(self) -> None:
        """End the thread after the chunk that it makes, and wait; camera or file are closed then."""
        self._intake.close()
        if self._feed is not None:
            self._feed.stop()
        if self._thread.ident is not None:
            self._thread.join()
        self._state = None

    def stats(self) -> str:
        report = self.numbers.report(time.perf_counter())
        return write(
            "stats", **report, received=self._intake.received, dropped=self._intake.dropped + self._lost,
            not_sent=self._outbox.drops, held=self._held, memory=self._memory,
        )  # fmt: skip

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            torch.set_num_threads(self._settings.threads)  # a setting of this thread
            self._tell()
            while True:
                self._obey()
                count = self._generator.chunk
                if not self._intake.wait(count, IDLE):
                    continue
                shots = self._intake.take(count)
                if shots is None:
                    return
                self._chunk(shots)
        except Exception as error:  # noqa: BLE001 - the client is told, the other streams go on
            if not isinstance(error, UserError):
                _log.exception("a stream has failed")
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        why = "out of memory" if out_of_memory(error) else in_words(error)
        line = why if isinstance(error, UserError) else f"the stream has failed: {why}"
        self._outbox.end(CLOSE_FAILED, "the stream has failed", write("error", message=line, fatal=True))
        self._intake.close()

    @property
    def _generator(self) -> Generator[Any]:
        return self._stock.methods[self.choice.method]

    def _obey(self) -> None:
        """Do what is wished for, and look whether the consent still stands: a UserError if it does not."""
        with self._lock:
            wanted, self._wanted = self._wanted, None
        if wanted is not None and wanted != self.choice:
            self._consent, self._looked = self._stock.consent(wanted.reference), time.monotonic()
            self.choice, self._marking = wanted, None
            self._take(wanted)
            self.numbers.begin()
            self._tell()
        elif time.monotonic() - self._looked > CONSENT:
            before, self._looked = self._consent, time.monotonic()
            self._consent = self._stock.consent(self.choice.reference)
            if self._consent != before:
                self._tell()

    def _take(self, choice: Choice) -> None:
        """The swapper of a choice; who is followed stays followed."""
        generator = self._generator
        face = self._stock.faces[choice.reference, generator.size]
        occlusion = SkinColour() if self._settings.occlusion else Nothing()
        self._swapper = Swapper(self._tracker, Guarded(generator), face, occlusion)
        self._swapper.times = self._times
        before = self._state
        self._state = self._swapper.begin()
        if before is not None:
            self._state = replace(self._state, tracks=before.tracks)

    def _tell(self) -> None:
        """Tell the client what it sees from now on, signed."""
        self._streams += 1
        facts = {
            "format": 1,
            "made_by": f"worldmodel {__version__} swap-demo",
            "assertion": "faces in this stream are swapped by software",
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "method": self._stock.known[self.choice.method],
            "label": TEXT,
            "watermark": int(self._consent.reference_sha256[:4], 16),
            "consent": consent_facts(self._consent),
        }
        self._outbox.say(
            write(
                "state", stream=self._streams, method=self.choice.method, reference=self.choice.reference,
                source=self._hello.source, chunk=self._generator.chunk, size=self._generator.size,
                record=signed(facts, self._stock.key),
            )
        )  # fmt: skip

    def _chunk(self, shots: list[Shot]) -> None:
        spent = dict(self._times.seconds)
        pictures = self._decoded(shots)
        if not pictures:
            return
        shots = [shot for shot, _ in pictures]
        upright = [picture for _, picture in pictures]
        size = upright[0].pixels.shape[0], upright[0].pixels.shape[1]
        marking = self._marked(size)
        before = [] if self._opens is None else self._encoded(upright)
        assert self._state is not None
        self._tracker.seen.clear()
        seams, self._state = self._swapper.chunk(upright, TICK, self._state)
        with self._times.stage("mark"):
            for picture in upright:
                marking.draw(picture.pixels)
        after = self._encoded(upright)
        self._memory, self._held = held(self._state.generated.inner), self._state.generated.held
        now = time.perf_counter()
        self._send(shots, size, before, after, now)
        stages = {name: seconds - spent.get(name, 0.0) for name, seconds in self._times.seconds.items()}
        self.numbers.chunk(now, sum(map(bool, seams)), [now - shot.came for shot in shots], stages)

    def _decoded(self, shots: list[Shot]) -> list[tuple[Shot, Picture]]:
        """The pictures of one size that could be decoded: the newest one's."""
        out: list[tuple[Shot, Picture]] = []
        with self._times.stage("decode"):
            for shot in shots:
                if not isinstance(shot.picture, bytes):
                    out.append((shot, Picture(shot.picture, shot.ticks)))
                    continue
                try:
                    out.append((shot, Picture(decode_image(shot.picture, f"picture {shot.number}"), shot.ticks)))
                except UserError as error:
                    self._outbox.say(write("error", message=in_words(error), fatal=False), "broken picture")
        last = out[-1][1].pixels.shape if out else None
        kept = [each for each in out if each[1].pixels.shape == last]
        self._lost += len(shots) - len(kept)
        return kept

    def _marked(self, size: tuple[int, int]) -> Marking:
        """The marks for pictures of this size, proven; of another size than before, another stream begins."""
        if self._marking is None or size != self._size:
            self._marking = Marking(*size, self._consent, self._hello.codec, self._hello.quality)
            if self._size is not None and size != self._size:
                self._state = self._swapper.begin()
            self._size = size
        return self._marking

    def _encoded(self, pictures: Sequence[Picture]) -> list[bytes]:
        with self._times.stage("encode"):
            return [encode(picture.pixels, self._hello.codec, self._hello.quality) for picture in pictures]

    def _send(
        self, shots: list[Shot], size: tuple[int, int], before: list[bytes], after: list[bytes], now: float
    ) -> None:
        height, width = size
        sent: list[Sent] = []
        for k, shot in enumerate(shots):
            for flags, made in ((REAL, before), (0, after)):
                if not made:
                    continue
                header = FrameHeader(
                    codec=CODECS[self._hello.codec], flags=flags, width=width, height=height, stream=self._streams,
                    input=shot.number % 2**32, index=self._index, pts=shot.ticks,
                    latency=int(1e6 * (now - shot.came)), place=k, size=len(shots),
                )  # fmt: skip
                sent.append(Sent(header.pack() + made[k], shot.ticks, bool(flags), now))
            self._index += 1
        seen = [[shown(track) for track in tracks.visible] for tracks in self._tracker.seen[: len(shots)]]
        first = self._index - len(shots)
        self._outbox.say(write("tracks", index=first, width=width, height=height, tracks=seen), "tracks")
        self._outbox.put(sent)


def shown(track: Track) -> dict[str, Any]:
    """A track for the page: the corners of its region [4, 2] in pixels, how much of a swap is shown, and why not."""
    region = track.pose.matrix(1, PADDING)  # a single pixel: its corners are those of the region
    corners = np.array(((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5))) @ region[:, :2].T + region[:, 2]
    return {"name": track.name, "slot": track.slot, "weight": round(track.weight, 2), "why": track.why,
            "corners": corners.round(1).tolist()}  # fmt: skip


def consent_facts(consent: Consent) -> dict[str, str]:
    return {"person": consent.person, "statement": consent.statement, "date": consent.date,
            "reference_sha256": consent.reference_sha256}  # fmt: skip
