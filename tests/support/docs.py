"""Runs the blocks of the documentation as a person would in a fresh clone, without a network, and the notebook in
examples/, and compares what they print with what is shown, or writes that into them.

python -m tests.support.docs --write [PAGE ...]
"""

import argparse
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import nbformat
from click.testing import CliRunner
from lxml import etree
from markdown_it import MarkdownIt
from markdown_it.token import Token
from nbclient import NotebookClient

from mmqjp.cli import main
from mmqjp.sinks.definition import read_tables
from tests.support import generated_pages
from tests.support.feed_server import FeedServer, running_server
from tests.support.places import ROOT
from tests.support.served import served
from xscl.parser import parse_script

RUN = {"sh", "console", "python", "sql", "xscl"}
"""Languages of blocks that are run."""

READ = {"toml", "json", "xml"}
"""Languages of blocks that are parsed."""

SHOWN = {"text", ""}
"""Languages of blocks that are only shown, or show what the block before them prints."""

PRINTING = {"python", "sql", "xscl"}
"""Languages of blocks whose output is a block of `text` right after them."""

DIRECTIVE = re.compile(r"<!-- *(not run|file|serves): *(.*?) *-->", re.DOTALL)

ADDRESS = "127.0.0.1:8765"  # where pages say that the page is, and which another process may have


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page.

    `at` has its lines, from 0. `not_run` is the reason why it is not run, `file` the name under which it is saved.
    `serves`: it runs until the end of the page. `printed` is the output that the page shows for it, and `printed_at`
    where; both are None if the page shows none.
    """

    page: Path
    at: slice
    language: str
    text: str
    not_run: str | None = None
    file: str | None = None
    serves: str | None = None
    printed: str | None = None
    printed_at: slice | None = None

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.at.start}"


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order, each with its directives and its output."""
    found: list[Block] = []
    for block, follows in _fences(page):
        is_output = follows and block.language == "text" and found and found[-1].printed is None
        if is_output and found[-1].language in PRINTING:
            found[-1] = replace(found[-1], printed=block.text, printed_at=block.at)
        else:
            found.append(block)
    return found


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a block `console`: lines after `$ `, which a backslash at the end continues; each with what
    follows it until the next one."""
    pieces = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    if pieces[0].strip():
        raise ValueError(f"{block.place}: a console block begins with `$ `")
    for piece in pieces[1:]:
        match = re.match(r"(?:[^\n]*\\\n)*[^\n]*\n?", piece)
        assert match is not None
        yield match[0].rstrip("\n"), piece[match.end() :]


def _fences(page: Path) -> Iterator[tuple[Block, bool]]:
    before: Token | None = None
    said: dict[str, str] = {}
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text("utf-8")):
        if token.type == "html_block":
            said |= dict(DIRECTIVE.findall(token.content))
            before = token
            continue
        if token.type == "fence" and token.map is not None:
            at = slice(token.map[0] + 1, token.map[1] - 1)
            told = said.get("not run"), said.get("file"), said.get("serves")
            block = Block(page, at, token.info.strip(), token.content, *told)
            yield block, before is not None and before.type == "fence"
        said = {}
        before = token


OURS = re.compile(r"(mmqjp (?:[^\"'|<>;&$*`]|\"[^\"$`]*\"|'[^']*')*)(?:\| ([^<>;&$`]*)|> (\S+))?", re.DOTALL)
"""Our program, perhaps with a pipeline or a file for its output. A shell runs other commands."""

ASKED = "--documents examples/feeds --feeds --format table"
"""What is asked with a query whose output a page shows."""

LONGEST = 120
"""The longest time for a command that is not ours, and for a cell, in seconds."""

FETCHING = 'allow-private = true\nspacing = "0s"\n'
"""Settings of the user whose feeds are on this machine."""

ENDINGS = {".rss": "rss+xml", ".atom": "atom+xml", ".rdf": "rdf+xml", ".json": "feed+json"}


class NotAsSaid(AssertionError):
    """A block that cannot be run, or a command that failed though the page shows no error."""


class Session:
    """A directory like a fresh clone, in which the blocks of one page are run. Make one with `session`."""

    def __init__(self, directory: Path, server: FeedServer) -> None:
        self.directory = directory
        self._names: dict[str, object] = {"__name__": "__main__"}
        self._served = ADDRESS
        self.until_the_end = ExitStack()
        self._addresses = _serve_examples(directory / "examples", server)

    def save(self, block: Block) -> None:
        assert block.file is not None
        path = self.directory / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, "utf-8")

    def serve(self, block: Block) -> None:
        """Runs a `mmqjp serve` until the end of the page, at another port."""
        program, command, _, state, *options = shlex.split(block.text)
        assert (program, command) == ("mmqjp", "serve"), block.place
        running = self.until_the_end.enter_context(served(Path(state), *options))
        self._served = running.url.partition("://")[2]

    def command(self, text: str) -> tuple[int, str]:
        """Runs a command. Returns its exit status, and what it prints, as a terminal would show it."""
        text = text.replace(ADDRESS, self._served)
        ours = OURS.fullmatch(text)
        if ours is None:
            return self._piped(text)
        with patch.object(sys, "argv", ["mmqjp"]):
            result = CliRunner().invoke(main, shlex.split(ours[1].replace("\\\n", " "))[1:], prog_name="mmqjp")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if ours[2] is None and ours[3] is None:
            return result.exit_code, self._shown(result.output)
        status, printed = self._piped(ours[2] or f"cat > {ours[3]}", result.stdout)
        return status or result.exit_code, self._shown(result.stderr) + printed

    def _piped(self, command: str, given: str = "") -> tuple[int, str]:
        ran = subprocess.run(
            ["bash", "-c", command],
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST,
        )
        return ran.returncode, self._shown(ran.stdout)

    def output(self, block: Block) -> str:
        """What a block of a language in PRINTING prints. Raises NotAsSaid if it cannot be run."""
        if block.language == "python":
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile(block.text, block.place, "exec"), self._names)
            return self._shown(printed.getvalue())
        if block.language == "sql":
            return self.succeed(block, f"mmqjp query {shlex.quote(block.text)} --state state/")
        parse_script(block.text)
        if block.printed is None:
            return ""
        (self.directory / "shown.xscl").write_text(block.text, "utf-8")
        return self.succeed(block, f"mmqjp run --queries shown.xscl {ASKED}")

    def succeed(self, block: Block, command: str) -> str:
        status, printed = self.command(command)
        if status:
            raise NotAsSaid(f"{block.place}: {command} failed with status {status}:\n{printed}")
        return printed

    def _shown(self, text: str) -> str:
        """What a command printed, with the addresses that the page's reader would see, and no blanks at line ends."""
        for there, named in {**self._addresses, self._served: ADDRESS}.items():
            text = text.replace(there, named)
        text = text.replace(f"{self.directory}/", "")
        return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def parse(block: Block) -> None:
    """Parses a block of a language in READ. Raises ValueError or etree.XMLSyntaxError."""
    if block.language == "toml":
        read_tables(tomllib.loads(block.text), Path("mmqjp.toml"))  # of its sinks, if it has any
    elif block.language == "json":
        for line in block.text.splitlines() if block.text.startswith("{") and "}\n{" in block.text else [block.text]:
            json.loads(line)
    else:
        etree.fromstring(block.text)


@contextmanager
def session(directory: Path) -> Iterator[Session]:
    """A session in an empty directory, which is the current one meanwhile."""
    shutil.copytree(ROOT / "examples", directory / "examples")
    home = directory / ".home"
    (home / ".config" / "mmqjp").mkdir(parents=True)
    (home / ".config" / "mmqjp" / "mmqjp.toml").write_text(FETCHING, "utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"HOME": str(home), "PATH": path, "TZ": "UTC", "COLUMNS": "100", "PYTHONPATH": str(ROOT)}
    with patch.dict(os.environ, environment), chdir(directory), running_server() as server:
        os.environ.pop("XDG_CONFIG_HOME", None)
        time.tzset()
        opened = Session(directory, server)
        with opened.until_the_end:
            yield opened
    time.tzset()


def _serve_examples(examples: Path, server: FeedServer) -> dict[str, str]:
    """Serves the example feeds on loopback and makes the OPML file name them there.

    Returns the addresses that the file named, by those of the server.
    """
    found = {}
    by_address = {_own_address(path): path for path in (examples / "feeds").iterdir()}
    opml = (examples / "feeds.opml").read_text("utf-8")
    for address, path in by_address.items():
        kind = f"application/{ENDINGS[path.suffix]}"
        served = server.serve("/" + address.partition("//")[2], path.read_bytes(), Content_Type=kind)
        opml = opml.replace(f'"{address}"', f'"{served}"')
        found[served] = address
    (examples / "feeds.opml").write_text(opml, "utf-8")
    return found


def _own_address(path: Path) -> str:
    if path.suffix == ".json":
        return str(json.loads(path.read_text("utf-8"))["feed_url"])
    links = etree.parse(path).iter("{http://www.w3.org/2005/Atom}link")
    return next(str(link.get("href")) for link in links if link.get("rel") == "self")


DOCS = ROOT / "docs"
GENERATED = {DOCS / "cli.md": generated_pages.cli_page, DOCS / "tables.md": generated_pages.tables_page}
"""Pages that are made, and what makes them."""

PAGES = [ROOT / "README.md", *sorted(set(DOCS.glob("*.md")) - GENERATED.keys())]
"""Pages that are written by hand."""


@dataclass(frozen=True, slots=True)
class Difference:
    place: str
    at: slice
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
    elif block.serves is not None:
        opened.serve(block)
    elif block.language == "sh":
        for command in re.split(r"(?<!\\)\n", block.text.rstrip("\n")):
            if command and not command.startswith("#"):
                opened.succeed(block, command)
    elif block.language == "console":
        found = [(text, shown, *opened.command(text)) for text, shown in commands(block)]
        for text, shown, status, printed in found:
            if status and not shown:
                raise NotAsSaid(f"{block.place}: {text} failed with status {status}:\n{printed}")
        if not all(agree(shown, printed) for _, shown, _, printed in found):
            kept = "".join(f"$ {text}\n{_merged(shown, printed)}" for text, shown, _, printed in found)
            yield Difference(block.place, block.at, block.text, kept)
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
    found = sorted(differences(page), key=lambda difference: difference.at.start, reverse=True)
    lines = page.read_text("utf-8").splitlines(keepends=True)
    for difference in found:
        lines[difference.at] = difference.printed.splitlines(keepends=True)
    if found:
        page.write_text("".join(lines), "utf-8")
    return len(found)


NOTEBOOK = ROOT / "examples" / "first-hour.ipynb"


def run_notebook() -> tuple[nbformat.NotebookNode, nbformat.NotebookNode]:
    """Returns the notebook as it is, and as it is after a run. Raises CellExecutionError for a cell that fails."""
    shown = nbformat.read(NOTEBOOK, as_version=4)
    ran = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as directory, session(Path(directory).resolve()):
        settings = {"metadata": {"path": str(Path(directory) / "examples")}}
        NotebookClient(ran, timeout=LONGEST, resources=settings, record_timing=False).execute()
    return shown, ran


def printed_cells(notebook: nbformat.NotebookNode) -> list[str]:
    cells = (cell for cell in notebook.cells if cell.cell_type == "code")
    return ["".join(output.get("text", "") for output in cell.outputs).rstrip() for cell in cells]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare what the documentation shows with what is printed.")
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES, help="default: all")
    parser.add_argument("--write", action="store_true", help="write what is printed into the pages")
    chosen = parser.parse_args()
    if chosen.write:
        for made, text in GENERATED.items():
            made.write_text(text(), "utf-8")
        if chosen.pages is PAGES:
            nbformat.write(run_notebook()[1], NOTEBOOK)
    for page in chosen.pages:
        if chosen.write:
            print(f"{page}: {write(page.resolve())} blocks changed")
            continue
        for difference in differences(page.resolve()):
            print(f"{difference.place} shows:\n{difference.shown}\nand it prints:\n{difference.printed}")
