"""Tables of the page: summaries, settings that differ, events. All text is escaped."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from freewheel.observe.progress import size
from freewheel.observe.report.columns import number
from freewheel.observe.report.learning import scored
from freewheel.observe.report.run import Run
from freewheel.observe.report.spent import totals
from freewheel.observe.report.style import clip, colour, seconds
from freewheel.observe.report.timeline import details
from freewheel.observe.report.traffic import bytes_by_cut

#: Events in the table of a run; of more, the rarest kinds whole and the others in part.
MAX_EVENTS = 200
MAX_DETAIL = 400
MAX_SETTINGS = 40
NONE = "-"


def table(caption: str, head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Return a table of HTML cells; on a narrow screen each row becomes a card.

    Args:
        caption: plain text, for those who cannot see where the table stands.
        head: plain names of the columns.
        body: rows of cells, already HTML.
    """
    names = [html.escape(name) for name in head]
    rows = (
        "<tr>"
        + "".join(
            f'<td data-label="{name}"><span>{cell}</span></td>'
            for name, cell in zip(names, row, strict=True)
        )
        + "</tr>"
        for row in body
    )
    columns = "".join(f'<th scope="col">{name}</th>' for name in names)
    return (
        f'<table><caption class="unseen">{html.escape(caption)}</caption>'
        f"<thead><tr>{columns}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def badge(run: Run) -> str:
    """Return the status of a run as a word on a coloured ground."""
    kind = run.status if run.status in ("ok", "failed", "unfinished") else "other"
    return f'<span class="badge {kind}">{html.escape(run.status)}</span>'


def named(run: Run, place: int) -> str:
    """Return the label of a run with its colour."""
    return f'<span class="swatch" style="background:{colour(place)}"></span>' + html.escape(
        run.label
    )


def summary_table(runs: Sequence[Run]) -> str:
    """Return a row for each run; what a run without a summary has done is taken from its rows."""
    metrics: dict[str, None] = {}
    for run in runs:
        metrics.update(dict.fromkeys(_final(run)))
    shown = sorted(metrics, key=lambda name: (name != "accuracy", name != "loss"))[:3]
    head = ["Run", "Status", "Protocol", "Layout", "Model, data", "Steps"]
    head += [name.capitalize() for name in shown]
    head += ["Bytes sent", "Training time", "Waiting"]
    body = []
    for place, run in enumerate(runs):
        told = run.summary or {}
        final = _final(run)
        body.append(
            [
                named(run, place),
                badge(run),
                _text(told.get("protocol") or _setting(run, "protocol", "name")),
                _text(_layout(run)),
                _text(
                    f"{told.get('model') or _setting(run, 'model', 'name')}, "
                    f"{told.get('dataset') or _setting(run, 'data', 'name')}"
                ),
                _text(f"{_steps(run):,}"),
                *(_text(f"{final[name]:.4f}" if name in final else NONE) for name in shown),
                _text(size(_bytes(run))),
                _text(_time(run)),
                _text(_waiting(run)),
            ]
        )
    return table("Summaries of the runs", head, body)


def settings_table(runs: Sequence[Run]) -> str:
    """Return the settings in which runs differ; empty where there are none."""
    flat = [dict(_flatten(run.config)) for run in runs]
    keys = dict.fromkeys(key for values in flat for key in values)
    differ = [key for key in keys if len({str(values.get(key, NONE)) for values in flat}) > 1]
    if not differ:
        return ""
    head = ["Setting", *(run.label for run in runs)]
    body = [
        [f"<code>{html.escape(key)}</code>", *(_text(values.get(key, NONE)) for values in flat)]
        for key in differ[:MAX_SETTINGS]
    ]
    return table("Settings that differ", head, body)


def events_table(run: Run) -> str:
    """Return the events of a run: all of the rare kinds, the first of the frequent ones."""
    counts = Counter(event["event"] for event in run.events)
    kept: list[int] = []
    for kind in sorted(counts, key=lambda kind: counts[kind]):
        of_kind = [i for i, event in enumerate(run.events) if event["event"] == kind]
        kept += of_kind[: max(0, MAX_EVENTS - len(kept))]
    skipped = ("event", "at_s", "virtual_s", "process", "step")
    body = []
    for event in (run.events[i] for i in sorted(kept)):
        at_s = run.event_at_s(event)
        body.append(
            [
                _text(f"{at_s:.3f}" if np.isfinite(at_s) else NONE),
                _text(event["event"]),
                _text(event.get("process", NONE)),
                _text(event.get("step", NONE)),
                _text(clip(", ".join(details(event, skipped)), MAX_DETAIL) or NONE),
            ]
        )
    told = ", ".join(f"{count:,} {html.escape(clip(kind, 40))}" for kind, count in counts.items())
    more = f" Shown: {len(kept)} of {len(run.events):,}." if len(kept) < len(run.events) else ""
    head = ["Virtual time (s)" if run.virtual else "Time (s)", "Event", "Process", "Step", "Detail"]
    listed = table(f"Events of {run.label}", head, body)
    return (
        f'<p class="note">{told}.{more}</p><div class="scroll events" tabindex="0">{listed}</div>'
    )


def _final(run: Run) -> dict[str, float]:
    """Return final metrics; of a run that has no summary, those of its last evaluation."""
    told = (run.summary or {}).get("final_metrics")
    if isinstance(told, Mapping):
        return {str(k): number(v) for k, v in told.items() if np.isfinite(number(v))}
    evaluated = [event for event in run.events if event["event"] == "evaluated"]
    names = evaluated[-1].get("metrics") if evaluated else None
    last = {}
    for name in names if isinstance(names, Mapping) else ():
        points = scored(run, name)
        if points and points["steps"][1][-1] is not None:
            last[name] = points["steps"][1][-1]
    return {name: value for name, value in last.items() if value is not None}


def _steps(run: Run) -> int:
    if run.summary and np.isfinite(number(run.summary.get("steps"))):
        return int(number(run.summary["steps"]))
    return int(run.rows["step"].max()) if len(run.rows) else 0


def _bytes(run: Run) -> float:
    told = number((run.summary or {}).get("bytes_sent"))
    return told if np.isfinite(told) else sum(bytes_by_cut(run)[0].values())


def _time(run: Run) -> str:
    if not len(run.rows):
        return NONE
    return seconds(float(run.spent_s.max())) + (" (virtual)" if run.virtual else "")


def _waiting(run: Run) -> str:
    spent = {part: sum(values) for part, values in totals(run).items()}
    whole = sum(spent.values())
    return f"{spent['wait'] / whole:.0%}" if whole > 0 else NONE


def _layout(run: Run) -> str:
    told = run.summary or {}
    kind = told.get("layout") or _setting(run, "layout", "kind")
    count = told.get("world_size") or len(run.rows.processes)
    return f"{kind} of {count}" if count else str(kind)


def _setting(run: Run, section: str, key: str) -> Any:
    values = run.config.get(section)
    return values.get(key, NONE) if isinstance(values, Mapping) else NONE


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: object) -> str:
    return html.escape(NONE if value is None else str(value))
