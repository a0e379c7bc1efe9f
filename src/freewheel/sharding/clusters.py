"""Hidden strata: clusters within each class, their number chosen by silhouette."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from freewheel.errors import ConfigError, nearest

Method = Literal["kmeans", "mixture"]
METHODS = ("kmeans", "mixture")


class ClassClusters:
    """Clusters within each stratum of labels, found on some rows, then looked up for any.

    With ``clusters="auto"`` each stratum gets the number from 2 to ``max_clusters`` with the
    highest mean silhouette on at most ``silhouette_rows`` of its rows. A stratum with fewer than
    4 rows, or whose rows are all the same, is left whole.

    Args:
        clusters: how many in each stratum, or ``"auto"``.
        max_clusters: the most that ``"auto"`` tries.
        method: ``"kmeans"``, or ``"mixture"`` of Gaussians with diagonal covariances.
        silhouette_rows: rows of a stratum that the choice looks at.
        max_iter: iterations of k-means.
        seed: of the starting points.

    Raises:
        ConfigError: a setting is out of range.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.clusters import ClassClusters
        >>> from freewheel.sharding.strata import make_strata
        >>> scores = np.array([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]])
        >>> strata = make_strata(None, 6)
        >>> found = ClassClusters(clusters=2).fit(scores, strata.codes, strata.count)
        >>> codes = found(scores, strata.codes)
        >>> bool(codes[0] == codes[1] == codes[2] != codes[3]), found.count
        (True, 2)

    References:
        Sohoni, Dunnmon, Angus, Gu, Ré, "No subclass left behind" (2020): clusters within a class,
        their number by silhouette, as hidden strata.
    """

    def __init__(
        self,
        clusters: int | str = "auto",
        max_clusters: int = 8,
        method: Method = "kmeans",
        silhouette_rows: int = 1000,
        max_iter: int = 100,
        seed: int = 0,
    ) -> None:
        whole = isinstance(clusters, int) and not isinstance(clusters, bool) and clusters >= 1
        if clusters != "auto" and not whole:
            raise ConfigError(f'clusters must be an integer >= 1 or "auto", got {clusters!r}')
        if not isinstance(max_clusters, int) or max_clusters < 2:
            raise ConfigError(f"max_clusters must be an integer >= 2, got {max_clusters!r}")
        if method not in METHODS:
            raise ConfigError(f"unknown method {method!r}{nearest(str(method), METHODS)}")
        self._clusters, self._max, self._method = clusters, max_clusters, method
        self._silhouette_rows, self._max_iter, self._seed = silhouette_rows, max_iter, seed
        self._models: list[Any] = []
        self._first: list[int] = []
        self.count = 0

    def fit(
        self, scores: NDArray[np.float64], codes: NDArray[np.int32], num_strata: int
    ) -> ClassClusters:
        """Find the clusters of each stratum.

        Args:
            scores: shape (R, K).
            codes: stratum of each row, shape (R,).
            num_strata: number of strata.
        """
        self._models, self._first, self.count = [], [], 0
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=num_strata))
        for rows in np.split(scores[order], ends[:-1]):
            model = self._fit_stratum(rows)
            self._models.append(model)
            self._first.append(self.count)
            self.count += 1 if model is None else _num_clusters(model)
        return self

    def __call__(self, scores: NDArray[np.float64], codes: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the cluster of each row, numbered through all strata, shape (B,)."""
        found = np.empty(len(codes), dtype=np.int32)
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(self._models)))
        for stratum, rows in enumerate(np.split(order, ends[:-1])):
            model = self._models[stratum]
            found[rows] = self._first[stratum]
            if model is not None and len(rows):
                found[rows] += model.predict(scores[rows])
        return found

    def _fit_stratum(self, rows: NDArray[np.float64]) -> Any:
        if len(rows) < 4 or self._clusters == 1:
            return None
        looked_at = 1000 if self._clusters == "auto" else max(1000, 2 * int(self._clusters))
        most = len(np.unique(rows[:looked_at], axis=0))
        if most < 2:
            return None
        if isinstance(self._clusters, int):
            return self._model(min(self._clusters, most), rows)
        part = rows[
            np.random.default_rng(self._seed).permutation(len(rows))[: self._silhouette_rows]
        ]
        return self._model(self._best_count(part), rows)

    def _best_count(self, part: NDArray[np.float64]) -> int:
        from sklearn.metrics import silhouette_score

        best, best_score = 2, -np.inf
        most = min(self._max, len(part) - 1, len(np.unique(part, axis=0)))
        for count in range(2, most + 1):
            labels = self._model(count, part).predict(part)
            if len(np.unique(labels)) < 2:
                continue
            score = silhouette_score(part, labels)
            if score > best_score + 1e-9:  # a tie broken by rounding would differ by machine
                best, best_score = count, score
        return best

    def _model(self, count: int, rows: NDArray[np.float64]) -> Any:
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.mixture import GaussianMixture

        with warnings.catch_warnings():
            # fewer clusters than asked, or slow convergence: any partition is a valid answer here
            warnings.simplefilter("ignore", ConvergenceWarning)
            if self._method == "mixture":
                mixture = GaussianMixture(
                    count,
                    covariance_type="diag",
                    reg_covar=1e-3 * float(rows.var() + 1e-12),
                    random_state=self._seed,
                )
                return mixture.fit(rows)
            return KMeans(count, n_init=1, max_iter=self._max_iter, random_state=self._seed).fit(
                rows
            )


def _num_clusters(model: Any) -> int:
    return int(getattr(model, "n_clusters", 0) or model.n_components)
