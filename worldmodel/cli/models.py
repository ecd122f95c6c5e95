"""Which models lie beside the package in the repository (not in the wheel), and how a command opens one."""

from pathlib import Path
from typing import Any

from worldmodel.options import check_threads

MODELS = Path(__file__).resolve().parents[2] / "demos" / "models"
CONFIGS = MODELS.parents[1] / "configs"
DOOM = MODELS / "doom"
DOOM_BASE = MODELS / "doom_base"  # the same model before its training on its own rollouts


def open_model(folder: Path, device: str, threads: int) -> Any:
    import torch

    from worldmodel.models.world import WorldModel

    check_threads(threads)
    torch.set_num_threads(threads)
    return WorldModel.find(folder, device)
