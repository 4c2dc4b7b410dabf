"""Opens what a definition of a sink describes: the receiver of a push kind."""

from __future__ import annotations

from mmqjp.sinks.definition import SinkDefinition
from mmqjp.sinks.message import Receiver
from mmqjp.sinks.options import CommandOptions, MailOptions
from mmqjp.sinks.secrets import Secrets


def open_receiver(definition: SinkDefinition, secrets: Secrets) -> Receiver:
    """Opens the receiver of a push sink. Raises OSError and SecretError if it cannot be used as it is configured."""
    # Each is imported here, since it brings libraries that only its kind needs.
    match definition.options:
        case CommandOptions() as options:
            from mmqjp.sinks.command import CommandReceiver

            return CommandReceiver(options, secrets)
        case MailOptions() as options:
            from mmqjp.sinks.mail import MailReceiver

            return MailReceiver(options, secrets)
    raise AssertionError(f"{definition.kind} is no push kind")
