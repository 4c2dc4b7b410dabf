"""When a feed is fetched next: pure decisions, from what is known of it and a random number."""

from __future__ import annotations

from dataclasses import dataclass

from feeds.dates import EPOCH
from feeds.fetch.clock import DAY, HOUR, MINUTE
from feeds.fetch.hints import Hints

JITTER = 0.1
"""By which share of its length a wait may be longer, so that feeds do not come due all at once for ever."""

_EPOCH_WEEKDAY = EPOCH.weekday()


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a feed is asked, in microseconds: after `interval`, or as much later as it and its server want, up to
    `longest`; after failures that follow each other `backoff`, twice that, and so on up to `longest`."""

    interval: int = HOUR
    longest: int = DAY
    backoff: int = 10 * MINUTE


def after_success(now: int, fresh: int, hints: Hints, pace: Pace, random: float) -> int:
    """The next check of a feed that answered, which is fresh for so long; `random` is in [0, 1).

    At least `pace.interval` and no more than `pace.longest` with its jitter, but for hours and days that are skipped.
    """
    wait = min(max(pace.interval, fresh, hints.interval), max(pace.longest, pace.interval))
    return outside_skipped(now + _jittered(wait, random), hints, random)


def after_failure(now: int, errors: int, not_before: int | None, hints: Hints, pace: Pace, random: float) -> int:
    """The next check of a feed that has failed `errors` times running (from 1), and not before `not_before`."""
    wait = min(pace.backoff << min(errors - 1, 40), max(pace.longest, pace.backoff))
    soonest = now + _jittered(wait, random)
    return outside_skipped(max(soonest, not_before or soonest), hints, random)


def outside_skipped(moment: int, hints: Hints, random: float) -> int:
    """The moment, else one in the first hour after it that the feed does not skip; itself where it skips all."""
    if not _is_skipped(moment, hints):
        return moment
    hour = moment - moment % HOUR
    for later in range(1, 7 * 24 + 1):
        if not _is_skipped(hour + later * HOUR, hints):
            return hour + later * HOUR + int(random * 10 * MINUTE)
    return moment


def _is_skipped(moment: int, hints: Hints) -> bool:
    weekday = (moment // DAY + _EPOCH_WEEKDAY) % 7
    return moment % DAY // HOUR in hints.skip_hours or weekday in hints.skip_days


def _jittered(wait: int, random: float) -> int:
    return wait + int(wait * JITTER * random)
