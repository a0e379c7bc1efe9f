"""The page of a comparison: table, Pareto pictures, differences and curves, in one HTML file."""

from __future__ import annotations

import html
from collections.abc import Sequence

from freewheel.compare.cells import Column, Unit, columns, groups, notes
from freewheel.compare.plots import curves, differences, pareto
from freewheel.compare.table import Table
from freewheel.observe.report.page import Page, grid
from freewheel.observe.report.tables import table as html_table

#: Said where a picture does not reach down to all arms.
BEYOND = "Pointed marks at an edge lie beyond it: point at one for its value."


def page(table: Table, command: str) -> str:
    """Return the page as HTML that needs no network.

    Args:
        table: what was measured.
        command: what a person types to get it again.
    """
    plan, section = table.outcome.plan, table.section
    about = f"<p>{html.escape(section.about.strip())}</p>" if section.about.strip() else ""
    lead = f"{about}<p><code>{html.escape(command)}</code></p>"
    made = Page(f"{plan.name}: what is better", lead)
    made.section(
        "Arms and controls", grid(_tables(table)[:1]), grid(_tables(table)[1:]), _notes(table)
    )
    unit = Unit(table)
    made.section(
        "What it costs to be good",
        _text(
            f"Each mark is an arm, with its 95% interval: up is better, left is cheaper. Open "
            f"marks are controls, in the colour of their arm. {_lines(table)} The grey line joins "
            f"the arms and controls that no other beats both ways. {BEYOND}"
        ),
        grid(
            [
                made.plot(f"{unit.head} and bytes sent", pareto(table, "bytes")),
                *(
                    made.plot(
                        f"{unit.head} and time{f' over {link}, predicted' if link else ''}",
                        pareto(table, link),
                    )
                    for link in table.links
                ),
            ]
        ),
    )
    made.section(
        "Differences to vanilla",
        _text(
            "Mean of the differences, seed by seed, with its 95% interval; each small mark is a "
            f"seed. The dashed line is the margin. {BEYOND}"
        ),
        made.plot(f"{unit.head}: difference to vanilla", differences(table)),
    )
    made.section(
        "On the way there",
        _text(f"Mean over the seeds at each evaluation. {_lines(table)}"),
        grid(
            [
                made.plot(f"{unit.head} by bytes sent", curves(table, "bytes")),
                made.plot(f"{unit.head} by step", curves(table, "step")),
            ]
        ),
    )
    made.section("What each arm is", f'<div class="card">{_arms(table)}</div>')
    return made.render()


def _tables(table: Table) -> list[str]:
    """Return a card with what was learnt and for how many bytes, and one for each link."""
    found = columns(table)
    learnt, sent, *times = groups(found)
    cards = [_card(table, found[0], [*learnt, *sent], "")]
    return [*cards, *(_card(table, found[0], some, some[0].group) for some in times)]


def _card(table: Table, arms: Column, found: Sequence[Column], title: str) -> str:
    lines = []
    for index, row in enumerate(table.rows):
        cells = [_whole(column.cells[index]) for column in (arms, *found)]
        if row.arm.kind in ("vanilla", "arm"):
            cells[0] = f"<strong>{cells[0]}</strong>"
        if found[0].head == "seeds" and row.num_ok < row.num_seeds:
            cells[1] = f'<span class="badge failed">{cells[1]}</span>'
        lines.append(cells)
    heads = [arms.head, *(column.head for column in found)]
    caption = (
        f"<figcaption>{html.escape(title[0].upper() + title[1:])}</figcaption>" if title else ""
    )
    made = html_table(title or "Arms and controls", heads, lines)
    return f'<figure class="card">{caption}{made}</figure>'


def _whole(text: str) -> str:
    """Return text that is not broken over lines, unless it is long."""
    style = ' style="white-space:nowrap"' if len(text) <= 36 else ""
    return f"<span{style}>{html.escape(text)}</span>"


def _notes(table: Table) -> str:
    heads: dict[str, str] = {}
    for column in columns(table):
        if column.about:
            heads.setdefault(column.head, column.about)
    said = [*notes(table), *(f"{head}: {about}." for head, about in heads.items())]
    items = "".join(f"<li>{html.escape(note)}</li>" for note in said)
    return f'<ul class="note">{items}</ul>'


def _arms(table: Table) -> str:
    body: list[Sequence[str]] = []
    for row in table.rows:
        arm = row.arm
        settings = [
            f"{section}.{key} = {value!r}"
            for section, values in arm.sections.items()
            for key, value in values.items()
            if arm.kind == "arm" or (section == "codec" and arm.of and not arm.budget_of)
        ]
        about = arm.about.strip().rstrip(".")
        what = " ".join(
            filter(None, [about and f"{about}.", f"It belongs to {arm.of!r}." if arm.of else ""])
        )
        code = "<br>".join(f"<code>{_whole(line)}</code>" for line in settings)
        body.append([_whole(arm.name), _whole(arm.kind), html.escape(what), code])
    return html_table("What each arm is", ["arm", "kind", "what it is", "set over the file"], body)


def _text(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def _lines(table: Table) -> str:
    floors = [row.arm.name for row in table.rows if row.arm.kind == "floor" and row.metric]
    said = ""
    if table.target is not None:
        said = f"The dashed line is {Unit(table).text(table.target)}: vanilla less the margin."
    if floors:
        said += f" Dotted lines are the floors: {', '.join(floors)}."
    return said
