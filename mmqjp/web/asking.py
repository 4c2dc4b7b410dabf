"""Puts the commands of pages to whoever holds the store, through the spool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mmqjp.backtest.process import SECONDS
from mmqjp.service.backtest_question import BACKTEST
from mmqjp.service.client import Client
from mmqjp.web.readers import Ask

WAIT = 30.0
"""Seconds that a page waits for the answer of a service."""


def asking(client_that_waits: Callable[[float], Client]) -> Ask:
    """Returns what asks a service. It waits longer for a back-test, which takes its time."""
    soon, later = client_that_waits(WAIT), client_that_waits(WAIT + SECONDS)

    def ask(do: str, arguments: Mapping[str, Any]) -> Any:
        return (later if do == BACKTEST else soon).ask(do, arguments)

    return ask
