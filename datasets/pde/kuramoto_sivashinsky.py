"""The Kuramoto-Sivashinsky equation u_t = -u u_x - u_xx - u_xxxx on a periodic interval, solved to high accuracy.

A chaotic partial differential equation in one dimension: long waves grow, short ones are damped, the quadratic term
moves energy between them. Space is spectral, time is ETDRK4: exponential time differencing with a fourth-order
Runge-Kutta scheme (Cox & Matthews, J. Comput. Phys. 176, 2002) whose coefficients are means over a circle in the
complex plane, which avoids their cancellation near zero (Kassam & Trefethen, SIAM J. Sci. Comput. 26, 2005).

Everything is fp64. Letters: B rows, N grid points, M = N // 2 + 1 modes of a real field.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from worldmodel.errors import UserError

Floats = NDArray[np.float64]
Modes = NDArray[np.complex128]
CIRCLE = 64  # points on the circle; its radius is 1


@dataclass(frozen=True)
class KuramotoSivashinsky:
    """The equation on [0, length) with `points` grid points, an even number.

    length: 22 is the smallest interval that is studied as chaotic (Cvitanovic, Davidchack & Siminos, 0709.2944); its
    leading Lyapunov exponent is about 0.048, so that errors grow by e in about 21 units of time. The number of
    exponents above zero grows with the length.
    """

    length: float = 22.0
    points: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.length < np.inf:
            raise UserError(f"Kuramoto-Sivashinsky: length must be a positive number, not {self.length}")
        if self.points < 8 or self.points % 2:
            raise UserError(f"Kuramoto-Sivashinsky: points must be an even number of at least 8, not {self.points}")

    @cached_property
    def wavenumbers(self) -> Floats:
        """k of every mode, [M]."""
        return np.arange(self.points // 2 + 1, dtype=np.float64) * (2 * np.pi / self.length)

    @cached_property
    def linear(self) -> Floats:
        """The linear part of the equation, diagonal in the modes: k^2 - k^4, [M]."""
        return self.wavenumbers**2 - self.wavenumbers**4

    def nonlinear(self, modes: Modes) -> Modes:
        """-u u_x = -(u^2)_x / 2 in the modes, [..., M] -> [..., M].

        The product is taken on the grid. The derivative of the highest mode, which the grid cannot tell from its
        mirror image, is zero.
        """
        square = np.fft.rfft(np.fft.irfft(modes, self.points) ** 2)
        return np.asarray(self._derivative * square, np.complex128)

    @cached_property
    def _derivative(self) -> Modes:
        factor = np.asarray(-0.5j * self.wavenumbers, np.complex128)
        factor[-1] = 0
        return factor

    def rate(self, modes: Modes) -> Modes:
        """du/dt in the modes, [..., M] -> [..., M]: what any other integrator needs."""
        return self.linear * modes + self.nonlinear(modes)

    def frames(self, field: Floats, interval: float, steps: int) -> Iterator[Floats]:
        """The field [..., N] after 1, 2, 3, ... intervals, endlessly; each is made of `steps` equal steps of ETDRK4.

        interval: in the equation's units of time. A field that stops being finite (steps too long) is a UserError.
        """
        if field.shape[-1] != self.points:
            raise UserError(f"Kuramoto-Sivashinsky: a field of {field.shape[-1]} points on a grid of {self.points}")
        if steps < 1 or not interval > 0:
            raise UserError(f"Kuramoto-Sivashinsky: interval {interval} must be above 0 and steps {steps} at least 1")
        advance, modes, done = Etdrk4(self, interval / steps), np.fft.rfft(field), 0
        while True:
            for _ in range(steps):
                modes = advance(modes)
            done += 1
            made = np.fft.irfft(modes, self.points)
            if not np.isfinite(made).all():
                raise UserError(
                    f"Kuramoto-Sivashinsky: the field overflows before time {done * interval:g}; steps of "
                    f"{interval / steps:g} are too long"
                )
            yield made


class Etdrk4:
    """One step of length `step` (units of time), as a function of the modes [..., M]."""

    def __init__(self, equation: KuramotoSivashinsky, step: float) -> None:
        self.nonlinear = equation.nonlinear
        z = step * equation.linear
        self.whole, self.half = np.exp(z), np.exp(z / 2)
        circle = np.exp(1j * np.pi * (np.arange(CIRCLE) + 0.5) / CIRCLE)  # the upper half; the lower is its conjugate
        r = z[:, None] + circle
        self.to_half = step * np.real((np.exp(r / 2) - 1) / r).mean(1)
        self.first = step * np.real((-4 - r + np.exp(r) * (4 - 3 * r + r**2)) / r**3).mean(1)
        self.middle = step * np.real((2 + r + np.exp(r) * (r - 2)) / r**3).mean(1)
        self.last = step * np.real((-4 - 3 * r - r**2 + np.exp(r) * (4 - r)) / r**3).mean(1)

    def __call__(self, u: Modes) -> Modes:
        at_start = self.nonlinear(u)
        a = self.half * u + self.to_half * at_start
        at_a = self.nonlinear(a)
        b = self.half * u + self.to_half * at_a
        at_b = self.nonlinear(b)
        c = self.half * a + self.to_half * (2 * at_b - at_start)
        at_c = self.nonlinear(c)
        return self.whole * u + self.first * at_start + 2 * self.middle * (at_a + at_b) + self.last * at_c
