"""Opens the receiver of a push sink or the files of another, as its definition says."""

from __future__ import annotations

from collections.abc import Callable

from mmqjp.answers.outbox import Position
from mmqjp.sinks.definition import (
    AtomOptions,
    CommandOptions,
    JsonlOptions,
    MailOptions,
    ParquetOptions,
    SinkDefinition,
    WebhookOptions,
    named_secrets,
    path_of,
)
from mmqjp.sinks.files import GrowingFile
from mmqjp.sinks.secrets import Secrets
from mmqjp.sinks.sink import Receiver, Sink, Warn

Opener = Callable[[SinkDefinition, Position, Warn], Receiver | Sink]
"""Opens the receiver of a push sink, or another sink at a position."""


def open_destination(secrets: Secrets, definition: SinkDefinition, position: Position, warn: Warn) -> Receiver | Sink:
    """An Opener, given the secrets. Raises OSError and SecretError if the sink is unusable as configured."""
    secrets.check(named_secrets(definition.options))
    if definition.is_live and (path := path_of(definition.options)) is not None:
        path.parent.mkdir(exist_ok=True)  # the directory of the state that all live sinks share
    match definition.options:  # with libraries that only some kinds need
        case CommandOptions() as options:
            from mmqjp.sinks.webhook import CommandReceiver

            return CommandReceiver(options, secrets)
        case MailOptions() as options:
            from mmqjp.sinks.webhook import MailReceiver

            return MailReceiver(options, secrets)
        case WebhookOptions() as options:
            from mmqjp.sinks.webhook import WebhookReceiver

            return WebhookReceiver(options, secrets)
        case JsonlOptions() as options:
            return GrowingFile(options.path, position, warn)
        case ParquetOptions() as options:
            from mmqjp.sinks.parquet import ParquetSink

            return ParquetSink(options, position, warn)
        case AtomOptions() as options:
            from mmqjp.sinks.atom_files import AtomSink

            return AtomSink(definition.name, options, position, warn)


def shown_target(definition: SinkDefinition, secrets: Secrets) -> str:
    """Returns a sink's destination for display; of a secret URL only the host."""
    match definition.options:
        case WebhookOptions(url=url):
            return secrets.shown_address(url)
        case MailOptions(to=to):
            return ", ".join(to)
        case CommandOptions(command=command):
            return command[0]
        case JsonlOptions(path=path) | ParquetOptions(path=path) | AtomOptions(path=path):
            return str(path)
