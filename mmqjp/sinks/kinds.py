"""Opens the receiver of a push sink or the files of another, as its definition says."""

from __future__ import annotations

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
)
from mmqjp.sinks.files import GrowingFile
from mmqjp.sinks.secrets import Secrets
from mmqjp.sinks.sink import Receiver, Sink, Warn


class Kinds:
    """Opens sinks for the deliverer, with the secrets they name."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def receiver(self, definition: SinkDefinition) -> Receiver:
        """Opens a push sink. Raises OSError and SecretError if it is unusable as configured."""
        from mmqjp.sinks import webhook  # which brings libraries that only push kinds need

        self._secrets.check(named_secrets(definition.options))
        match definition.options:
            case CommandOptions() as options:
                return webhook.CommandReceiver(options, self._secrets)
            case MailOptions() as options:
                return webhook.MailReceiver(options, self._secrets)
            case WebhookOptions() as options:
                return webhook.WebhookReceiver(options, self._secrets)
        raise AssertionError(f"{definition.kind} is no push kind")

    def file_sink(self, definition: SinkDefinition, position: Position, warn: Warn) -> Sink:
        """Opens a sink of files at a position. Raises OSError."""
        options = definition.options
        if definition.is_live and isinstance(options, JsonlOptions | ParquetOptions | AtomOptions):
            options.path.parent.mkdir(exist_ok=True)  # the directory of the state that all live sinks share
        match options:
            case JsonlOptions():
                return GrowingFile(options.path, position, warn)
            case ParquetOptions():
                from mmqjp.sinks.parquet import ParquetSink

                return ParquetSink(options, position, warn)
            case AtomOptions():
                from mmqjp.sinks.atom_files import AtomSink

                return AtomSink(definition.name, options, position, warn)
        raise AssertionError(f"{definition.kind} is no kind of files")


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
