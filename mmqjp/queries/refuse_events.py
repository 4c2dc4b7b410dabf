"""Refuses scripts with event statements where they cannot be run, so that none is ignored."""

from __future__ import annotations

from common.errors import InvalidValue
from xscl import Script


def refuse_events(script: Script) -> None:
    """Raises InvalidValue if the script has event statements."""
    if not script.has_events:
        return
    names = [one.name for one in script.definitions] + [one.publish or "a query" for one in script.event_queries]
    raise InvalidValue(
        f"event statements cannot be tried here: {', '.join(names[:3])}; leave them out, or use mmqjp check and mmqjp "
        "subscribe"
    )
