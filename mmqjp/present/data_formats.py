"""The formats of matches for programs: JSON lines, JSON and CSV. They hold one match at a time in memory."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from json import dumps
from typing import BinaryIO

from mmqjp.present.facts import plain, why
from mmqjp.present.groups import Spool
from mmqjp.present.match import Match
from mmqjp.present.times import Clock
from mmqjp.text import json_line

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Spreadsheets take a text that begins so for a formula."""


def write_json_lines(matches: Iterable[Match], out: BinaryIO) -> None:
    """Writes a line of JSON for each match: the output line, with more at its end."""
    for match in matches:
        out.write(json_line(match.to_dict()))


def write_json(matches: Iterable[Match], out: BinaryIO) -> None:
    """Writes a JSON array of the same objects."""
    write_json_array((match.to_dict() for match in matches), out)


def write_json_array(found: Iterable[object], out: BinaryIO) -> None:
    """Writes objects as a JSON array, one to a line."""
    before = b"[\n"
    for one in found:
        out.write(before + dumps(one, ensure_ascii=False).encode())
        before = b",\n"
    out.write(b"[]\n" if before == b"[\n" else b"\n]\n")


def write_csv(matches: Iterable[Match], out: BinaryIO, clock: Clock) -> None:
    """Writes a header, and a row for each match. Its documents follow each other in columns."""
    with Spool().add(matches) as spool:
        own = ("time", "title", "site", "link", "id")
        header = [f"{name}_{place + 1}" for place in range(spool.most_documents) for name in own]
        rows = (_row(match, clock) for match in spool.all())
        names = ("query", "time", "why", "selected", "id", "seq", *header)
        write_csv_rows(names, ([*row, *[""] * (len(names) - len(row))] for row in rows), out)


def write_csv_rows(header: Iterable[object], rows: Iterable[Iterable[object]], out: BinaryIO) -> None:
    """Writes rows as RFC 4180 has them. A text that a spreadsheet would take for a formula gets a ' before it."""
    text = io.TextIOWrapper(out, "utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    try:
        writer.writerow([_harmless(cell) for cell in header])
        writer.writerows([_harmless(cell) for cell in row] for row in rows)
        text.flush()
    finally:
        text.detach()


def _row(match: Match, clock: Clock) -> list[object]:
    output = match.output
    chosen = "; ".join(f"{name}: {text}" for name, text in match.selected)
    reasons = "; ".join(map(plain, why(match)))
    row: list[object] = [output.query, clock.iso(output.t1), reasons, chosen, output.id, output.seq]
    for item in match.items:
        time = "" if item.time is None else clock.iso(item.time)
        row += [time, item.title, item.feed or item.site, item.link, item.id]
    return row


def _harmless(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    cell = cell.replace("\0", "\ufffd")
    return f"'{cell}" if cell.startswith(FORMULA_STARTS) else cell
