"""Puts what libraries log into the log of a service, so that it has one form."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from mmqjp.service.log import Log

_PLAIN = logging.Formatter()


class _Records(logging.Handler):
    """Makes events of records."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Logs a record."""
        more = {"traceback": _PLAIN.formatException(record.exc_info)} if record.exc_info else {}
        self._log.event("said", by=record.name, level=record.levelname.lower(), text=record.getMessage(), **more)


@contextmanager
def records_in(log: Log, *names: str) -> Iterator[None]:
    """Inside the block, warnings and errors of some loggers of Python's `logging` go to a log, and nowhere else."""
    handler, loggers = _Records(log), [logging.getLogger(name) for name in names]
    before = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagated in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagated
