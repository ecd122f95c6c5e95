"""Newton-Schulz with the quintic of Muon (Jordan et al., 2024, "Muon: an optimizer for hidden layers")."""

from torch import Tensor

QUINTIC = (3.4445, -4.7750, 2.0315)


def newton_schulz(x: Tensor, steps: int) -> Tensor:
    """Divide x by its Frobenius norm and apply s -> a s + b s^3 + c s^5 to its singular values, `steps` times.

    x: [..., m, n], in whose type it computes. Five steps bring values that are not tiny to about [0.7, 1.2]: they do
    not converge, by design. A matrix of zeros stays one.
    """
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = QUINTIC
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
