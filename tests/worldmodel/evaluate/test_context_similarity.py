"""Scores of views: 1 for the tokenizer's own picture, 0 on average for other views; retrieval."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from worldmodel.evaluate.context.similarity import Features, Psnr, scale_of, told_apart
from worldmodel.evaluate.metrics import psnr, to_unit

RNG = np.random.default_rng(0)
REAL = RNG.integers(0, 256, (7, 3, 8, 8, 3)).astype(np.uint8)
NEAR = np.clip(REAL.astype(int) + RNG.integers(-9, 10, REAL.shape), 0, 255).astype(np.uint8)
OTHERS = ~np.eye(7, dtype=bool)


def colours() -> Features:
    """Features that are a random projection of the pixels."""
    weights = torch.from_numpy(RNG.standard_normal((192, 20)))
    encoder = SimpleNamespace(name="colours", size=None, features=lambda x: (x.flatten(1).double() @ weights).float())
    return Features(encoder, REAL)


@pytest.fixture(params=["psnr", "features"])
def measure(request):
    return Psnr() if request.param == "psnr" else colours()


def test_psnr_of_pairs_is_that_of_the_metric():
    measure = Psnr()
    table = measure.between(measure.codes(REAL), measure.codes(NEAR)).numpy()
    first, second = (to_unit(torch.from_numpy(views)) for views in (REAL, NEAR))
    want = [[float(psnr(a, b).mean()) for b in second] for a in first]
    np.testing.assert_allclose(table, want, rtol=1e-9)
    assert measure.between(measure.codes(REAL), measure.codes(REAL)).diagonal().tolist() == [100] * 7


def test_likeness_of_features_is_a_cosine_from_their_mean():
    measure = colours()
    codes = measure.codes(REAL)
    table = measure.between(codes, codes)
    np.testing.assert_allclose(table.diagonal(), 1, rtol=1e-6)
    raw = measure._raw(REAL)
    raw = raw - raw.flatten(0, 1).mean(0)
    want = torch.nn.functional.cosine_similarity(raw[0], raw[4], dim=-1).mean()
    assert float(table[0, 4]) == pytest.approx(float(want), rel=1e-6)


def test_the_tokenizers_own_picture_has_score_1(measure):
    scale = scale_of(measure, REAL, NEAR, OTHERS, 3, 0)
    score, right = scale.judge(NEAR)
    np.testing.assert_allclose(score, 1, rtol=1e-9)
    assert right.tolist() == [1] * 7
    assert scale.chance == 0.25
    assert told_apart([scale]).all()


def test_views_of_other_visits_have_score_0_on_average(measure):
    """Over all ways to give every visit the view of another one."""
    scale = scale_of(measure, REAL, NEAR, OTHERS, 6, 0)
    given = [scale.judge(np.roll(REAL, shift, 0)) for shift in range(1, 7)]
    np.testing.assert_allclose(np.mean([score for score, _ in given], 0), 0, atol=1e-9)
    assert np.mean([right for _, right in given]) == 0


def test_half_way_is_between(measure):
    scale = scale_of(measure, REAL, NEAR, OTHERS, 6, 0)
    blend = (0.5 * REAL + 0.5 * np.roll(REAL, 1, 0)).astype(np.uint8)
    score, right = scale.judge(blend)
    assert (score > 0).all()
    assert (score < 0.9).all()
    assert right.mean() > 0.2


def test_only_other_places_count(measure):
    """Two visits of one place are no rivals, and not any room to each other."""
    views, made = np.concatenate((REAL, REAL[:1])), np.concatenate((NEAR, NEAR[:1]))
    others = ~np.eye(8, dtype=bool)
    others[0, 7] = others[7, 0] = False
    scale = scale_of(measure, views, made, others, 20, 0)
    assert scale.rivals.shape == (8, 6)
    assert set(scale.rivals[0]) == set(range(1, 7))
    np.testing.assert_allclose(scale.any_room[0], scale.any_room[7], rtol=1e-12)
    table = measure.between(measure.codes(views), measure.codes(views)).numpy()
    assert scale.any_room[0] == pytest.approx(table[0, 1:7].mean(), rel=1e-12)
    assert scale.any_room[1] == pytest.approx(np.delete(table[1], 1).mean(), rel=1e-12)


def test_what_the_tokenizer_cannot_draw_is_left_out(measure):
    bad, codes = NEAR.copy(), measure.codes(REAL)
    bad[3] = REAL[int(measure.between(codes, codes)[3].argmin())]
    assert told_apart([scale_of(measure, REAL, bad, OTHERS, 6, 0)]).tolist() == [True] * 3 + [False] + [True] * 3
