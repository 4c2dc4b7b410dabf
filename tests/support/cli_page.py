"""Makes docs/cli.md: every command, its options and their defaults, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from mmqjp.cli import main

HEAD = """\
# Commands

<!-- Made by `python -m tests.support.docs --write`. Do not edit. -->

Every command has `--help`, and `--debug`, which prints a traceback with an error. The exit status is 0 if all went
well, 1 if the work failed, 2 if the command was called wrongly, and 130 on Ctrl-C.
[Operations](operations.md#configuration) says how a configuration file sets options.
"""


def page() -> str:
    """The text of the page."""
    return HEAD + "".join(_section(words, command) for words, command in [((), main), *_commands(main)])


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command below a group that is not hidden, with the words that call it."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))


def _section(words: tuple[str, ...], command: click.Command) -> str:
    name = " ".join(("mmqjp", *words))
    context = click.Context(command, info_name=name, help_option_names=["-h", "--help"])
    usage = " ".join(["mmqjp", *words, *command.collect_usage_pieces(context)])
    options = [option for option in command.get_params(context) if isinstance(option, click.Option)]
    rows = "".join(
        f"| {_names(option, context)} | {_help(option, context)} |\n" for option in options if _listed(option)
    )
    table = f"\n| Option | |\n| --- | --- |\n{rows}" if rows else ""
    return f"\n## {name}\n\n```text\n{usage}\n```\n\n{_described(command)}{table}"


def _described(command: click.Command) -> str:
    """The help of a command as paragraphs, and its examples as a block."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", _dedented(command.help or "")):
        first, *rest = paragraph.removeprefix("\b\n").splitlines()
        if paragraph.startswith("\b"):
            lines = "\n".join(line.removeprefix("  ") for line in rest)
            paragraphs.append(f"{first}\n\n```text\n{lines}\n```\n")
        else:
            paragraphs.append(_escaped(" ".join(line.strip() for line in [first, *rest])) + "\n")
    return "\n".join(paragraphs)


def _dedented(text: str) -> str:
    """Help without the indentation of its docstring. (A `\\b` stands at the margin.)"""
    return "\n".join(line.removeprefix("    ") for line in text.strip().splitlines())


def _listed(option: click.Option) -> bool:
    return not option.hidden and not {"--help", "--debug"} & set(option.opts)


def _names(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record is not None
    return f"`{record[0]}`".replace("|", "\\|")


def _help(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record is not None
    return _escaped(re.sub(r" {2,}", " ", record[1]))


def _escaped(text: str) -> str:
    """Text for Markdown, in a table or outside."""
    return re.sub(r"([|*<_])", r"\\\1", text)
