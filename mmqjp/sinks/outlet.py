"""Hands outputs that are committed to a place, so that each line is there once whenever the process is killed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from mmqjp.answers.outbox import DELIVERED
from mmqjp.answers.output import Output
from mmqjp.session import Session
from mmqjp.sinks.lines import WRITTEN, Lines
from mmqjp.tables.notes import Notes


class Outlet:
    """The place where the outputs of an engine go, and up to which batch they are there.

    Of a file it is always noted with the state how long it is with all the outputs of which that is noted: before the
    first line is written to it, and whenever it is another one, or not as it was left.
    """

    def __init__(self, engine: Session, lines: Lines) -> None:
        self._engine, self._lines = engine, lines
        self.written = int(engine.setting(DELIVERED) or -1)

    def attend(self) -> None:
        """Sees to it that lines can be written, and that it is noted where."""
        if self._lines.attend(lambda: chain.from_iterable(self._engine.outputs_after(self.written))):
            self.note()

    def write(self, outputs: Iterable[Output], batch: int) -> int:
        """Writes what is not written of the outputs up to a batch; how many lines that were."""
        self.attend()
        count = self._lines.write(outputs)
        self.written = batch
        return count

    def settings(self) -> dict[str, str]:
        """What has to be noted to go on from here."""
        return {DELIVERED: str(self.written), WRITTEN: self._lines.position()}

    def note(self) -> None:
        """Notes it at once."""
        self._engine.note(Notes(settings=self.settings()))
