"""The plain metric is the library's full distance."""

import pytest
import torch

from worldmodel.errors import Diverged
from worldmodel.evaluate.frechet import frechet_distance, reference_of


def test_plain_metric():
    """Two shifted grids of known mean and variance: 9 between the means, (2 - 1)^2 between the deviations."""
    a = torch.tensor([[-1.0, 0], [1, 0], [-1, 0], [1, 0]])
    b = 2 * a + torch.tensor([3.0, 0])
    spread = float((2 - 1) ** 2 * a[:, 0].double().var())
    assert frechet_distance(a, b) == pytest.approx(9 + spread, rel=1e-8)
    assert float(reference_of(b)(a)) == frechet_distance(a, b)
    assert frechet_distance(b, b) == pytest.approx(0, abs=1e-6)


def test_values_that_are_not_finite():
    good, bad = torch.ones(3, 2), torch.full((3, 2), float("nan"))
    for pair in ((good, bad), (bad, good)):
        with pytest.raises(Diverged, match="not finite"):
            frechet_distance(*pair)
