"""Delivery: hands committed outputs to a sink, so that it gets each once whenever the process is killed."""

from __future__ import annotations

from collections.abc import Iterable

from mmqjp.answers.outbox import SINK
from mmqjp.answers.output import Output
from mmqjp.session import Session
from mmqjp.sinks.protocol import Sink
from mmqjp.tables.notes import Notes

OUTPUT = "output"
"""The name of the sink that `--output` gives."""


class Delivery:
    """A sink of an engine, by its name, and its position, which is kept with the state."""

    def __init__(self, engine: Session, sink: Sink, name: str = OUTPUT) -> None:
        self._engine, self._sink, self._key = engine, sink, SINK + name

    def prepare(self) -> None:
        """Makes sure that outputs can be written, and that it is noted where. Raises OSError."""
        if self._sink.prepare(self.pending):
            self.note()

    @property
    def acked(self) -> int:
        """The `seq` up to which the sink has all outputs; -1 for none."""
        return self._sink.position().acked

    def pending(self) -> Iterable[Output]:
        """The committed outputs that the sink does not have, in the order of `seq`."""
        return self._engine.outputs(self.acked)

    def write(self, outputs: Iterable[Output]) -> int:
        """Writes outputs, which are all that the sink does not have, in any order; how many those were."""
        self.prepare()
        return self._sink.write(outputs)

    def settings(self) -> dict[str, str]:
        """What to note in order to go on from here."""
        return {self._key: self._sink.position().to_setting()}

    def note(self) -> None:
        """Notes the position, in a batch of its own."""
        self._engine.note(Notes(settings=self.settings()))
