"""Makes ``docs/benchmarks.md`` of all results files: ``python -m benchmarks.render [--check]``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, ROOT

PAGE = ROOT.parent / "docs" / "benchmarks.md"

HEAD = """# Benchmarks

Generated from `benchmarks/results/*.json` by `python -m benchmarks.render`; do not edit.

Each table comes from one command, which runs all its arms interleaved, back to back. A figure is
*asked* before it is measured and *reached* as computed from the arms; brackets hold 95% intervals
over the seeds (Student t for means, bootstrap for medians and ratios). A figure that does not hold
stays here, and so does an arm that failed.
"""

VERDICTS = {True: "yes", False: "**no**", None: "reported"}
RULES = {"at_most": "at most", "at_least": "at least"}


def read(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the results files of a folder, by name, tiny ones left out."""
    files = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [results for results in files if not results["tiny"]]


def render(files: Sequence[Mapping[str, Any]]) -> str:
    """Return the page for these results."""
    parts = [HEAD, "## All figures\n"]
    rows = [
        [f"[{results['name']}](#{results['name']})", *_figure(name, entry)]
        for results in files
        for name, entry in results["headline"].items()
    ]
    parts.append(_table(["benchmark", "figure", "asked", "reached", "interval", "holds"], rows))
    parts += [_section(results) for results in files]
    return "\n".join(parts)


def _taken_over(results: Mapping[str, Any]) -> str:
    count = results.get("taken_over", 0)
    return f"; {count} units taken over from an earlier run on another machine" if count else ""


def _section(results: Mapping[str, Any]) -> str:
    machine, load = results["machine"], results["load"]
    packages = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    during = load.get("during", {})
    lines = [
        f"## {results['name']}\n",
        results["about"].strip() + "\n",
        f"- `{results['command']}`, {results['date'][:10]}, "
        f"{len(results['seeds'])} repeats of each arm, {results['took_s']:,.0f} s"
        f"{_taken_over(results)}",
        f"- {machine['cores']} cores, {machine['cpu_model']}, {machine['memory_gib']} GiB, "
        f"{machine['system']}; {packages}",
        f"- load (1 minute) before {load['before']}, after {load['after']}, "
        f"median {_number(during.get('median'))}, highest {_number(during.get('max'))}",
    ]
    if results["settings"]:
        lines.append(f"- settings: `{json.dumps(results['settings'])}`")
    rows = [_figure(name, entry) for name, entry in results["headline"].items()]
    if rows:
        lines.append("\n" + _table(["figure", "asked", "reached", "interval", "holds"], rows))
    for metrics, arms in groupby(results["arms"], key=lambda arm: list(arm["metrics"])):
        lines.append("\n" + _arms(metrics, arms))
    return "\n".join(lines)


def _arms(metrics: Sequence[str], arms: Iterable[Mapping[str, Any]]) -> str:
    rows = []
    for arm in arms:
        cells = [_summary(arm["metrics"][metric]) for metric in metrics]
        failed = len(arm["failures"])
        note = f"{failed} of {len(arm['seeds'])}: {arm['failures'][0]}" if failed else "none"
        rows.append([arm["name"], *cells, note])
    return _table(["arm (medians)", *metrics, "failed"], rows)


def _summary(summary: Mapping[str, Any]) -> str:
    interval = summary.get("median_interval")
    text = _number(summary["median"])
    if interval and interval[0] != interval[1]:
        text += f" {_interval(interval)}"
    absent = sum(value is None for value in summary["values"])
    return f"{text} ({absent} without)" if absent and summary["median"] is not None else text


def _figure(name: str, entry: Mapping[str, Any]) -> list[str]:
    asked = "" if entry["asked"] is None else f"{RULES[entry['rule']]} {_number(entry['asked'])}"
    of = entry["of"]
    arms = of["arm"] if of["against"] is None else f"{of['arm']} / {of['against']}"
    how = f"{entry['from']['statistic'].replace('_', ' ')} of {entry['from']['metric']}"
    return [
        f"{name} ({how}: {arms})",
        asked,
        _number(entry["reached"]),
        _interval(entry["interval"]),
        VERDICTS[entry["holds"]],
    ]


def _interval(interval: Sequence[float] | None) -> str:
    return f"[{_number(interval[0])}, {_number(interval[1])}]" if interval else ""


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.4g}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return (
            "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
        )

    return "\n".join([line(heads), "|" + "---|" * len(heads), *map(line, rows)]) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page; with ``--check``, only tell whether it is up to date (exit code 1 if not)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.render")
    parser.add_argument("--check", action="store_true")
    text = render(read())
    if parser.parse_args(argv).check:
        return 0 if PAGE.exists() and PAGE.read_text() == text else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
