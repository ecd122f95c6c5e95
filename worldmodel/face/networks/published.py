"""A network's weights out of the package, into a module, each checked by its sha256 and its name."""

from torch import Tensor, nn

from worldmodel.errors import UserError
from worldmodel.face.packages import NETWORKS, read
from worldmodel.face.tfjs import as_torch, read_weights

FILES = {  # name: (sha256 of the manifest, of the weights)
    "tiny_face_detector": (
        "5d1af4849ac48d5b985f4a9b16010c512353ddd6fcc63d50fd0bc9e9e64296e5",
        "b7503ce7df31039b1c43316a9b865cab6a70dd748cc602d3fa28b551503c3871",
    ),
    "face_landmark_68": (
        "ca4886639f86e99b39fed0c155f81b63317225773bd9616716e887b0153389c9",
        "4611ef65c87d836d03d684b30eec4d195d8b219fa1dd58fc58945831c6b9299b",
    ),
    "face_recognition": (
        "cbaffa501b0b9275a12b63357a6843e7e30c054e1c9151e1a5f879b26e32986b",
        "b413e420d6840b2775fba32008db6f3cddb07d485967fb42cfcf379c16a8c589",
    ),
    "face_expression": (
        "5b349c17c7836da506e03422cd6461c74085d8bb2713ad4114647dc5d28174c8",
        "9a9840f2cf1f4c7eab95f197512569345c00d2426754d4608b92af30e0300f3d",
    ),
}


def load[M: nn.Module](module: M, name: str) -> M:
    """Fill a module whose parameters are named as the weights (with dots for slashes); frozen, in evaluation mode.

    A UserError if the package is not here or a file has changed.
    """
    manifest, weights = (
        read(NETWORKS, f"package/model/{name}_model{end}", sha)
        for end, sha in zip(("-weights_manifest.json", ".bin"), FILES[name], strict=True)
    )
    stored = {key: as_torch(value, key) for key, value in read_weights(manifest, weights, name).items()}
    return fill(module, stored, name)


def fill[M: nn.Module](module: M, stored: dict[str, Tensor], where: str) -> M:
    """Put weights into a module by name; one that is missing, left over or of another shape is a UserError."""
    found = {key.replace("/", "."): value for key, value in stored.items()}
    wanted = module.state_dict()
    wrong = sorted(
        set(found) ^ set(wanted) | {k for k in found.keys() & wanted.keys() if found[k].shape != wanted[k].shape}
    )
    if wrong:
        raise UserError(f"{where}: weight '{wrong[0]}' does not fit the network")
    module.load_state_dict(found)
    return module.eval().requires_grad_(False)
