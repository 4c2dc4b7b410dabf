"""A back-test as a question: it runs beside the service, in a thread and a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from join_stage.store.reading import QuestionInterrupted
from mmqjp.backtest.backtest import StoreBacktest
from mmqjp.backtest.process import BacktestEnded
from mmqjp.backtest.script import prepared
from mmqjp.session import Session

BACKTEST = "backtest"
"""The command that asks for one."""


class BacktestQuestion:
    """A back-test of the `text` in the arguments of a command, over the documents that a store keeps. With
    `script_only`, only what `mmqjp.backtest.script.prepared` says of it."""

    def __init__(self, engine: Session, arguments: Mapping[str, Any]) -> None:
        """Raises KeyError without a text."""
        self._engine, self._text = engine, str(arguments["text"])
        self._script_only = bool(arguments.get("script_only"))
        self._backtest = StoreBacktest(engine, self._text)

    def answer(self) -> dict[str, Any]:
        """Returns the result as a JSON object. Raises QuestionInterrupted, and what `StoreBacktest.run` does."""
        if self._script_only:
            return prepared(self._text, self._engine.registry).to_dict()
        try:
            return self._backtest.run().to_dict()
        except BacktestEnded as error:
            raise QuestionInterrupted(str(error)) from None

    def interrupt(self) -> None:
        """Ends it, from any thread."""
        self._backtest.interrupt()
