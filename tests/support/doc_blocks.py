"""The fenced blocks of a page of the documentation, and what each is said to print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

RUN = {"sh", "console", "python", "sql", "xscl"}
"""Languages of blocks that are run."""

READ = {"toml", "json", "xml"}
"""Languages of blocks that are parsed."""

SHOWN = {"text", ""}
"""Languages of blocks that are only shown, or show what the block before them prints."""

PRINTING = {"python", "sql", "xscl"}
"""Languages of blocks whose output is a block of `text` right after them."""

DIRECTIVE = re.compile(r"<!-- *(not run|file): *(.*?) *-->", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a page that hold something: from `first` on and before `end`, from 0."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page.

    `not_run` is the reason why it is not run, `file` the name under which it is saved, `printed` the output that the
    page shows for it, and `printed_at` where; both are None if the page shows none.
    """

    page: Path
    at: Lines
    language: str
    text: str
    not_run: str | None = None
    file: str | None = None
    printed: str | None = None
    printed_at: Lines | None = None

    @property
    def place(self) -> str:
        """The page and the line, from 1, of the block's fence."""
        return f"{self.page.name}:{self.at.first}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a block `console`, with what follows it until the next one."""

    text: str
    printed: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order, each with its directives and its output."""
    return list(_with_output(_fences(page)))


def commands(block: Block) -> list[Command]:
    """The commands of a block `console`: lines after `$ `, which a backslash at the end continues."""
    found: list[Command] = []
    pieces = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    if pieces[0].strip():
        raise ValueError(f"{block.place}: a console block begins with `$ `")
    for piece in pieces[1:]:
        match = re.match(r"(?:[^\n]*\\\n)*[^\n]*\n?", piece)
        assert match is not None
        found.append(Command(match[0].rstrip("\n"), piece[match.end() :]))
    return found


def written(found: list[tuple[Command, str]]) -> str:
    """The text of a block `console` whose commands print what is given."""
    return "".join(f"$ {command.text}\n{printed}" for command, printed in found)


def _fences(page: Path) -> Iterator[tuple[Block, bool]]:
    """The blocks of a page, and whether each comes right after another one."""
    before: Token | None = None
    said: dict[str, str] = {}
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text("utf-8")):
        if token.type == "html_block":
            said |= dict(DIRECTIVE.findall(token.content))
            before = token
            continue
        if token.type == "fence" and token.map is not None:
            at = Lines(token.map[0] + 1, token.map[1] - 1)
            block = Block(page, at, token.info.strip(), token.content, said.get("not run"), said.get("file"))
            yield block, before is not None and before.type == "fence"
        said = {}
        before = token


def _with_output(fences: Iterator[tuple[Block, bool]]) -> Iterator[Block]:
    held: Block | None = None
    for block, follows in fences:
        if held is not None and follows and block.language == "text" and held.language in PRINTING:
            yield replace(held, printed=block.text, printed_at=block.at)
            held = None
            continue
        if held is not None:
            yield held
        held = block
    if held is not None:
        yield held
