"""Compares what the documentation shows with what its blocks print, or writes that into it.

python -m tests.support.docs --write [PAGE ...]
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import cli_page, notebook, tables_page
from tests.support.doc_blocks import READ, RUN, SHOWN, Block, Lines, blocks, commands, written
from tests.support.doc_session import NotAsSaid, Session, parse, session
from tests.support.places import ROOT

DOCS = ROOT / "docs"
GENERATED = {DOCS / "cli.md": cli_page.page, DOCS / "tables.md": tables_page.page}
"""Pages that are made, and what makes them."""

PAGES = [ROOT / "README.md", *sorted(set(DOCS.glob("*.md")) - GENERATED.keys())]
"""Pages that are written by hand."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Lines of a page that show something else than what is printed."""

    place: str
    at: Lines
    shown: str
    printed: str


def differences(page: Path) -> Iterator[Difference]:
    """Runs the blocks of a page, in a directory of their own. Raises NotAsSaid for one that cannot be run."""
    with tempfile.TemporaryDirectory() as directory, session(Path(directory).resolve()) as opened:
        for block in blocks(page):
            if block.language not in RUN | READ | SHOWN:
                raise NotAsSaid(f"{block.place}: blocks of {block.language!r} are not known: see tests/support")
            if block.file is not None:
                opened.save(block)
            if block.not_run is None:
                yield from _differences(opened, block)


def _differences(opened: Session, block: Block) -> Iterator[Difference]:
    if block.language in READ:
        parse(block)
    elif block.language == "sh":
        for command in re.split(r"(?<!\\)\n", block.text.rstrip("\n")):
            status, printed = opened.command(command) if command and not command.startswith("#") else (0, "")
            if status:
                raise NotAsSaid(f"{block.place}: {command} failed with status {status}:\n{printed}")
    elif block.language == "console":
        found = [(command, *opened.command(command.text)) for command in commands(block)]
        for command, status, printed in found:
            if status and not command.printed:
                raise NotAsSaid(f"{block.place}: {command.text} failed with status {status}:\n{printed}")
        if not all(agree(command.printed, printed) for command, _, printed in found):
            kept = [(command, _merged(command.printed, printed)) for command, _, printed in found]
            yield Difference(block.place, block.at, block.text, written(kept))
    elif block.language in RUN:
        printed = opened.output(block)
        if block.printed is not None and block.printed_at is not None and not agree(block.printed, printed):
            yield Difference(block.place, block.printed_at, block.printed, _merged(block.printed, printed))


def agree(shown: str, printed: str) -> bool:
    """Whether a page may show `shown` for what is printed.

    `...` stands for any text, and on a line alone for any lines.

    >>> agree("1 match in ... s\\n", "1 match in 0.3 s\\n")
    True
    >>> agree("one\\n...\\n", "one\\ntwo\\nthree\\n"), agree("one\\n", "one\\ntwo\\n")
    (True, False)
    """
    lines = ("(?:.*\n)*" if line.strip() == "..." else _line(line) + "\n" for line in shown.splitlines())
    return re.fullmatch("".join(lines), printed) is not None


def _merged(shown: str, printed: str) -> str:
    """What is printed, with the `...` of what a page showed for it: between as many lines, or in as many lines."""
    if agree(shown, printed):
        return shown
    old, new = shown.splitlines(keepends=True), printed.splitlines(keepends=True)
    if old.count("...\n") == 1 and len(old) <= len(new):
        before = old.index("...\n")
        return "".join([*new[:before], "...\n", *new[len(new) - (len(old) - before - 1) :]])
    if len(old) != len(new):
        return printed
    return "".join(one if agree(one, other) else other for one, other in zip(old, new, strict=True))


def _line(line: str) -> str:
    return ".*".join(map(re.escape, line.rstrip().split("...")))


def write(page: Path) -> int:
    """Writes into a page what its blocks print. Returns how many blocks have changed."""
    found = sorted(differences(page), key=lambda difference: difference.at.first, reverse=True)
    lines = page.read_text("utf-8").splitlines(keepends=True)
    for difference in found:
        lines[difference.at.first : difference.at.end] = difference.printed.splitlines(keepends=True)
    if found:
        page.write_text("".join(lines), "utf-8")
    return len(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare what the documentation shows with what is printed.")
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES, help="default: all")
    parser.add_argument("--write", action="store_true", help="write what is printed into the pages")
    chosen = parser.parse_args()
    if chosen.write:
        for made, text in GENERATED.items():
            made.write_text(text(), "utf-8")
        if chosen.pages is PAGES:
            notebook.write()
    for page in chosen.pages:
        if chosen.write:
            print(f"{page}: {write(page.resolve())} blocks changed")
            continue
        for difference in differences(page.resolve()):
            print(f"{difference.place} shows:\n{difference.shown}\nand it prints:\n{difference.printed}")
