"""The outputs of a back-test by day, with the days that have none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from mmqjp.backtest.result import Backtest

DAYS = 60
"""So many days are shown, up to that of the last output."""


def days_of(trial: Backtest) -> list[tuple[str, int]]:
    """Returns the last DAYS days with their outputs; none if there was no output."""
    if not trial.days:
        return []
    found = dict(trial.days)
    last = datetime.strptime(max(found), "%Y-%m-%d").replace(tzinfo=UTC)
    days = ((last - timedelta(days=back)).strftime("%Y-%m-%d") for back in reversed(range(DAYS)))
    return [(day, found.get(day, 0)) for day in days]
