"""Which generator `swap` runs: a baseline by its name, or a trained one by its folder."""

from pathlib import Path
from typing import Any, Literal

from worldmodel.errors import UserError
from worldmodel.face.generator import CopyPaste, Generator, PoissonBlend
from worldmodel.serial import to_json

Baseline = Literal["copy-paste", "poisson"]
METHODS: dict[Baseline, type[CopyPaste | PoissonBlend]] = {"copy-paste": CopyPaste, "poisson": PoissonBlend}
USUAL = 256  # side of a baseline's regions


def find_method(method: str, size: int | None) -> tuple[Generator[Any], Any]:
    """The generator that `method` names, and what it is known by in a job that goes on (JSON data).

    size: of the regions; None takes the generator's own. A trained one is known by its weights, memory and sampler,
    wherever it lies; it makes regions of one size, another one is a UserError. So is a name that is none.
    """
    for name, baseline in METHODS.items():
        if method == name:
            return baseline(size=USUAL if size is None else size), name
    folder = Path(method)
    if not folder.is_dir():
        raise UserError(f"--method {method}: is none of {', '.join(METHODS)}, nor the folder of a trained swap")
    from worldmodel.face.swap_model import SwapModel  # baselines need no transformer

    model = SwapModel.find(folder)
    if size is not None and size != model.size:
        raise UserError(f"--size {size}: {folder} makes regions of {model.size} pixels; leave --size out")
    return model, {"weights": model.fingerprint, "stream": to_json(model.stream)}
