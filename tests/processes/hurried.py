"""The command line with a clock that runs fast: `python -m tests.processes.hurried SPEED SEAM ARGUMENT...`.

Waits of minutes and hours are over soon, and a receiver that is silent is soon given up. A SEAM is a place of `seams`
and a number: the process is killed there, at the call with that number. "" is none.
"""

import sys
import time
from typing import Any

import feeds.documents

SILENCE, ATTEMPT = 0.5, 2.0
"""Real seconds in which a receiver must say something, and have said all."""


def hurry(speed: int) -> None:
    """Makes the clock run so many times as fast, for all that is imported from now on."""
    begun = time.time_ns() // 1000
    feeds.documents.now_us = lambda: begun + (time.time_ns() // 1000 - begun) * speed


def lose_patience() -> None:
    """Lets no receiver be silent for long."""
    from mmqjp.sinks.webhook import CommandReceiver, MailReceiver, WebhookReceiver

    patience: list[tuple[type, dict[str, float]]] = [
        (WebhookReceiver, {"silence": SILENCE, "attempt": ATTEMPT}),
        (MailReceiver, {"silence": SILENCE, "attempt": ATTEMPT}),
        (CommandReceiver, {"seconds": ATTEMPT}),
    ]
    for kind, limits in patience:

        def opened(self: Any, *given: Any, made: Any = kind.__init__, limits: Any = limits) -> None:  # type: ignore[misc]  # of a type
            made(self, *given, **limits)

        kind.__init__ = opened  # type: ignore[misc]  # a seam for tests


def seams() -> dict[str, tuple[tuple[type, str], bool]]:
    """Places around the sending of a webhook's message: a call, and whether the process is killed after it."""
    from mmqjp.sinks.positions import Course
    from mmqjp.sinks.webhook import WebhookReceiver

    return {
        "before the send": ((WebhookReceiver, "send"), False),
        "after the send": ((WebhookReceiver, "send"), True),
        "before the note": ((Course, "acknowledged"), True),
        "after the note": ((Course, "was_noted"), False),
    }


def main(speed: str, seam: str, *arguments: str) -> None:
    assert not any(name.startswith("mmqjp") for name in sys.modules), "what is imported has the other clock"
    hurry(int(speed))
    from tests.support.faults import arm, kill

    lose_patience()
    if seam:
        place, _, calls = seam.rpartition(" ")
        point, after = seams()[place]
        arm(point, kill, int(calls), after=after)
    from mmqjp.cli import main as command

    command(list(arguments), prog_name="mmqjp")


if __name__ == "__main__":
    main(*sys.argv[1:])
