"""How the quota of queries limits event queries, and what is said of those that exceed it."""

from __future__ import annotations

from feeds.dates import iso_utc
from mmqjp.answers.quota import Quota
from pattern_stage.limits import Excess, Limits
from pattern_stage.operators import NO_BOUND


def limits_of(quota: Quota) -> Limits:
    """Returns what event queries may take."""
    return Limits(_bound(quota.partial), _bound(quota.matches))


def reason_of(excess: Excess, quota: Quota) -> str:
    """Returns the reason to show to users why a query is paused."""
    if excess.bound == "partial":
        return f"more than {quota.partial:,} partial matches wait after {iso_utc(excess.time)} (max-partial)"
    return f"more than {quota.matches:,} matches at {iso_utc(excess.time)} (max-matches)"


def _bound(bound: int | None) -> int:
    return NO_BOUND if bound is None else bound
