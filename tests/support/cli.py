"""Helpers for tests of the command line: a way to call it, and the documents of a small story."""

import io
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from mmqjp.cli import main

QUERIES = """\
-- Books and the blogs that name their authors.
FROM S//book->x1[./author->x2] FOLLOWED BY {x2 = x5, 7 d} S//blog->x4[./author->x5] PUBLISH book_blog;
FROM S//blog->b[./author = "Ada"]
"""

DOCUMENTS = [
    {"id": "d1", "time": "2026-01-01T00:00:00Z", "xml": "<book><author>Ada</author></book>"},
    {"id": "d2", "time": "2026-01-02T00:00:00Z", "xml": "<book><author>Bob</author></book>"},
    {"id": "d3", "time": "2026-01-03T00:00:00Z", "xml": "<blog><author>Ada</author></blog>"},
    {"id": "d4", "time": "2026-01-04T00:00:00Z", "xml": "<blog><author>Bob</author></blog>"},
]

LINES = [
    '{"id": "a0df21d7e667b76992690b466ebc7a69", "seq": 0, '
    '"query": "book_blog", "t0": 1767225600000000, "t1": 1767398400000000, "documents": ["d1", "d3"], '
    '"streams": ["S", "S"], "nodes": {"x1": 0, "x4": 0}, "xml": "<match query=\\"book_blog\\" '
    't0=\\"1767225600000000\\" t1=\\"1767398400000000\\"><book><author>Ada</author></book>'
    '<blog><author>Ada</author></blog></match>"}',
    '{"id": "ccb07b811c8c511cc35d0dd191712030", "seq": 1, '
    '"query": "q2", "t0": 1767398400000000, "t1": 1767398400000000, "documents": ["d3"], '
    '"streams": ["S"], "nodes": {"b": 0}, "xml": "<match query=\\"q2\\" '
    't0=\\"1767398400000000\\" t1=\\"1767398400000000\\"><blog><author>Ada</author></blog></match>"}',
    '{"id": "e04ec716534ecf9e591d3d4518986440", "seq": 2, '
    '"query": "book_blog", "t0": 1767312000000000, "t1": 1767484800000000, "documents": ["d2", "d4"], '
    '"streams": ["S", "S"], "nodes": {"x1": 0, "x4": 0}, "xml": "<match query=\\"book_blog\\" '
    't0=\\"1767312000000000\\" t1=\\"1767484800000000\\"><book><author>Bob</author></book>'
    '<blog><author>Bob</author></blog></match>"}',
]
"""What `run` writes for QUERIES over DOCUMENTS."""

PROGRAM = [sys.executable, "-c", "from mmqjp.cli import main; main(prog_name='mmqjp')"]
"""The command that runs the command line as a process; arguments follow."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def mmqjp(*arguments: str | Path, input: str | None = None) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=input)


def printed(*arguments: str | Path) -> str:
    """The standard output of a command that succeeds without a word on standard error."""
    result = mmqjp(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout_bytes.decode()


def refused(*arguments: str | Path, status: int = 1, input: str | None = None) -> str:
    """The one line in which a command that prints nothing says what is wrong."""
    result = mmqjp(*arguments, input=input)
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    assert result.stderr.startswith("mmqjp: error: ") and result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def run_on(directory: Path, *options: str | Path, queries: str | None = QUERIES, documents: Any = DOCUMENTS) -> Result:
    """`mmqjp run` on DuckDB. The queries, unless the state has them, and the documents are written into a directory."""
    given = () if queries is None else ("--queries", write_queries(directory, queries))
    path = write_documents(directory / "documents.jsonl", documents)
    return mmqjp("run", "--engine", "duckdb", *given, "--documents", path, *options)


def write_queries(directory: Path, text: str = QUERIES) -> Path:
    path = directory / "queries.xscl"
    path.write_text(text, "utf-8")
    return path


def write_documents(path: Path, documents: Iterable[Mapping[str, str]] = DOCUMENTS) -> Path:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents), "utf-8")
    return path
