"""What a generator's state holds of the past, for people to look at."""

from typing import Any

from worldmodel.face.swap_model import SwapState
from worldmodel.memory.base import Inspectable


def held(generated: Any) -> dict[str, Any]:
    """references: pictures of the reference. newest: frames of its own that it still has, of the row with most. places:
    how many fit. bytes: of the whole memory. Of a baseline: the reference alone, and nothing of the past."""
    if not isinstance(generated, SwapState):
        return {"references": 1, "newest": 0, "places": 0, "bytes": 0}
    state = generated.state
    memory, places = state.memory, generated.model.stream.memory.capacity or 0
    rows = memory.holding(state.frame) if isinstance(memory, Inspectable) else []
    references = max((row.sink for row in rows), default=0)
    newest = max((row.ring for row in rows), default=0)
    return {"references": references, "newest": newest, "places": places - references, "bytes": memory.nbytes}
