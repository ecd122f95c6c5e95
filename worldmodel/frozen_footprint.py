"""What frozen networks cost in a training step: decoders and encoders that a loss looks through.

No formulas describe them: their operations, and what autograd saves of them, are counted on the networks themselves.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from worldmodel.encoders.frames import open_encoder
from worldmodel.footprint import Operations
from worldmodel.models.dit import DiTConfig
from worldmodel.models.tokenizer_folder import load_tokenizer


@dataclass(frozen=True, slots=True)
class Look:
    """A frozen decoder and encoder, over the frames of one row's rollout."""

    operations: Operations
    graph: int  # bytes that autograd saves
    gradient: int  # bytes on the way back: two of the largest of them
    weights: int  # bytes
    dimension: int
    pictures: int  # that are encoded


def look(choice: str, tokenizer: Path, config: DiTConfig, latents: int, stride: int) -> Look:
    """The encoder `choice` behind the tokenizer's decoder, for a row of so many latent frames.

    The decoder is counted on the meta device; the encoder, which may be any file, on one real picture.
    """
    network: Any = load_tokenizer(tokenizer).requires_grad_(False)  # pyright: ignore[reportAttributeAccessIssue]
    cells = config.size
    encoder = open_encoder(choice, network)
    size = [cell * network.spatial for cell in cells]
    z = torch.zeros(1, latents, config.channels, *cells, device="meta", requires_grad=True)
    decoded, pixels = _counted(copy.deepcopy(network).to("meta").decode, z)
    picture = torch.zeros(1, 3, *size, requires_grad=True)
    encoded, features = _counted(encoder.features, picture)
    pictures = pixels.shape[1] // stride
    return Look(
        operations=decoded[0] + encoded[0].times(pictures),
        graph=sum(decoded[1]) + pictures * sum(encoded[1]),
        gradient=2 * max(0, *decoded[1], *(pictures * size for size in encoded[1])),
        weights=_weights(network) + sum(_weights(m) for m in vars(encoder).values() if _is_other(m, network)),
        dimension=features.shape[1],
        pictures=pictures,
    )


def _is_other(value: Any, network: nn.Module) -> bool:
    return isinstance(value, nn.Module) and value is not network


def _weights(network: nn.Module) -> int:
    return sum(t.nbytes for t in (*network.parameters(), *network.buffers()))


def _counted(function: Any, x: Tensor) -> tuple[tuple[Operations, list[int]], Tensor]:
    """Operations of a frozen network forward and back to its input, bytes that its graph holds; and what it returns."""
    with FlopCounterMode(display=False) as forward, _saved() as saved:
        made = function(x)
    with FlopCounterMode(display=False) as backward:
        made.sum().backward()
    found = Operations(forward.get_total_flops(), backward.get_total_flops(), 0.0)
    return (found, list(saved.values())), made.detach()


@contextmanager
def _saved() -> Iterator[dict[int, int]]:
    """Bytes of the storages that autograd saves for a backward pass, those of weights left out."""
    found: dict[int, int] = {}
    alive: list[Tensor] = []  # so that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            alive.append(tensor)
            found[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield found
