"""What a run says at its end on standard error: paused queries, equal times, entries from the future, dead letters."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from mmqjp.commands.sinks import DeadLetters
from mmqjp.commands.ties import told
from mmqjp.session import Session
from mmqjp.text import printable_line

LISTED_WAITING = 10
"""How many queries with documents that wait are listed."""

LISTED_PAUSED = 10
"""How many paused queries are listed."""


def report_paused(engine: Session) -> None:
    """Reports the paused queries, which were not answered for all documents."""
    paused = [query for query in engine.registry.subscriptions.values() if query.paused is not None]
    for query in paused[:LISTED_PAUSED]:
        click.echo(f"mmqjp: {query.name} is paused: {printable_line(str(query.paused))}", err=True)
    if len(paused) > LISTED_PAUSED:
        click.echo(f"mmqjp: and {len(paused) - LISTED_PAUSED:,} more are paused", err=True)


def report_ties(engine: Session) -> None:
    """Reports the pairs that FOLLOWED BY left out in this run only because of equal times."""
    for line in told(engine.ties(here=True), engine.ties_at_least(here=True)):
        click.echo(f"mmqjp: {line}", err=True)


def report_waiting(engine: Session) -> None:
    """Reports what waits at the end of a run because something may still come for it."""
    waiting, never = engine.waiting_absences(), engine.never_decided()
    for name, count in list(waiting.items())[:LISTED_WAITING]:
        documents = f"{count:,} documents wait for their deadline" if count > 1 else "a document waits for its deadline"
        why = f"; {never[name]} may be late without a limit, so that it never comes: give --lateness"
        click.echo(f"mmqjp: {name}: {documents}{why if name in never else ''}", err=True)
    if len(waiting) > LISTED_WAITING:
        click.echo(f"mmqjp: and {len(waiting) - LISTED_WAITING:,} more queries wait", err=True)


def report_future(future: Counter[str]) -> None:
    """Reports entries dated after their fetch, and the feed with the most of them. `future` counts them by feed."""
    for source, count in future.most_common(1):
        total = future.total()
        what = f"{total:,} feed entr{'ies' if total > 1 else 'y'} dated after the fetch"
        click.echo(f"mmqjp: {what}, given the time of the fetch; {count:,} from {printable_line(source)}", err=True)


def report_dead_letters(dead: DeadLetters, path: Path | None) -> None:
    """Reports how many documents were left out, and the first reasons unless they are in the file `path`."""
    if not dead.count:
        return
    what = f"{dead.count:,} dead letter{'s' if dead.count > 1 else ''} (documents left out)"
    if path is not None:
        click.echo(f"mmqjp: {what} in {path}", err=True)
        return
    click.echo(f"mmqjp: {what}; --dead-letters FILE writes them to a file", err=True)
    for reason in dead.reasons:
        click.echo(f"  {printable_line(reason)}", err=True)
    if dead.count > len(dead.reasons):
        click.echo(f"  and {dead.count - len(dead.reasons):,} more", err=True)
