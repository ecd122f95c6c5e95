"""What is wrong between frames: jumps at chunk borders, flicker, drifting colours.

Videos are float [B, T, 3, H, W] in [0, 1]; every measure gives one number per row, [B], so that rows can be resampled.
"""

import torch
from torch import Tensor


def border_differences(video: Tensor, chunk: int, offset: int = 0) -> tuple[Tensor, Tensor]:
    """Mean absolute change [B] from frame to frame at chunk borders, and inside chunks.

    chunk: pixel frames of a chunk. offset: index of a frame that begins one (the change into it is a border).
    """
    change = (video[:, 1:] - video[:, :-1]).abs().mean((2, 3, 4))  # change into frames 1, 2, ...
    border = (torch.arange(1, video.shape[1], device=video.device) - offset) % chunk == 0
    if not border.any() or border.all():
        raise ValueError(f"{video.shape[1]} frames hold no border or no inside of chunks of {chunk}")
    return change[:, border].mean(1), change[:, ~border].mean(1)


def border_jump(generated: Tensor, real: Tensor, chunk: int, offset: int = 0) -> float:
    """Change at borders over change inside chunks, divided by the same quotient of the real video: 1 is no jump.

    Changes are averaged over all rows before dividing. Videos that never change inside a chunk have no quotient: they
    count a change of one part in 255 * 100.
    """
    return jump_of(*(border_differences(v, chunk, offset) for v in (generated, real)))


def jump_of(generated: tuple[Tensor, Tensor], real: tuple[Tensor, Tensor]) -> float:
    """`border_jump` from the `border_differences` of both."""
    tiny = 1 / 25500
    (at, inside), (real_at, real_inside) = generated, real
    quotient = at.mean() / inside.mean().clamp_min(tiny)
    return float(quotient / (real_at.mean() / real_inside.mean().clamp_min(tiny)).clamp_min(tiny))


def flicker_energy(video: Tensor) -> Tensor:
    """Energy [B] of the highest temporal frequencies: mean square of h_t = (p_t-1 - 2 p_t + p_t+1) / 4.

    This filter passes a frequency of f cycles per frame with gain sin^2(pi f): nothing of a still picture or a steady
    fade, all of an alternation from frame to frame. In squared units of the [0, 1] scale.
    """
    if video.shape[1] < 3:
        raise ValueError(f"flicker needs at least 3 frames, not {video.shape[1]}")
    high = (video[:, :-2] - 2 * video[:, 1:-1] + video[:, 2:]) / 4
    return high.square().mean((1, 2, 3, 4))


def colour_shift(generated: Tensor, real: Tensor) -> Tensor:
    """Distance [B] of the mean RGB colours of two videos, in levels of 0..255."""
    return (generated.mean((1, 3, 4)) - real.mean((1, 3, 4))).norm(dim=1) * 255


def contrast_ratio(generated: Tensor, real: Tensor) -> Tensor:
    """Quotient [B] of the standard deviations of the pixels of two videos: below 1 is washed out, above 1 burnt."""
    return generated.std((1, 2, 3, 4), correction=0) / real.std((1, 2, 3, 4), correction=0).clamp_min(1e-6)
