"""When a feed is fetched next: pure decisions from its state and a random number."""

from __future__ import annotations

from dataclasses import dataclass

from feeds.dates import EPOCH
from feeds.fetch.clock import DAY, HOUR, MINUTE
from feeds.fetch.hints import Hints

JITTER = 0.1
"""A wait is longer by up to this share, so that feeds do not stay due at the same time."""

_EPOCH_WEEKDAY = EPOCH.weekday()


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a feed is fetched, in microseconds: after `interval`, or later if it or its server wants that, up to
    `longest`. After failures in a row it is `backoff`, twice that, and so on up to `longest`."""

    interval: int = HOUR
    longest: int = DAY
    backoff: int = 10 * MINUTE


def after_success(now: int, fresh: int, hints: Hints, pace: Pace, random: float) -> int:
    """The next check of a feed whose answer is fresh for so long. `random` is in [0, 1).

    The wait is at least `pace.interval` and at most `pace.longest` with its jitter, and longer only for skipped hours
    and days.
    """
    wait = min(max(pace.interval, fresh, hints.interval), max(pace.longest, pace.interval))
    return outside_skipped(now + _jittered(wait, random), hints, random)


def after_failure(now: int, errors: int, not_before: int | None, hints: Hints, pace: Pace, random: float) -> int:
    """The next check of a feed that has failed `errors` times in a row (from 1), never before `not_before`."""
    wait = min(pace.backoff << min(errors - 1, 40), max(pace.longest, pace.backoff))
    soonest = now + _jittered(wait, random)
    return outside_skipped(max(soonest, not_before or soonest), hints, random)


def outside_skipped(moment: int, hints: Hints, random: float) -> int:
    """The moment, or one in the next hour that the feed does not skip. If it skips all hours, the moment."""
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
