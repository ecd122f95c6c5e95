"""What every token of a whole clip looks at when each of its chunks sees what a memory would hold for it.

Shape letters: T frames of the clip, K of a chunk, n tokens of a frame, P clean frames (the history), F made ones.
"""

from collections.abc import Sequence

import torch

from worldmodel.kernels.attention import Moved, Span
from worldmodel.memory import Held, Reach
from worldmodel.models.rope import Rope3D


def clip_spans(
    reaches: Sequence[Reach], chunk: int, tokens: int, rope: Rope3D, made: int, past: int | None
) -> tuple[Span, ...]:
    """Spans over the tokens of [history | made frames].

    reaches: of the clip's T / K chunks in order. made: F, the clip's last frames. past: P, the clip's first frames as a
    clean history, or None without one: then made = T, and chunks look at the made frames before them.
    """
    size = chunk * tokens
    spans, moved = [], [_moved(reach.held, tokens, rope) for reach in reaches]
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
