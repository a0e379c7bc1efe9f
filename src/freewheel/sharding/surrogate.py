"""A small network trained for a moment, whose gradients stand in for those of the user's model."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from freewheel.sharding.strata import Strata

Matrix = NDArray[np.float64]


#: Outputs above this number are projected to it by random signs before they are balanced.
MAX_OUTPUTS = 32


class Surrogate:
    """One hidden layer on the scores, looked at after a few epochs: errors, activations, gradients.

    For a sample with scores x, activations h and output error e = prediction - target, the gradient
    of the loss is (d x^T, e h^T) with d = (V e) * (h > 0), V the output weights. Its two outer
    products are sketched to ``sketch`` values each by random signs:

        (S d) * (T x) / sqrt(sketch),   S, T with entries +-1,

    whose inner products are those of d x^T on average.

    Args:
        epochs: after which epochs to look; ascending.
        hidden: units of the hidden layer.
        sketch: values of each sketched outer product.
        seed: of the initial weights, the order of samples and the signs.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.strata import make_strata
        >>> from freewheel.sharding.surrogate import Surrogate
        >>> scores, strata = np.eye(4), make_strata(np.array([0, 0, 1, 2]), 4)
        >>> net = Surrogate(epochs=(1,), hidden=8, sketch=16).fit(scores, strata, np.arange(4))
        >>> own, shared = net(scores[:2], strata, slice(0, 2))
        >>> [part.shape for part in own], [part.shape for part in shared]
        ([(2, 3), (2, 8)], [(2, 16), (2, 16)])

    References:
        Katharopoulos, Fleuret, "Not all samples are created equal" (2018): the last layer's error
        tells most of a sample's gradient; Pham, Pagh, "Fast and scalable polynomial kernels via
        explicit feature maps" (2013): sketches of outer products.
    """

    def __init__(
        self,
        epochs: tuple[int, ...] = (2, 6, 15),
        hidden: int = 64,
        sketch: int = 128,
        seed: int = 0,
    ) -> None:
        self._epochs, self._hidden, self._sketch, self._seed = epochs, hidden, sketch, seed
        self._snapshots: list[tuple[Matrix, ...]] = []

    def fit(self, scores: Matrix, strata: Strata, chosen: NDArray[np.int64]) -> Surrogate:
        """Train on some samples.

        Args:
            scores: of the chosen samples, shape (R, K).
            strata: of all samples.
            chosen: which samples the scores belong to, shape (R,).
        """
        from sklearn.neural_network import MLPClassifier, MLPRegressor

        self._spread = float(np.sqrt(scores.var(axis=0).sum())) or 1.0
        self._kind = strata.kind
        self._shift, self._scale = 0.0, 1.0
        if strata.kind == "regression" and strata.targets is not None:
            self._shift = float(strata.targets.mean())
            self._scale = float(strata.targets.std()) or 1.0
        regression = strata.kind == "regression"
        network = (MLPRegressor if regression else MLPClassifier)(
            hidden_layer_sizes=(self._hidden,),
            batch_size=min(len(chosen), max(32, min(256, len(chosen) // 80))),
            learning_rate_init=2e-3,
            random_state=self._seed,
        )
        targets: NDArray[Any] = self._targets(strata, chosen)
        known: dict[str, Any] = {}
        if strata.kind == "classes":
            targets, known = strata.codes[chosen], {"classes": np.arange(strata.count)}
        elif strata.kind == "multilabel":
            known = {"classes": np.arange(targets.shape[1])}
        inputs = self._inputs(scores)
        for epoch in range(1, max(self._epochs) + 1):
            network.partial_fit(inputs, targets.ravel() if regression else targets, **known)
            if epoch in self._epochs:
                (first, second), (bias, out_bias) = network.coefs_, network.intercepts_
                self._snapshots.append((first.copy(), bias.copy(), second.copy(), out_bias.copy()))
        return self

    def __call__(self, scores: Matrix, strata: Strata, rows: Any) -> tuple[list[Matrix], ...]:
        """Return what to balance within each stratum, and what over all.

        Args:
            scores: shape (B, K).
            strata: of all samples.
            rows: which samples the scores belong to: indices or a slice.

        Returns:
            For each snapshot the errors and the activations; for each snapshot the two sketched
            gradients.
        """
        rng = np.random.default_rng(self._seed)
        inputs = self._inputs(scores)
        own, shared = [], []
        for first, bias, second, out_bias in self._snapshots:
            hidden = np.maximum(inputs @ first + bias, 0.0)
            error = self._error(hidden @ second + out_bias, strata, rows)
            back = (error @ second.T) * (hidden > 0)
            shared += [
                sketch_outer(back, _with_ones(inputs), self._sketch, rng),
                sketch_outer(error, _with_ones(hidden), self._sketch, rng),
            ]
            if error.shape[1] > MAX_OUTPUTS:
                error = error @ _signs(rng, error.shape[1], MAX_OUTPUTS)
            own += [error, hidden]
        return own, shared

    def _inputs(self, scores: Matrix) -> Matrix:
        # the scale of images in [0, 1] with a few hundred pixels, which Adam's default step suits
        inputs: Matrix = scores * (8.0 / self._spread)
        return inputs

    def _targets(self, strata: Strata, rows: Any) -> Matrix:
        targets: Matrix
        if strata.targets is not None:
            targets = (strata.targets[rows] - self._shift) / self._scale
        elif strata.count == 2:  # scikit-learn has a single output for two classes
            targets = strata.codes[rows][:, None].astype(np.float64)
        else:
            targets = np.eye(strata.count)[strata.codes[rows]]
        return targets

    def _error(self, outputs: Matrix, strata: Strata, rows: Any) -> Matrix:
        predictions = outputs
        if self._kind == "multilabel" or (self._kind == "classes" and strata.count == 2):
            predictions = 0.5 * (1.0 + np.tanh(0.5 * outputs))
        elif self._kind == "classes":
            powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
            predictions = powers / powers.sum(axis=1, keepdims=True)
        error: Matrix = predictions - self._targets(strata, rows)
        return error


def sketch_outer(left: Matrix, right: Matrix, size: int, rng: np.random.Generator) -> Matrix:
    """Return a sketch (B, size) of the outer products of the rows of two matrices.

    The inner product of two sketches is, on average over the signs, the product of the rows' inner
    products.

    Args:
        left: shape (B, P).
        right: shape (B, Q).
        size: values in a sketch.
        rng: source of the signs.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.surrogate import sketch_outer
        >>> row = sketch_outer(np.eye(1), np.eye(1), 4, np.random.default_rng(0))
        >>> float((row * row).sum())
        1.0
    """
    first, second = _signs(rng, left.shape[1], size), _signs(rng, right.shape[1], size)
    product: Matrix = (left @ first) * (right @ second)
    product *= np.sqrt(left.shape[1] * right.shape[1] / size)
    return product


def _signs(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    signs: Matrix = rng.choice(np.array([-1.0, 1.0]), size=(rows, columns)) / np.sqrt(rows)
    return signs


def _with_ones(rows: Matrix) -> Matrix:
    return np.hstack([rows, np.ones((len(rows), 1))])
