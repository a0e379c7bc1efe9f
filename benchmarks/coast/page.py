"""Puts the tables of the results file into ``docs/coast.md``.

``python -m benchmarks.coast.page``; the benchmark does it too when it writes its results.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.harness import ROOT
from benchmarks.pages import write_page

PAGE = ROOT.parent / "docs" / "coast.md"
NONE = "-"

Arms = Mapping[str, Mapping[str, Any]]
Figures = Mapping[str, Mapping[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or with ``--check`` say by the exit code whether it is current."""
    return write_page("coast", PAGE, render, argv)


def render(results: Mapping[str, Any]) -> str:
    """Return the tables of a results file."""
    arms = {arm["name"]: arm for arm in results["arms"]}
    figures = results["headline"]
    parts = [
        _equal_bytes(arms, figures),
        _best_rates(arms, figures),
        _far(arms, figures),
        _real(arms, figures),
        _coded(arms, figures),
        _search(arms),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _equal_bytes(arms: Arms, figures: Figures) -> str:
    rows = []
    for title in figures:
        found = re.fullmatch(r"(.*), (\d+)x: coast against static", title)
        if not found:
            continue
        cell, ratio = found[1], int(found[2])
        where = f"{cell}, {ratio}x"
        coast = str(figures[title]["of"]["arm"])
        vanilla = str(figures[f"{where}: coast against vanilla"]["of"]["against"])
        rows.append(
            [
                cell,
                f"{ratio}x",
                coast.partition(": coast, ")[2],
                *(
                    _mean(arms, name)
                    for name in (coast, f"{where}: coast, guarded", f"{where}: static")
                ),
                _mean(arms, f"{where}: train_less"),
                _mean(arms, vanilla),
                _interval(figures[title]),
                _interval(figures[f"{where}: coast against train_less"]),
                str(len(arms[coast]["seeds"])),
            ]
        )
    head = [
        *("cell", "bytes", "predictor", "coast", "with a guard", "static", "train_less", "vanilla"),
        *("coast - static", "coast - train_less", "seeds"),
    ]
    title = "**Accuracy (%) at equal bytes, and paired differences with 95% intervals**"
    return f"{title}\n\n{_table(head, rows)}" if rows else ""


def _best_rates(arms: Arms, figures: Figures) -> str:
    rows = []
    for title, entry in figures.items():
        found = re.fullmatch(r"(.*): coast against static, (\w+), each at its best rate", title)
        if found:
            where, kind = found[1], found[2]
            names = [f"{where}: {who}, {kind}, best rate" for who in ("coast", "static")]
            tried = [_best_tried(arms, f"{where}: {who}, ", kind) for who in ("coast", "static")]
            pairs = [f"{_mean(arms, n)} ({t})" for n, t in zip(names, tried, strict=True)]
            rows.append([where, kind, *pairs, _interval(entry)])
    head = ["cell", "SGD", "coast (chosen)", "static (chosen)", "coast - static"]
    title = "**The same at the rate that suits each best, chosen on validation data**"
    return f"{title}\n\n{_table(head, rows)}" if rows else ""


def _best_tried(arms: Arms, prefix: str, kind: str) -> str:
    tried = {
        name: arm["metrics"]["accuracy"]["mean"]
        for name, arm in arms.items()
        if name.startswith(prefix) and name.endswith(", tried") and f" {kind} " in name
    }
    if not tried:
        return NONE
    name = max(tried, key=lambda name: tried[name])
    return name.removeprefix(prefix).removesuffix(", tried").replace(f", {kind}", "")


def _far(arms: Arms, figures: Figures) -> str:
    rows = []
    for title, entry in figures.items():
        found = re.fullmatch(r"(.*, far too long): (coast.*) against static", title)
        if found:
            name = f"{found[1]}: {found[2]}"
            rolled = arms[name]["metrics"]["rolled_back"]["mean"]
            static = _mean(arms, f"{found[1]}: static")
            rows.append(
                [found[1], found[2], f"{rolled:.1f}", _mean(arms, name), static, _interval(entry)]
            )
    head = ["cell", "arm", "jumps rolled back", "accuracy", "static", "coast - static"]
    title = "**A prediction that diverges**"
    return f"{title}\n\n{_table(head, rows)}" if rows else ""


def _real(arms: Arms, figures: Figures) -> str:
    rows = []
    for title, entry in figures.items():
        found = re.fullmatch(r"(.*, real processes over (\d+) Mbit/s): faster", title)
        if not found:
            continue
        for who in ("vanilla", "coast", "static"):
            name = f"{found[1]}: {who}"
            metrics = arms[name]["metrics"]
            rows.append(
                [
                    f"{found[2]} Mbit/s",
                    who,
                    f"{metrics['wall_s']['mean']:.1f} s",
                    f"{metrics['bytes']['mean'] / 1e6:.1f} MB",
                    _mean(arms, name),
                    f"{_interval(entry, 1)}x" if who == "coast" else NONE,
                ]
            )
    head = ["link", "arm", "training time", "bytes", "accuracy", "faster than vanilla"]
    title = "**The 27x point in two real processes over a shaped link**"
    return f"{title}\n\n{_table(head, rows)}" if rows else ""


def _coded(arms: Arms, figures: Figures) -> str:
    rows = []
    for title, entry in figures.items():
        found = re.fullmatch(r"(.*): against vanilla", title)
        if found:
            replay, vanilla = str(entry["of"]["arm"]), str(entry["of"]["against"])
            bytes_ = figures[f"{found[1]}: fewer bytes"]["reached"]
            rows.append(
                [
                    found[1],
                    replay.removeprefix(f"{found[1]}: "),
                    f"{bytes_:.1f}x",
                    _mean(arms, replay),
                    _mean(arms, f"{found[1]}: train_less"),
                    _mean(arms, vanilla),
                    _interval(entry),
                    str(len(arms[replay]["seeds"])),
                ]
            )
    head = [
        *("task", "chosen", "fewer bytes", "replay", "train_less, 4 bits", "vanilla"),
        *("replay - vanilla", "seeds"),
    ]
    title = "**Replay and 4 bits**"
    return f"{title}\n\n{_table(head, rows)}" if rows else ""


def _search(arms: Arms) -> str:
    found: dict[str, list[str]] = {}
    for name, arm in arms.items():
        where, _, tried = name.partition(": ")
        if tried.endswith(", tried") and " best " not in tried:
            mean = arm["metrics"]["accuracy"]["mean"]
            found.setdefault(where, []).append(f"{tried.removesuffix(', tried')} {mean:.1f}")
    rows = [[where, "; ".join(tries)] for where, tries in found.items()]
    title = "**What was tried, with its mean accuracy on validation data (other seeds)**"
    return f"{title}\n\n{_table(['where', 'tries'], rows)}" if rows else ""


def _mean(arms: Arms, name: str) -> str:
    if name not in arms:
        return NONE
    mean = arms[name]["metrics"].get("accuracy", {}).get("mean")
    return NONE if mean is None else f"{mean:.1f}"


def _interval(entry: Mapping[str, Any], digits: int = 2) -> str:
    sign = "" if digits == 1 else "+"
    reached = f"{entry['reached']:{sign}.{digits}f}"
    if not entry["interval"]:
        return reached
    low, high = entry["interval"]
    return f"{reached} [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    raise SystemExit(main())
