"""What unmeasured combinations should take, from those that were measured.

A combination x picks one strategy per block. With u(x) its time over the best time, the model is

    g(u(x)) = mean + Σ_j a_j(x_j) + Σ_(i,j)∈pairs b_ij(x_i, x_j) + rest(x) + noise [+ g(v(x))]

with g either u - 1 (times add up) or log u (costs are ratios). v(x) is what the counts of x, such
as the bytes it sends, let expect at rates that fit the measurements (`fit_rates`). Effects are
Gaussian a priori, so this is Bayesian linear regression on one-hot features; it is computed in its
dual form, where two combinations covary by the effects they share (`covariances`): there are few
measurements and possibly many features. `rest` is every other set of blocks, weighted equally. The
scales of the effects, what of them all axes of a mesh have in common (`effects`), g itself and
whether counts say anything come from a grid, weighted by marginal likelihood (`fit`); the
predictions of the best few models are mixed (`Surrogate`).

"At least" values are replaced by their expectation given the rest and the bound (`_imputed`). What
failed, or takes over `FAR` times the best, is not fitted: how bad the bad ones are must not bend
the model where it matters. `feasibility` learns from the same effects which combinations these are.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from cfp.profile.explore.combos import Array, Points
from cfp.profile.explore.effects import Effects, covariances, own_variances

Flags = NDArray[np.bool_]

FAR = 2.5  # times the best: at 5 the model is bent by what is hopeless, and a quarter more is lost
# Standard deviations of effects and of noise, in units of the best time, as a grid from which the
# likelihood chooses. Half or twice as wide changes what is lost (`explorer`) by 0.2 % at the most.
UNARY_SD = (0.1, 0.25, 0.6)
PAIR_SD = (0.04, 0.12, 0.35)
REST_SD = (0.01, 0.04, 0.12)
NOISE_SD = (0.01, 0.03)
HELD = 0.5  # measurements: how strongly rates are held to equal shares of the time
COMMON = (0.0, 0.3)  # of the variance of an effect, the share that all axes have in common
MEAN_SD = 1.0  # of the mean, in units of the best time: wide, so that measurements decide it
KEPT_MODELS = 4  # whose predictions are mixed: 1 or 8 change what is lost by 0.1 % at the most
CHUNK = 4096  # combinations predicted at once: with 100 measurements 3 MB for each model


def normal_pdf(z: Array) -> Array:
    return np.asarray(np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi))


def _grid(axes: int) -> tuple[Array, Array]:
    """Returns the models to choose from: variances (models, 5) of the effects, and noise
    variances."""
    grid = np.array(list(itertools.product(UNARY_SD, PAIR_SD, REST_SD, NOISE_SD))) ** 2
    shares = COMMON if axes > 1 else (0.0,)
    variances = [_shared(grid[:, :3], share) for share in shares]
    return np.concatenate(variances), np.tile(grid[:, 3], len(shares))


def _shared(variances: Array, share: float) -> Array:
    """Returns variances of shape (models, 5) from those of unary, paired and remaining effects."""
    unary, paired = variances[:, 0], variances[:, 1]
    own = [(1 - share) * unary, (1 - share) * paired, variances[:, 2]]
    return np.stack([*own, share * unary, share * paired], axis=-1)


def _gram(parts: Array, variances: Array, noise: Array) -> Array:
    """Returns the covariance of the observations, of shape (models, n, n); `noise` is (models,
    n)."""
    gram: Array = np.einsum("cp,pnm->cnm", variances, parts) + MEAN_SD**2
    diagonal = np.arange(parts.shape[-1])
    gram[:, diagonal, diagonal] += noise
    return gram


def _imputed(y: Array, bounded: Flags, gram: Array) -> Array:
    """Returns `y` with each bound replaced by E[value | the others, value >= bound], to a fixed
    point."""
    inverse = np.linalg.inv(gram)
    floor, y = y, y.copy()
    sd = 1 / np.sqrt(np.diagonal(inverse))
    for _ in range(5):
        centre = y.mean()
        left_out = y - (inverse @ (y - centre)) * sd**2
        z = (floor - left_out) / sd
        tail = np.maximum(ndtr(-z), 1e-9)
        expected = np.where(z > 4, floor, left_out + sd * normal_pdf(z) / tail)
        y = np.where(bounded, np.clip(expected, floor, floor + 2.0), y)
    return y


@dataclass(frozen=True, slots=True)
class Surrogate:
    """A mixture of a few fitted models; arrays lead with the model."""

    effects: Effects
    best_s: float  # the time that u = 1 stands for
    rates: Array  # found by `fit_rates`
    points: Points
    y: Array  # (models, points): g(u), less what is expected of the counts
    weights: Array
    logarithmic: Flags
    trusting: Flags  # the counts
    variances: Array  # (models, 5)
    noise: Array
    factor: Array = field(init=False)  # (models, points, points): inverse of the Cholesky factor
    alpha: Array = field(init=False)  # (models, points): covariance^-1 (y - mean)

    def __post_init__(self) -> None:
        u = 1 + self.y + self._expected(self.points)
        spread = np.where(self.logarithmic[:, None], 1.0, np.maximum(u, 0.1))
        parts = covariances(self.points, self.points, self.effects)
        gram = _gram(parts, self.variances, self.noise[:, None] * spread**2)
        factor = np.linalg.inv(np.linalg.cholesky(gram))
        white = factor @ (self.y - self.y.mean(1, keepdims=True))[..., None]
        object.__setattr__(self, "factor", factor)
        object.__setattr__(self, "alpha", (factor.transpose(0, 2, 1) @ white)[..., 0])

    def moments(self, points: Points) -> tuple[Array, Array]:
        """Returns the mean and standard deviation of g(u), each of shape (models, points)."""
        means, sds = [self.y[:, :0]], [self.y[:, :0]]
        for start in range(0, len(points.rows), CHUNK):
            part = points.take(slice(start, start + CHUNK))
            parts = covariances(self.points, part, self.effects)
            cross = np.einsum("cp,pnm->cnm", self.variances, parts) + MEAN_SD**2
            about = self.y.mean(1, keepdims=True) + self._expected(part)
            means.append(about + np.einsum("cn,cnm->cm", self.alpha, cross))
            explained = ((self.factor @ cross) ** 2).sum(1)
            total = self.variances @ own_variances(part, self.effects) + MEAN_SD**2
            sds.append(np.sqrt(np.maximum(total - explained, 1e-8)))
        return np.concatenate(means, 1), np.concatenate(sds, 1)

    def _expected(self, points: Points) -> Array:
        """Returns g(v), of shape (models, points); it is zero where counts are not trusted."""
        return expected(points, self.rates, self.best_s, self.logarithmic, self.trusting)

    def relative(self, mean: Array, sd: Array) -> tuple[Array, Array]:
        """Returns the mean and standard deviation of u, the time over the best time, from the
        `moments`."""
        log = self.logarithmic[:, None]
        u = np.where(log, np.exp(np.minimum(mean, 5)), np.maximum(1 + mean, 0.05))
        spread = np.where(log, u * sd, sd)
        weights = self.weights[:, None]
        centre = (weights * u).sum(0)
        variance = (weights * (spread**2 + (u - centre) ** 2)).sum(0)
        return centre, np.sqrt(variance)

    def gain(self, mean: Array, sd: Array, target: Array) -> Array:
        """Returns E[max(0, target - u)] from the `moments`, for a target u of each point."""
        log = self.logarithmic[:, None]
        z = (np.where(log, np.log(target), target - 1) - mean) / sd
        gain = np.maximum(sd * (z * ndtr(z) + normal_pdf(z)), 0) * np.where(log, target, 1.0)
        return np.asarray((self.weights[:, None] * gain).sum(0))

    def believing(self, points: Points) -> Surrogate:
        """Returns the model as if `points` had been measured and took what is predicted, which a
        batch goes by."""
        mean, _ = self.moments(points)
        y = np.concatenate([self.y, mean - self._expected(points)], 1)
        return replace(self, points=self.points.plus(points), y=y)


def fit_rates(counts: Array, times_s: Array) -> Array:
    """Returns what one of each count takes, and at the end what every combination takes besides:
    none below zero, by least squares of relative errors, those of fast combinations counting more:
    what makes one hopelessly slow is often something that is not counted. Where times do not tell,
    counts have equal shares."""
    from scipy.optimize import nnls  # slow to import, and no worker needs it

    if not counts.shape[1]:
        return np.zeros(1)
    columns = np.hstack([counts, np.ones((len(counts), 1))])
    typical = np.where(columns.any(0), columns.mean(0), 1.0)
    held = HELD * np.eye(len(typical))
    weights = 1 / times_s / np.mean(1 / times_s)
    usual_s = np.average(times_s, weights=weights)
    shares, _ = nnls(
        np.vstack([columns / typical * (weights / times_s)[:, None], held / usual_s]),
        np.concatenate([weights, held.mean(0)]),
    )
    return np.asarray(shares / typical)


def at_rates(points: Points, rates: Array) -> Array:
    """Returns the seconds that the counts let us expect."""
    return np.asarray(points.counts @ rates[:-1] + rates[-1])


def expected(
    points: Points, rates: Array, best_s: float, logarithmic: Flags, trusting: Flags
) -> Array:
    """Returns g(v) of the points, of shape (models, points); it is zero where counts are not
    trusted."""
    v = np.maximum(at_rates(points, rates) / best_s, 0.05)
    return np.where(trusting[:, None], np.where(logarithmic[:, None], np.log(v), v - 1), 0.0)


def fit(
    points: Points, times_s: Array, bounded: Flags, effects: Effects, rates: Array
) -> Surrogate:
    """Weighs every model of the grid by its marginal likelihood and keeps the best few."""
    exact = times_s[~bounded]
    best_s = float(exact.min() if len(exact) else times_s.min())
    u = times_s / best_s
    parts = covariances(points, points, effects)
    variances, noise = _grid(effects.axes)
    middle = _shared(np.array([[UNARY_SD[1], PAIR_SD[1], REST_SD[1]]]) ** 2, 0.5)
    ys: list[Array] = []
    scores: list[Array] = []
    trusts = (False, True) if points.counts.shape[1] else (False,)
    models = np.array(list(itertools.product((False, True), trusts)))
    logarithmic, trusting = models[:, 0], models[:, 1]
    shift = expected(points, rates, best_s, logarithmic, trusting)
    for log, less in zip(logarithmic, shift, strict=True):
        y = (np.log(u) if log else u - 1) - less
        spread = np.ones_like(y) if log else u
        if bounded.any():
            y = _imputed(y, bounded, _gram(parts, middle, NOISE_SD[-1] ** 2 * spread[None] ** 2)[0])
        factor = np.linalg.cholesky(_gram(parts, variances, noise[:, None] * spread**2))
        white = np.linalg.solve(factor, (y - y.mean())[:, None])[..., 0]
        score = -0.5 * (white**2).sum(1)
        score -= np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(1)
        scores.append(score if log else score + np.log(u[~bounded]).sum())
        ys.append(y)
    score = np.concatenate(scores)
    kept = np.argsort(-score, kind="stable")[:KEPT_MODELS]
    weights = np.exp(score[kept] - score[kept[0]])
    which, model = np.divmod(kept, len(noise))
    return Surrogate(
        effects=effects,
        best_s=best_s,
        points=points,
        y=np.stack(ys)[which],
        weights=weights / weights.sum(),
        logarithmic=logarithmic[which],
        trusting=trusting[which],
        rates=rates,
        variances=variances[model],
        noise=noise[model],
    )


def feasibility(points: Points, feasible: Flags, asked: Points, effects: Effects) -> Array:
    """Returns the share of the combinations like each of `asked` that ran at all, in (0, 1]."""
    if feasible.all():
        return np.ones(len(asked.rows))
    scale = _shared(np.array([[0.09, 0.09, 0.04]]), 0.5)[0]
    cross = np.tensordot(scale, covariances(asked, points, effects), 1)
    gram = np.tensordot(scale, covariances(points, points, effects), 1)
    gram += 0.02 * np.eye(len(gram))
    chance = 0.8 + cross @ np.linalg.solve(gram, feasible - 0.8)
    return np.clip(chance, 0.02, 1.0)
