"""What every token of a whole clip looks at when each of its chunks sees what a memory would hold for it.

Shape letters: T frames of the clip, K of a chunk, n tokens of a frame, P clean frames (the history), F made ones.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from worldmodel.kernels.attention import Moved, Span
from worldmodel.memory import FullConfig, Geometry, Held, MemoryConfig, Reach
from worldmodel.models.fast_layer import Turn
from worldmodel.models.rope import Rope3D


@dataclass(frozen=True, slots=True)
class ClipView:
    """Over the tokens of [history | made frames]."""

    spans: tuple[Span, ...]
    turns: tuple[Turn, ...] | None  # of fast weights, where the model has them


def view_clip(
    geometry: Geometry, chunk: int, rope: Rope3D, memory: MemoryConfig | None, length: int, made: int,
    past: int | None = None, features: Tensor | None = None,
) -> ClipView:  # fmt: skip
    """Of a clip of T = `length` frames, its last F = `made` of them noisy.

    memory: None for one that holds everything. past: P, the clip's first frames as a clean history, or None without
    one: then F = T, and chunks look at the made frames before them. features: what the memory compares frames by,
    [B, T or P, h * D]; None for a memory that does not, or where only the number of keys matters.
    """
    for frames in (length, made, past or 0):
        check_chunks(frames, chunk)
    if features is None:
        features = torch.zeros(1, length, geometry.heads * geometry.head_dim)
    reaches = (memory or FullConfig()).reach(range(0, length, chunk), features)
    moved = [_moved(reach.held, geometry.tokens, rope) for reach in reaches]
    turns = None
    if geometry.fast is not None:
        known = None if past is None else past // chunk
        turns = _turns(len(reaches), chunk * geometry.tokens, made // chunk, known)
    return ClipView(_spans(reaches, moved, chunk, geometry.tokens, made, past), turns)


def check_chunks(frames: int, chunk: int) -> int:
    """The chunk. ValueError if it does not divide the frames."""
    if frames % chunk:
        raise ValueError(f"{frames} frames are no multiple of the chunk of {chunk}")
    return chunk


def _spans(
    reaches: list[Reach], moved: list[Moved | None], chunk: int, tokens: int, made: int, past: int | None
) -> tuple[Span, ...]:
    size, spans = chunk * tokens, list[Span]()
    for i in range((made if past is None else past) // chunk):
        start = i * size
        spans.append(Span((start, start + size), ((reaches[i].since * tokens, start + size),), moved[i]))
    if past is None:
        return tuple(spans)
    first = len(reaches) - made // chunk
    for i in range(first, len(reaches)):
        start = past * tokens + (i - first) * size
        own, since, before = (start, start + size), reaches[i].since * tokens, min(i * size, past * tokens)
        spans.append(Span(own, ((since, before), own) if since < before else (own,), moved[i]))
    return tuple(spans)


def _moved(held: Held | None, tokens: int, rope: Rope3D) -> Moved | None:
    if held is None:
        return None
    index = held.frames[..., None] * tokens + torch.arange(tokens, device=held.frames.device)
    table = rope.shift_table(held.places - held.frames)
    return Moved(index.flatten(1), table, rope.pairing, held.valid.repeat_interleave(tokens, 1))


def _turns(chunks: int, size: int, made: int, past: int | None) -> tuple[Turn, ...]:
    """Every chunk reads what was before it: its clean tokens and its made ones. Then the clean ones update, or without
    a history the made ones. In chunks, each of `size` tokens.
    """
    turns, first = [], chunks - made
    for i in range(chunks):
        own = (i * size, (i + 1) * size)
        if past is None:
            turns.append(Turn((own,), own))
            continue
        start = (past + i - first) * size
        reads = ((own,) if i < past else ()) + (((start, start + size),) if i >= first else ())
        turns.append(Turn(reads, own if i < past else None))
    return tuple(turns)
