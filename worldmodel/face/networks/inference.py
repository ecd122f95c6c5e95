"""A network on pictures, as fast as it goes: on a CPU through ONNX Runtime, in a third of torch's time for small
separable convolutions, elsewhere as it is."""

import io
import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from worldmodel.errors import UserError

Seeing = Callable[[NDArray[np.uint8]], NDArray[np.float32]]


class Pictures(nn.Module):
    """A network of RGB [N, 3, S, S] in 0..255, asked with pictures uint8 [N, S, S, 3]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pictures: Tensor) -> Tensor:
        return self.network(pictures.permute(0, 3, 1, 2).float())


def seeing(network: nn.Module, size: int, device: str) -> Seeing:
    """What a frozen network makes of pictures [N, S, S, 3] of side `size`, any N; equal to it within rounding.

    A UserError without the packages of worldmodel[face].
    """
    asked = Pictures(network)
    if torch.device(device).type == "cpu":
        return _session(asked, size)

    @torch.no_grad()
    def see(pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
        return asked(torch.from_numpy(pictures).to(device)).cpu().numpy()

    return see


def _session(asked: Pictures, size: int) -> Seeing:
    try:
        import onnx  # noqa: F401  torch writes with it
        import onnxruntime
    except ImportError as error:
        raise UserError(f"faces need onnx and onnxruntime: pip install 'worldmodel[face]' ({error})") from error
    written, example = io.BytesIO(), torch.zeros(1, size, size, 3, dtype=torch.uint8)
    names: dict[str, Any] = {
        "input_names": ["x"],
        "output_names": ["y"],
        "dynamic_axes": {"x": {0: "n"}, "y": {0: "n"}},
    }
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", DeprecationWarning)  # the newer exporter needs a package more
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # sizes become constants, as they are
        warnings.filterwarnings("ignore", "Constant folding", UserWarning)
        torch.onnx.export(asked, (example,), cast(Any, written), dynamo=False, opset_version=17, **names)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session: Any = onnxruntime.InferenceSession(written.getvalue(), options, ["CPUExecutionProvider"])
    return lambda pictures: session.run(None, {"x": pictures})[0]
