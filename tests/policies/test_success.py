"""Statistics of success against scipy, closed forms and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from worldmodel.policies.success import Paired, decided, evidence, holm, mcnemar, wilson

counts = st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts, st.sampled_from([0.9, 0.95, 0.99]))
def test_wilson_is_scipys(count, level):
    k, n = count
    theirs = stats.binomtest(k, n).proportion_ci(level, method="wilson")
    np.testing.assert_allclose(wilson(k, n, level), (theirs.low, theirs.high), atol=1e-12)


def test_wilson_of_nothing_is_an_error():
    for k, n in ((0, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="no interval"):
            wilson(k, n)


@given(st.integers(0, 80), st.integers(0, 80))
def test_mcnemar_is_scipys_binomial_test(a, b):
    theirs = stats.binomtest(a, a + b).pvalue if a + b else 1.0
    assert mcnemar(a, b) == pytest.approx(theirs, rel=1e-10)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_rejects_what_its_procedure_rejects(p_values):
    adjusted, alpha = holm(p_values), 0.05
    rejected = [False] * len(p_values)
    for rank, i in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[i] > alpha / (len(p_values) - rank):
            break
        rejected[i] = True
    for p, mine, theirs in zip(p_values, adjusted, rejected, strict=True):
        if abs(mine - alpha) > 1e-12:  # at the level itself, rounding decides
            assert (mine <= alpha) == theirs
        assert mine >= p


def test_holm_of_known_values():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])


@given(st.integers(0, 60), st.integers(0, 60))
def test_evidence_is_the_integral_of_the_likelihood_ratio(a, b):
    """2^n times the integral of p^a (1 - p)^b over [0, 1], which is the beta function."""
    from scipy.special import betaln

    assert evidence(a, b) == pytest.approx(math.exp((a + b) * math.log(2) + betaln(a + 1, b + 1)), rel=1e-9)


@given(st.integers(0, 30), st.integers(0, 30))
def test_evidence_is_fair_under_equality(a, b):
    """A martingale: the mean over who wins the next discordant pair is what it is now."""
    assert (evidence(a + 1, b) + evidence(a, b + 1)) / 2 == pytest.approx(evidence(a, b), rel=1e-9)


def test_stopping_early_errs_no_more_often_than_promised():
    rng = np.random.default_rng(0)
    alpha, wrong, found = 0.05, 0, []
    for _ in range(600):
        equal = rng.random((2, 200)) < 0.5
        wrong += decided(*equal.tolist(), alpha) is not None
        better = rng.random((2, 200)) < np.array([[0.9], [0.4]])
        found.append(decided(*better.tolist(), alpha))
    assert wrong / 600 <= alpha
    assert None not in found and np.median(found) < 60


def test_pairs_are_counted_case_by_case():
    pairs = Paired.of([True, True, False, False, True], [True, False, True, False, False])
    assert pairs == Paired(1, 2, 1, 1)
    assert pairs.pairs == 5 and pairs.difference == pytest.approx(0.2) and pairs.p_value == 1.0
    with pytest.raises(ValueError, match="zip"):
        Paired.of([True], [])
