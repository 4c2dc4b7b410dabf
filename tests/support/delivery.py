"""A reader of outputs in place of the sink of `--output`. Its position is kept with the state."""

from mmqjp.answers.fan_out import SINK_PREFIX, Position
from mmqjp.answers.output import Output, output_order
from mmqjp.engine import Session
from mmqjp.sinks.deliverer import OUTPUT_SINK
from mmqjp.tables.schema import CommitMetadata


def undelivered(engine: Session) -> list[Output]:
    """The outputs that the reader does not have yet, in the order of output lines."""
    return sorted(engine.outputs(engine.position(OUTPUT_SINK).acked), key=output_order)


def mark_delivered(engine: Session) -> None:
    engine.commit_metadata(CommitMetadata(settings={SINK_PREFIX + OUTPUT_SINK: Position(engine.last_seq).to_setting()}))
