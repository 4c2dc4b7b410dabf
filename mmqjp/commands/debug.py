"""The option --debug, which the program and all its commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mmqjp.commands.failure import DEBUG

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def debug_option(command: Decorated) -> Decorated:
    """The option --debug. It may stand before or after the name of the command."""

    def note(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value:
            context.meta[DEBUG] = True

    text = "Print a traceback with an error."
    return click.option("--debug", is_flag=True, expose_value=False, is_eager=True, callback=note, help=text)(command)
