"""The simulator of one session: started when somebody first asks for it, told what the dream was told.

Shape letters: K latent frames of a chunk, A packed action size, D size of one environment action, P pixel frames.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from worldmodel.errors import UserError
from worldmodel.models.world import WorldModel

from .beside import Beside
from .bindings import rest
from .dream import context_frames
from .replay import Deed
from .sources import Footage, Pixels, RealWorldFactory

Tell = Callable[[Callable[[], object]], None]


class Companion:
    """Used by the engine's thread; `tell` brings there what the simulator's thread has to say."""

    def __init__(
        self, world: WorldModel, factory: RealWorldFactory | None, tell: Tell, on_failure: Callable[[str], None]
    ) -> None:
        """factory: None where no simulator of this world is installed. on_failure: gets one line, in the engine's
        thread; the simulator has been forgotten by then, and may be started again."""
        self._world, self._factory, self._tell, self._on_failure = world, factory, tell, on_failure
        self._beside: Beside | None = None

    @property
    def ready(self) -> bool:
        """Whether the dream may go on."""
        return self._beside is None or self._beside.ready

    @property
    def running(self) -> bool:
        """Whether there is a simulator, shown or not."""
        return self._beside is not None

    @property
    def shown(self) -> bool:
        """Whether it runs with the dream."""
        return self._beside is not None and self._beside.shown

    def show(self, on: bool) -> bool:
        """Start showing it, or stop; returns whether it had to be started. Raises UserError if there is none."""
        spec = self._world.actions
        if self._factory is None or spec is None:
            raise UserError("no simulator of this world is installed")
        new = on and self._beside is None
        if new:
            bounds = zip(spec.low, spec.high, strict=True)
            still = np.array([[rest(low, high) for low, high in bounds]] * spec.pack, np.float32)
            sizes = {"temporal": self._world.tokenizer.temporal, "latents": context_frames(self._world)}
            self._beside = Beside(self._factory, **sizes, still=still, on_failure=self._failed)
        if self._beside is not None:
            self._beside.shown = on
        return new

    def hide(self) -> None:
        """Stop showing it, if it is shown."""
        if self._beside is not None:
            self._beside.shown = False

    def begin(self, seed: int | None, give: Callable[[Footage], object]) -> None:
        """`give` gets, in the engine's thread, the footage that a dream begins from; with a seed, of a new episode.

        The dream waits until then. Raises UserError if no simulator runs.
        """
        if self._beside is None:
            raise UserError("the real world is not running: switch it on first")

        def take(footage: Footage) -> None:
            if self._beside is not None:
                self._beside.asked = False
            give(footage)

        self._beside.footage(seed, lambda footage: self._tell(lambda: take(footage)))

    def step(self, deed: Deed, show: Callable[[Pixels], None]) -> None:
        """Do what the dream was told; `show` gets the pictures [P, H, W, 3] in the simulator's thread."""
        if self._beside is not None:
            self._beside.step(self._executed(deed), show)

    def close(self) -> None:
        """End it, in the background."""
        if self._beside is not None:
            self._beside.close()

    def join(self, timeout: float) -> None:
        """Wait for its end, so many seconds at most."""
        if self._beside is not None:
            self._beside.join(timeout)

    def _executed(self, deed: Deed) -> NDArray[np.float32]:
        """A deed [K, A] in environment units, [K, pack, D]: exactly what the model was told."""
        spec = self._world.actions
        if spec is None:
            raise UserError("this world has no actions")
        return spec.denormalise(deed.action.unflatten(-1, (spec.pack, spec.dim))).numpy()

    def _failed(self, line: str) -> None:
        """Called in the simulator's thread."""

        def forget() -> None:
            self._beside = None
            self._on_failure(line)

        self._tell(forget)
