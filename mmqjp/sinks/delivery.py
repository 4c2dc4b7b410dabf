"""Delivery: hands committed outputs to a sink, so that it gets each output once, even if the process is killed."""

from __future__ import annotations

from collections.abc import Iterable

from mmqjp.answers.outbox import SINK_PREFIX
from mmqjp.answers.output import Output
from mmqjp.session import Session
from mmqjp.sinks.sink import Sink
from mmqjp.tables.commit_metadata import CommitMetadata

OUTPUT_SINK = "output"
"""The name of the sink of `--output`."""


class Delivery:
    """A named sink of an engine. Its position is stored with the state."""

    def __init__(self, engine: Session, sink: Sink, name: str = OUTPUT_SINK) -> None:
        self._engine, self._sink, self._key = engine, sink, SINK_PREFIX + name

    def prepare(self) -> None:
        """Prepares the sink for writing, and stores its position if it has changed. Raises OSError."""
        if self._sink.prepare(self.pending):
            self.save_position()

    @property
    def acked(self) -> int:
        """The `seq` up to which the sink has all outputs; -1 for none."""
        return self._sink.position().acked

    def pending(self) -> Iterable[Output]:
        """Returns the committed outputs that the sink does not have, in the order of `seq`."""
        return self._engine.outputs(self.acked)

    def write(self, outputs: Iterable[Output]) -> int:
        """Writes outputs, in any order, and returns how many. They must be all that the sink does not have."""
        self.prepare()
        return self._sink.write(outputs)

    def settings(self) -> dict[str, str]:
        """Returns the position as settings to store."""
        return {self._key: self._sink.position().to_setting()}

    def save_position(self) -> None:
        """Stores the position, in a batch of its own."""
        self._engine.commit_metadata(CommitMetadata(settings=self.settings()))
