"""How many bytes and operations the fast weights of a block take, beside those of footprint.py.

The counts follow the reference operations in kernels/fast_weight: a token that reads takes 3 products with a matrix,
one that is written 6, and both twice as many in the backward pass. Shape letters: B rows, G head groups, D width of a
group, E hidden width, C = G D.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from worldmodel.models.fast_layer import FastLayer, Turn


@dataclass(frozen=True, slots=True)
class Sweep:
    """Tokens of one row that read and that are written, over all turns, and how many turns update."""

    reads: int
    writes: int
    updates: int

    @classmethod
    def of(cls, turns: Sequence[Turn]) -> "Sweep":
        reads = sum(end - start for turn in turns for start, end in turn.reads)
        written = [turn.writes[1] - turn.writes[0] for turn in turns if turn.writes is not None]
        return cls(reads, sum(written), len(written))


def fast_operations(layer: FastLayer, rows: int, turns: Sequence[Turn], kept: bool) -> tuple[float, float]:
    """Of a forward pass and its backward pass, without the linear layers (rates, decay).

    kept: whether what the last turn has written is read later; otherwise nothing flows back through it.
    """
    groups, hidden, width = layer.w0.shape
    product = 2.0 * rows * groups * hidden * width  # of one token and one matrix
    muon = 3.0 * rows * groups * _newton_schulz(hidden, width, layer.cfg.muon)
    whole, before = Sweep.of(turns), Sweep.of(turns[:-1])
    forward = product * (3 * whole.reads + 6 * whole.writes) + muon * whole.updates
    read_later = whole if kept else before
    backward = 2 * (product * (3 * whole.reads + 6 * read_later.writes) + muon * read_later.updates)
    if not layer.w0.requires_grad:  # the first turn alone sees the initial weights, which need no gradient then
        first = Sweep.of(turns[:1])
        backward -= product * (3 * first.reads + 3 * first.writes * (kept or len(turns) > 1))
    return forward, backward


def fast_activations(layer: FastLayer, rows: int, tokens: int, turns: Sequence[Turn], kept: bool, size: int) -> int:
    """Bytes that one block keeps for the backward pass.

    tokens: of a row. kept: as of `fast_operations`. size: bytes of an activation under autocast; what has to do with
    fast weights is fp32.
    """
    groups, hidden, width = layer.w0.shape
    of_token, inside = groups * width, groups * hidden  # C, and G E
    reads, written = Sweep.of(turns).reads, Sweep.of(turns if kept else turns[:-1])
    every, units = rows * tokens, 2 if written.writes else 1  # queries, and keys if they are written
    found = units * every * ((size + 8) * of_token + 8 * groups)  # scaled, through SiLU, its output, norms
    found += every * (8 * of_token + 4 * groups)  # what was read, normed
    found += 4 * rows * reads * (of_token + 4 * inside)
    matrix, short, steps = 4 * rows * groups * hidden * width, min(hidden, width), layer.cfg.muon
    found += 3 * matrix * len(turns)  # as they are read
    if written.updates:
        found += every * groups * (24 + (4 if layer.cfg.momentum else 0)) + 3 * matrix  # rates, decay, first matrices
    found += 4 * rows * written.writes * (3 * of_token + 14 * inside)
    each = 6 * matrix + 8 * rows * groups * (2 * hidden + width)  # before and after norms are set
    each += 3 * matrix * (layer.cfg.momentum + (steps > 0) + steps) + 3 * steps * 12 * rows * groups * short * short
    return found + written.updates * each


def _newton_schulz(hidden: int, width: int, steps: int) -> float:
    """Operations for one matrix: its Gram matrix, that one's square, and the product with the matrix."""
    short, long = sorted((hidden, width))
    return steps * (4.0 * short * short * long + 2.0 * short**3)
