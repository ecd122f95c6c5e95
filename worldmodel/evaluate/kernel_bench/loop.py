"""The streaming loop under two settings of the kernels."""

from worldmodel.evaluate.streams import Stream
from worldmodel.kernels import backend
from worldmodel.models.world import WorldModel

from .work import Run

SETTINGS = ("auto", "reference")


def loop_arms(world: WorldModel) -> dict[str, Run]:
    """Make the next chunk of a stream, decoding included; one stream for every setting, with one beginning."""
    return {setting: _chunk(Stream(world, world.stream.memory, seed=0), setting) for setting in SETTINGS}


def _chunk(stream: Stream, setting: str) -> Run:
    def run() -> None:
        with backend.using(setting):
            stream.next()

    return run
