"""Makes docs/cli.md from the commands, and docs/tables.md from a store and what its tables and columns mean."""

import re
import tempfile
import tomllib
from collections.abc import Iterator

import click
import pyarrow as pa

import mmqjp
from join_stage.protocol import BOUND_STORE
from mmqjp.cli import main
from mmqjp.tables.schema import SCHEMA, SPARK_VIEWS
from tests.support.places import DATA

CLI_HEAD = """\
# Commands

<!-- Made by `python -m tests.support.docs --write`. Do not edit. -->

Every command has `--help`, and `--debug`, which prints a traceback with an error. The exit status is 0 if all went
well, 1 if the work failed, 2 if the command was called wrongly, and 130 on Ctrl-C.
[Operations](operations.md#configuration) says how a configuration file sets options.
"""


def cli_page() -> str:
    return CLI_HEAD + "".join(_command_section(words, command) for words, command in [((), main), *_commands(main)])


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command below a group that is not hidden, with the words that call it."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))


def _command_section(words: tuple[str, ...], command: click.Command) -> str:
    name = " ".join(("mmqjp", *words))
    context = click.Context(command, info_name=name, help_option_names=["-h", "--help"])
    usage = " ".join(["mmqjp", *words, *command.collect_usage_pieces(context)])
    rows = ""
    for option in command.get_params(context):
        listed = isinstance(option, click.Option) and not option.hidden and not {"--help", "--debug"} & {*option.opts}
        if listed and (record := option.get_help_record(context)) is not None:
            names, text = record[0].replace("|", r"\|"), re.sub(r" {2,}", " ", record[1])
            rows += f"| `{names}` | {_escaped(text)} |\n"
    table = f"\n| Option | |\n| --- | --- |\n{rows}" if rows else ""
    return f"\n## {name}\n\n```text\n{usage}\n```\n\n{_described(command)}{table}"


def _described(command: click.Command) -> str:
    paragraphs = []
    # Without the indentation of its docstring. (A `\b` stands at the margin.)
    text = "\n".join(line.removeprefix("    ") for line in (command.help or "").strip().splitlines())
    for paragraph in re.split(r"\n\s*\n", text):
        first, *rest = paragraph.removeprefix("\b\n").splitlines()
        if paragraph.startswith("\b"):
            lines = "\n".join(line.removeprefix("  ") for line in rest)
            paragraphs.append(f"{first}\n\n```text\n{lines}\n```\n")
        else:
            paragraphs.append(_escaped(" ".join(line.strip() for line in [first, *rest])) + "\n")
    return "\n".join(paragraphs)


def _escaped(text: str) -> str:
    return re.sub(r"([|*<_])", r"\\\1", text)


_FOUND = tomllib.loads((DATA / "table_meanings.toml").read_text("utf-8"))

MEANINGS: dict[str, tuple[str, dict[str, str]]] = {
    name: (found["is"], found["columns"]) for name, found in _FOUND["meanings"].items()
}
"""What users may rely on: the meaning of each table or view, and of its columns."""

MEANT = {"costs": dict(zip(MEANINGS["costs"][1], ("integer", "text", "integer", "number", "integer"), strict=True))}
"""The types of the columns of views that a DuckDB store does not have."""

BEHIND: dict[str, str] = _FOUND["behind"]
"""What else a store has."""

TABLES_HEAD = """\
# Tables

<!-- Made by `python -m tests.support.docs --write`. Do not edit. -->

A state directory holds these tables and views. `mmqjp query "SELECT ..." --state DIR` reads them. So does any DuckDB
client that opens `DIR/mmqjp.duckdb` while no other process has it, and any Spark session after `attach`, where they are
in the database `mmqjp` ([Python](python.md)). Times are microseconds since 1970, in UTC. A docid is the number of a
document in the store.
"""

TABLES_TAIL = """
## Behind them

These hold what the views above are made of, and what a store needs to go on after a restart. They may change with every
version.

| Table | What it holds |
| --- | --- |
"""

QUERY = "FROM S//item->a[./title->t1] JOIN {t1 = t2, 1 d} S//item->b[./title->t2]"
"""A query, so that the store has a table of a template."""

TYPE_NAMES = {
    pa.int64(): "integer",
    pa.int32(): "integer",
    pa.string(): "text",
    pa.binary(): "bytes",
    pa.bool_(): "boolean",
    pa.float64(): "number",
}


def tables_page() -> str:
    with tempfile.TemporaryDirectory() as directory, mmqjp.Engine("duckdb", state=directory, quiet=True) as engine:
        engine.subscribe(QUERY)
        parts = [TABLES_HEAD]
        for name, (meaning, columns) in MEANINGS.items():
            found = MEANT[name] if name in SPARK_VIEWS else _types(engine, "r_t_0" if name == "r_t_N" else name)
            parts.append(_table_section(name, meaning, columns, found))
    parts.append(TABLES_TAIL)
    parts += [f"| `{name}` | {meaning} |\n" for name, meaning in BEHIND.items()]
    return "".join(parts)


def undescribed() -> set[str]:
    """Tables and views of a store that the page leaves out, and names on it that no store has."""
    there = {*SCHEMA.tables, *SCHEMA.views, *BOUND_STORE.tables, *BOUND_STORE.views, *SPARK_VIEWS, "r_t_N"}
    return there ^ (MEANINGS.keys() | BEHIND.keys())


def _types(engine: mmqjp.Engine, name: str) -> dict[str, str]:
    found = engine.sql(f"SELECT * FROM {name} LIMIT 0", trusted=True).schema
    return {field.name: _type(field.type) for field in found}


def _type(kind: pa.DataType) -> str:
    return f"list of {_type(kind.value_type)}s" if pa.types.is_list(kind) else TYPE_NAMES[kind]


def _table_section(name: str, meaning: str, columns: dict[str, str], types: dict[str, str]) -> str:
    if columns.keys() - types.keys():
        raise ValueError(f"{name} has no column {columns.keys() - types.keys()}")
    rows = "".join(f"| `{column}` | {kind} | {columns[column]} |\n" for column, kind in types.items())
    return f"\n## {name}\n\n{meaning}\n\n| Column | Type | |\n| --- | --- | --- |\n{rows}"
