"""Asks for sinks to be added, changed and tested. What is added or changed is checked first, so that a secret in the
wrong place is written nowhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mmqjp.service.sink_commands import SINKS, changed, read_live
from mmqjp.sinks.definition import SinkDefinition
from mmqjp.sinks.keys import BadSink
from mmqjp.sinks.options import named_secrets

POLL = 0.1
"""Seconds between two looks for the result of a test."""

Ask = Callable[[str, Mapping[str, Any]], Any]
"""Puts a command to the process that holds the store, and returns its result."""


def add_sink(ask: Ask, state: Path, name: str, table: Mapping[str, Any]) -> None:
    """Adds a live sink. Raises InputError."""
    _check(ask, read_live(state, name, table))
    ask("sinks-add", {"name": name, "table": table})


def set_sink(ask: Ask, state: Path, name: str, table: Mapping[str, Any]) -> None:
    """Changes keys of a live sink; those that are None get their defaults. Raises InputError."""
    known = ask(SINKS, {"name": name})
    if known["file"] is None:
        _check(ask, read_live(state, name, changed(known["definition"], table)))
        ask("sinks-set", {"name": name, "table": table})
    else:
        ask("sinks-set", {"name": name, "table": {}})  # which is refused


def try_sink(
    ask: Ask,
    name: str,
    seconds: float,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str | None:
    """Has a service send a test message, and waits so long for its result. Returns "" if it was acknowledged, else the
    reason; None if that is not known yet. Raises InputError."""
    ask("sinks-test", {"name": name})
    until = clock() + seconds
    while (found := ask("sinks-tested", {"name": name})) is None and clock() < until:
        sleep(POLL)
    return None if found is None else str(found)


def _check(ask: Ask, definition: SinkDefinition) -> None:
    """Raises BadSink if a definition names secrets that are not known."""
    if names := named_secrets(definition.options):
        known = ask("sinks-secrets", {})
        if any(secret.name not in known for secret in names):
            told = ", ".join(known) or "none"
            raise BadSink(f"a secret is named that is not known (known: {told}); mmqjp sinks secret makes one")
