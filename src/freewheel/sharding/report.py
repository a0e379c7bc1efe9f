"""What came of sharding: label counts, discrepancy and gradients, as JSON and as a picture."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freewheel.sharding.metrics import (
    Dispersion,
    feature_discrepancy,
    label_counts,
    label_total_variation,
)
from freewheel.sharding.samples import Indices, Samples
from freewheel.sharding.strata import Kind

MAX_SHOWN = 20


def make_report(
    samples: Samples,
    shards: Sequence[Indices],
    *,
    kind: Kind = "auto",
    bins: int = 10,
    standardise: bool = False,
    gradients: tuple[Dispersion, Dispersion] | None = None,
    **about: Any,
) -> dict[str, Any]:
    """Measure shards; one pass over the features.

    Args:
        samples: what was divided.
        shards: for each worker the indices of its samples.
        kind: how to read the labels.
        bins: quantile bins of regression labels.
        standardise: measure every feature in its own standard deviation.
        gradients: dispersion of these shards and of random ones of the same sizes.
        about: strategy, settings, seed and the like, put first.

    Returns:
        A dictionary of plain values; ``times_lower`` compares with random shards.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.report import make_report
        >>> from freewheel.sharding.samples import collect
        >>> samples = collect([[0.0], [1.0], [0.0], [1.0]], [0, 1, 0, 1])
        >>> report = make_report(samples, [np.arange(2), np.arange(2, 4)], strategy="contiguous")
        >>> report["labels"]["counts"], report["features"]["mean"]
        ([[1, 1], [1, 1]], 0.0)
    """
    report: dict[str, Any] = {
        **about,
        "workers": len(shards),
        "num_samples": samples.num_samples,
        "sizes": [len(shard) for shard in shards],
        "labels": None,
        "features": None,
        "gradients": None,
    }
    if samples.labels is not None:
        counts, names = label_counts(shards, samples.labels, kind, bins)
        apart = label_total_variation(shards, samples.labels, kind, bins)
        report["labels"] = {
            "names": list(names),
            "counts": counts.tolist(),
            "total_variation": _plain(apart),
            "mean": float(np.nanmean(apart)),
        }
    if samples.features is not None and samples.num_features:
        found = feature_discrepancy(samples, shards, standardise=standardise)
        report["features"] = _compared(found.per_worker, found.mean, found.expected)
    if gradients is not None:
        ours, random = gradients
        report["gradients"] = _compared(ours.per_worker, ours.mean, random.mean)
    return report


def write_report(folder: Path, report: Mapping[str, Any]) -> None:
    """Write ``report.json`` and ``report.html`` (one page that opens offline) into a folder."""
    (folder / "report.json").write_text(json.dumps(report, indent=1, default=repr) + "\n")
    (folder / "report.html").write_text(render_html(report), encoding="utf-8")


def render_html(report: Mapping[str, Any]) -> str:
    """Return a self-contained page, a table and pictures, from what ``make_report`` returned."""
    facts = [
        ("strategy", report.get("strategy", "")),
        ("settings", json.dumps(report.get("settings", {}), default=repr)),
        ("seed", report.get("seed", "")),
        ("source", report.get("source", "")),
        ("samples", f"{report['num_samples']:,}"),
        ("workers", report["workers"]),
        ("smallest and largest shard", f"{min(report['sizes']):,} and {max(report['sizes']):,}"),
        *_summary(report),
    ]
    rows = "".join(
        f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in facts
    )
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<title>Shards</title><link rel='icon' href='data:,'>"
        "<style>body{font:15px system-ui,sans-serif;margin:2rem auto;max-width:60rem;"
        "padding:0 1rem}"
        "th{text-align:left;padding-right:2rem;vertical-align:top}td{overflow-wrap:anywhere}</style>"
        f"</head><body><h1>Shards</h1><table>{rows}</table>{_pictures(report)}</body></html>\n"
    )


def _summary(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = []
    if report["labels"]:
        lines.append(("label total variation, mean", f"{report['labels']['mean']:.4g}"))
    for key, name in (("features", "feature discrepancy"), ("gradients", "gradient dispersion")):
        part = report[key]
        if part:
            text = f"{part['mean']:.4g}; random shards have {part['random']:.4g}"
            if part["times_lower"] is not None:
                text += f"; {part['times_lower']:.3g} times lower"
            lines.append((name, text))
    return lines


def _pictures(report: Mapping[str, Any]) -> str:
    import plotly.graph_objects as go
    import plotly.io as pio

    workers = [str(rank) for rank in range(report["workers"])]
    figures = []
    if report["labels"]:
        names, counts = _shown(report["labels"]["names"], np.array(report["labels"]["counts"]))
        bars = [go.Bar(name=name, x=workers, y=counts[:, n]) for n, name in enumerate(names)]
        figures.append((go.Figure(bars), "Samples of each label per worker", "samples", "stack"))
    else:
        bars = [go.Bar(x=workers, y=report["sizes"])]
        figures.append((go.Figure(bars), "Samples per worker", "samples", "stack"))
    for key, title in (
        ("features", "How far each worker's mean features are from the mean of all"),
        ("gradients", "How far each worker's gradient is from the gradient of all"),
    ):
        if report[key]:
            figure = go.Figure([go.Bar(x=workers, y=report[key]["per_worker"])])
            figure.add_hline(
                y=report[key]["random"], line_dash="dash", annotation_text="random shards"
            )
            figures.append((figure, title, "squared distance", "group"))
    pages = []
    for number, (figure, title, unit, mode) in enumerate(figures):
        figure.update_layout(
            title=title,
            barmode=mode,
            template="plotly_white",
            xaxis_title="worker",
            yaxis_title=unit,
            xaxis_type="category",
        )
        pages.append(
            pio.to_html(
                figure,
                full_html=False,
                include_plotlyjs=number == 0,
                config={"responsive": True, "displaylogo": False},
            )
        )
    return "".join(pages)


def _shown(names: Sequence[str], counts: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the most frequent labels, the rest summed up as one."""
    if len(names) <= MAX_SHOWN:
        return list(names), counts
    order = np.argsort(-counts.sum(axis=0), kind="stable")
    first, rest = order[: MAX_SHOWN - 1], order[MAX_SHOWN - 1 :]
    shown = np.column_stack([counts[:, first], counts[:, rest].sum(axis=1)])
    return [*(names[place] for place in first), f"{len(rest)} others"], shown


def _compared(per_worker: NDArray[np.float64], mean: float, random: float) -> dict[str, Any]:
    return {
        "per_worker": _plain(per_worker),
        "mean": mean,
        "random": random,
        "times_lower": random / mean if mean > 0 else None,
    }


def _plain(values: NDArray[np.float64]) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
