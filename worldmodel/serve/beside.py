"""The simulator that runs beside the dream, in a thread of its own, under the same actions.

It has its own thread because some simulators (MuJoCo with EGL) must be used by the thread that opened them, and so that
a slow one keeps nobody waiting but its own session.

Shape letters: K latent frames of a chunk, T latent frames of an opening, P pixel frames, D size of an action.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .protocol import in_words
from .sources import Footage, Pixels, RealWorld, RealWorldFactory

_log = logging.getLogger("worldmodel.serve")
AHEAD = 2  # jobs that may wait before the dream waits for the simulator

Job = Callable[[RealWorld], None]


class Beside:
    """One simulator. Jobs are done in the order in which they were given; their callbacks run in its thread."""

    def __init__(
        self,
        factory: RealWorldFactory,
        *,
        temporal: int,
        latents: int,
        still: NDArray[np.float32],
        on_failure: Callable[[str], None],
    ) -> None:
        """temporal: pictures of a latent frame. latents: T. still: [pack, D], the actions of doing nothing."""
        self._factory, self._temporal, self._latents, self._still = factory, temporal, latents, still
        self._on_failure = on_failure
        self.shown = False  # whether it runs with the dream
        self.asked = False  # for footage, that has not been used yet
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._pixels: deque[Pixels] = deque(maxlen=1 + (latents - 1) * temporal)
        self._actions: deque[NDArray[np.float32]] = deque(maxlen=(latents - 1) * len(still))
        self._thread = threading.Thread(target=self._run, name="real world", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether the dream may go on: the simulator keeps up, and gives no beginning (they would drift apart)."""
        return not self.asked and not (self.shown and self._jobs.qsize() >= AHEAD)

    def step(self, actions: NDArray[np.float32], show: Callable[[Pixels], None]) -> None:
        """Execute a chunk's actions [K, pack, D]; `show` gets the pictures [K * temporal, H, W, 3]."""
        self._jobs.put(lambda world: show(np.concatenate([self._step(world, each) for each in actions])))

    def footage(self, seed: int | None, give: Callable[[Footage], None]) -> None:
        """`give` gets the last T latent frames; with a seed, of a new episode in which nothing was done.

        The dream waits until its owner clears `asked`.
        """
        self.asked = True
        self._jobs.put(lambda world: give(self._footage(world, seed)))

    def close(self) -> None:
        """Close the simulator after the jobs that wait, in the background."""
        self._jobs.put(None)

    def join(self, timeout: float) -> None:
        """Wait until it is closed, so many seconds at most."""
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            world = self._factory()
            try:
                while (job := self._jobs.get()) is not None:
                    job(world)
            finally:
                world.close()
        except Exception as error:  # noqa: BLE001 - foreign code: the dream goes on without it
            _log.exception("the real world stopped")
            self._on_failure(f"the real world stopped: {in_words(error)}")

    def _reset(self, world: RealWorld, seed: int) -> Pixels:
        first = world.reset(seed)
        self._pixels.clear()
        self._actions.clear()
        self._pixels.append(first)
        return first

    def _step(self, world: RealWorld, actions: NDArray[np.float32]) -> Pixels:
        pixels = world.step(actions)
        if len(pixels) != self._temporal:
            raise RuntimeError(f"it gave {len(pixels)} pictures for one latent frame of {self._temporal}")
        self._pixels.extend(pixels)
        self._actions.extend(actions)
        return pixels

    def _footage(self, world: RealWorld, seed: int | None) -> Footage:
        if seed is not None or not self._pixels:
            self._reset(world, seed or 0)
        while len(self._pixels) < (self._pixels.maxlen or 0):
            self._step(world, self._still)
        return Footage(np.stack(self._pixels), np.stack(self._actions).astype(np.float32))
