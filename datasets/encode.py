"""`encode`: a recording becomes a folder of latents, in parallel by episodes, resumable, flat in memory."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from multiprocessing.connection import wait as wait_for_end
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldmodel.datasets.clips import VideoFolder
from worldmodel.datasets.interrupt import HeldSignals, without_interrupts_for_children
from worldmodel.datasets.latent_files import (
    TOKENIZER,
    LatentsInfo,
    align_actions,
    begin,
    is_written,
    weights_digest,
    write_episode,
    write_info,
)
from worldmodel.datasets.merge_actions import Merge
from worldmodel.datasets.recordings import (
    Frame,
    Recordings,
    choose_actions,
    choose_camera,
    open_recordings,
    parse_fps,
    parse_size,
    picture_size,
)
from worldmodel.errors import UserError
from worldmodel.evaluate.metrics import psnr, to_unit
from worldmodel.models.pixel_tokenizer import PixelTokenizer
from worldmodel.models.tokenizer import Tokenizer
from worldmodel.models.tokenizer_folder import load_tokenizer
from worldmodel.models.world import check_device
from worldmodel.options import check_range
from worldmodel.pixels import fit, to_float, to_uint8
from worldmodel.progress import progress_bar

BATCH = 32  # frames encoded at once, a multiple of every temporal factor
LOOKED_AT = 8  # frames after the first, to see how well the tokenizer fits
FITTING = 25.0  # dB; a tokenizer that was trained on such pictures reaches 28 to 40
MAX_WORKERS = 1024
WORTH_PROCESSES = 10_000  # frames; fewer are encoded before a second process has started


@runtime_checkable
class StreamEncoder(Protocol):
    """A tokenizer with a temporal factor, which encodes a video of any length piece by piece."""

    def encode_stream(self, pixels: Tensor, state: Any) -> tuple[Tensor, Any]: ...


@dataclass(frozen=True, slots=True)
class Encoding:
    """Everything that encoding one episode needs besides the tokenizer."""

    recordings: Recordings
    camera: str
    size: tuple[int, int]
    out: Path
    info: LatentsInfo
    lengths: dict[int, int]  # pixel frames of each episode
    device: str

    def episode(self, tokenizer: Tokenizer, index: int, advance: Callable[[int], None]) -> None:
        """Encode one episode and write its file. `advance` is told of pixel frames as they are done."""
        info, length = self.info, self.lengths[index]
        used = 1 + (info.episodes[index] - 1) * info.temporal
        pictures = (fit(frame, *self.size) for frame in islice(self.recordings.frames(index, self.camera), used))
        latents = np.concatenate(list(_encoded(tokenizer, pictures, self.device, advance)))
        advance(length - used)
        actions = None
        if info.action_names:
            columns = [self.recordings.action_names.index(name) for name in info.action_names]
            actions = align_actions(self.recordings.actions(index)[:used, columns], info.temporal)
        write_episode(self.out, index, latents, actions)


def encode(
    data: Path,
    tokenizer: str,
    out: Path,
    camera: str | None = None,
    size: str | None = None,
    fps: str | None = None,
    merge_actions: Merge | None = None,
    actions: tuple[str, ...] | None = None,
    workers: int | None = None,
    device: str = "cpu",
) -> int:
    """Pre-compute the latents of a dataset or of a folder of videos, for training.

    Example: worldmodel encode data/drive --tokenizer demos/models/doom/tokenizer --size 64 --out data/drive_latents

    Stopped at any moment, the same command goes on: finished episodes are kept. --tokenizer is a folder, or the name of
    a diffusers autoencoder on the hub. --size WIDTHxHEIGHT scales and cuts pictures, --fps brings videos to one rate,
    --actions chooses dimensions by name, --workers sets the number of processes. Where --fps leaves out or repeats
    frames, --merge-actions says how the action of a kept frame covers all until the next one: sum (displacements add
    up), mean (held commands or rates average) or last (absolute targets keep the newest). Before it begins it says how
    well the tokenizer gives back a few frames of the first episode.
    """
    check_range(1, MAX_WORKERS, workers=workers)
    check_device(device)
    recordings = open_recordings(data, parse_fps(fps), merge_actions)
    for note in recordings.notes():
        print(note)
    try:
        with HeldSignals() as signals, signals.stop():
            info = encode_recordings(
                recordings, tokenizer, out, camera, parse_size(size), actions, workers=workers, device=device, say=print
            )
    except KeyboardInterrupt:
        print(f"{out}: stopped; finished episodes are kept, the same command goes on")
        return 130
    print(f"{out}: {len(info.episodes)} episodes, {info.frames} latent frames of {list(info.shape)}")
    return 0


def encode_recordings(
    recordings: Recordings,
    tokenizer: str | Path,
    out: Path,
    camera: str | None = None,
    size: tuple[int, int] | None = None,
    actions: tuple[str, ...] | None = None,
    workers: int | None = None,
    device: str = "cpu",
    say: Callable[[str], None] = lambda line: None,
) -> LatentsInfo:
    """Write the latents of all episodes of one camera to `out`; goes on where an earlier call stopped.

    size: (height, width). The result does not depend on the number of workers, nor on where it was stopped. say: told
    first how well the tokenizer fits the pictures. Raises UserError for bad input; what was finished before stays.
    """
    model = load_tokenizer(tokenizer).to(device).eval().requires_grad_(False)  # pyright: ignore[reportAttributeAccessIssue]
    encoding = _plan(recordings, model, out, camera, size, actions, device)
    info = encoding.info
    begin(out, info)
    if not (out / TOKENIZER).is_dir():
        beside = out / f"{TOKENIZER}.part"
        model.save(beside)
        beside.rename(out / TOKENIZER)
    missing = [index for index in info.episodes if not is_written(out, info, index)]
    if missing and not isinstance(model, PixelTokenizer):
        _say_fit(encoding, model, say)
    left, total = sum(encoding.lengths[index] for index in missing), sum(encoding.lengths.values())
    if workers is None:
        workers = 1 if device != "cpu" or left < WORTH_PROCESSES else min(len(missing), os.cpu_count() or 1)
    with progress_bar("encode", total, total - left) as advance:
        if workers <= 1:
            _encode_here(encoding, model, missing, advance)
        else:
            _encode_in_processes(encoding, missing, workers, advance)
    write_info(out, info)
    return info


def _plan(
    recordings: Recordings,
    model: Tokenizer,
    out: Path,
    camera: str | None,
    size: tuple[int, int] | None,
    actions: tuple[str, ...] | None,
    device: str,
) -> Encoding:
    camera = choose_camera(recordings, camera)
    names = choose_actions(recordings, actions)
    recordings.check_statistics(names)
    height, width = picture_size(recordings, camera, size)
    s = model.spatial
    if height % s or width % s:
        fitting = f"{max(width // s, 1) * s}x{max(height // s, 1) * s}"
        raise UserError(
            f"{recordings.path}: pictures of {width} x {height} pixels, the tokenizer takes multiples of {s}; "
            f"scale them with --size {fitting}"
        )
    if model.temporal > 1 and not isinstance(model, StreamEncoder):
        raise UserError(f"{type(model).__name__}: encodes {model.temporal} frames at a time, but not piece by piece")
    lengths = recordings.episodes
    info = LatentsInfo(
        tokenizer=type(model).__name__,
        sha256=weights_digest(model),  # pyright: ignore[reportArgumentType]
        spatial=s,
        temporal=model.temporal,
        shape=(model.channels, height // s, width // s),
        fps=Fraction(recordings.fps),
        action_names=names,
        source=str(recordings.path),
        camera=camera,
        episodes={index: 1 + (n - 1) // model.temporal for index, n in lengths.items()},
        merge_actions=recordings.merge if isinstance(recordings, VideoFolder) else None,
    )
    return Encoding(recordings, camera, (height, width), out, info, lengths, device)


@torch.no_grad()
def _say_fit(encoding: Encoding, model: Tokenizer, say: Callable[[str], None]) -> None:
    """PSNR of a few pictures after encoding and decoding, and a warning where it is low."""
    first = next(iter(encoding.lengths))
    used = min(1 + LOOKED_AT // model.temporal * model.temporal, encoding.lengths[first])
    used -= (used - 1) % model.temporal
    frames = [fit(frame, *encoding.size) for frame in islice(encoding.recordings.frames(first, encoding.camera), used)]
    latents = torch.from_numpy(_piece(model, frames, None, encoding.device)[0])[None].float().to(encoding.device)
    made = to_unit(torch.from_numpy(to_uint8(model.decode(latents))[0]))
    quality = float(psnr(to_unit(torch.from_numpy(np.stack(frames))), made).mean())
    say(f"the tokenizer gives back {len(frames)} frames of the first episode with {quality:.1f} dB (PSNR)")
    if quality < FITTING:
        say(
            f"warning: below {FITTING:.0f} dB the tokenizer was not made for such pictures, and no world model behind "
            "it can be better: train one (configs/doom_autoencoder.py), or use a pretrained autoencoder"
        )


@torch.no_grad()
def _piece(tokenizer: Tokenizer, frames: list[Frame], state: Any, device: str) -> tuple[NDArray[np.float16], Any]:
    pixels = to_float(np.stack(frames))[None].to(device)
    if isinstance(tokenizer, StreamEncoder):
        latents, state = tokenizer.encode_stream(pixels, state)
    else:
        latents = tokenizer.encode(pixels)
    return latents[0].float().cpu().numpy(), state


def _encoded(
    tokenizer: Tokenizer, pictures: Iterator[Frame], device: str, advance: Callable[[int], None]
) -> Iterator[NDArray[Any]]:
    """Latents of a video, piece by piece. The first piece is one frame longer, as a causal tokenizer wants it."""
    state, count = None, BATCH + 1
    while piece := list(islice(pictures, count)):
        latents, state = _piece(tokenizer, piece, state, device)
        yield latents
        advance(len(piece))
        count = BATCH


def _encode_here(encoding: Encoding, model: Tokenizer, indices: list[int], advance: Callable[[int], None]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the processes: the same result to the last bit
    try:
        for index in indices:
            encoding.episode(model, index, advance)
    finally:
        torch.set_num_threads(threads)


def _encode_in_processes(encoding: Encoding, indices: list[int], workers: int, advance: Callable[[int], None]) -> None:
    context = multiprocessing.get_context("spawn")
    shared, shown = _Shared(context), 0
    waiting, running = iter(indices), set[Future[None]]()
    with ProcessPoolExecutor(workers, context, _start_worker, (encoding, shared)) as pool:
        try:
            while True:
                with without_interrupts_for_children():  # a submission may start a worker
                    running |= {pool.submit(_work, i) for i in islice(waiting, 2 * workers - len(running))}
                if not running:
                    break
                done, running = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                for job in done:
                    job.result()
                advance(shared.frames.value - shown)
                shown = shared.frames.value
        except BrokenProcessPool as error:
            raise UserError(
                f"{encoding.out}: a worker process was killed (out of memory?); fewer --workers need less; finished "
                "episodes are kept"
            ) from error
        finally:
            shared.stop.set()
            pool.shutdown(cancel_futures=True)


class _Shared:
    """Between the main process and the workers: frames done, and the wish to stop."""

    def __init__(self, context: SpawnContext) -> None:
        self.frames = context.Value("q", 0)
        self.stop = context.Event()

    def advance(self, frames: int) -> None:
        if self.stop.is_set():
            raise _Stopped
        with self.frames.get_lock():
            self.frames.value += frames


class _Stopped(Exception):
    """The main process has stopped; this episode is not wanted any more."""


_worker: tuple[Encoding, Tokenizer, _Shared]  # of this process, set by _start_worker


def _start_worker(encoding: Encoding, shared: _Shared) -> None:
    global _worker
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    model = load_tokenizer(encoding.out / TOKENIZER).to(encoding.device).eval()  # pyright: ignore[reportAttributeAccessIssue]
    _worker = encoding, model.requires_grad_(False), shared


def _end_with_parent() -> None:
    """A killed main process must not leave its workers behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_end([parent.sentinel])
    os._exit(1)


def _work(index: int) -> None:
    encoding, model, shared = _worker
    encoding.episode(model, index, shared.advance)
