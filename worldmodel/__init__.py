"""Video and embodied world models on one rollout engine."""

from pathlib import Path

__version__ = "0.1.0"

# A checkout keeps policies/, datasets/ and kernels/ beside this folder; a wheel has them inside it. Either way they
# are imported as worldmodel.policies, worldmodel.datasets and worldmodel.kernels, so that Hugging Face's packages
# `datasets` and `kernels` stay importable.
_root = Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").is_file():
    __path__.append(str(_root))
