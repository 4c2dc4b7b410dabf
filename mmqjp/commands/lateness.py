"""The options --lateness and --settle: one value for all streams, and others for single streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from mmqjp.commands.options import duration
from mmqjp.documents.watermarks import OTHER_STREAMS, Lateness

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class LatenessType(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    """`1h`, for all streams, or `STREAM=2h`. In a configuration file, also a table."""

    name = "lateness"
    takes_table = True  # see `mmqjp.commands.configuration`

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[str, int | None]:
        """Returns the stream (OTHERS: all) and the lateness in microseconds (None: INF)."""
        if isinstance(value, tuple):  # click may convert twice
            return value
        assert parameter is not None and context is not None, "click names what it converts"
        stream, _, text = str(value).rpartition("=")
        return stream or OTHER_STREAMS, duration(context, parameter, text)


def lateness_option(default: str) -> Callable[[Decorated], Decorated]:
    """The option --lateness. `default` applies to streams that are not named."""
    return _option(
        "--lateness",
        default,
        f"How late a document may arrive, like 1h, or on one stream, like news=2h. INF: no limit. {_REPEATED}",
    )


def settle_option(default: str) -> Callable[[Decorated], Decorated]:
    """The option --settle. `default` applies to streams that are not named."""
    return _option(
        "--settle",
        default,
        "How long events wait for earlier ones before event queries are answered, like 10min, or on one stream, like "
        f"news=2h. INF: to the end of the run. {_REPEATED}",
    )


def settle_is_given() -> bool:
    """Whether the command that runs was given --settle, also in a configuration file."""
    source = click.get_current_context().get_parameter_source("settle")
    return source is not None and source is not ParameterSource.DEFAULT


_REPEATED = "May be repeated."


def _option(name: str, default: str, help: str) -> Callable[[Decorated], Decorated]:
    def together(
        context: click.Context, parameter: click.Parameter, values: tuple[tuple[str, int | None], ...]
    ) -> Lateness:
        found = dict(values)
        if len(found) < len(values):
            raise click.BadParameter(
                "a stream is named twice; write DURATION once for all streams, and STREAM=DURATION once for each other"
            )
        others = found.pop(OTHER_STREAMS, duration(context, parameter, default))
        return {OTHER_STREAMS: others, **found} if found else others

    return click.option(
        name,
        metavar="[STREAM=]DURATION",
        multiple=True,
        type=LatenessType(),
        callback=together,
        help=f"{help}  [default: {default}]",
    )
