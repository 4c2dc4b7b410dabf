"""Runs the blocks of a page one after another, as a person would in a fresh clone, without a network."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from click.testing import CliRunner
from lxml import etree

from mmqjp.cli import main
from mmqjp.sinks.definition import read_tables
from tests.support.doc_blocks import Block
from tests.support.feed_server import FeedServer, running_server
from tests.support.places import ROOT
from xscl.parser import parse_script

OURS = re.compile(r"(mmqjp (?:[^\"'|<>;&$*`]|\"[^\"$`]*\"|'[^']*')*)(?:\| ([^<>;&$`]*)|> (\S+))?", re.DOTALL)
"""Our program, perhaps with a pipeline or a file for its output. A shell runs other commands."""

ASKED = "--documents examples/feeds --feeds --format table"
"""What is asked with a query whose output a page shows."""

LONGEST = 120
"""The longest time for a command that is not ours, in seconds."""

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
        self._addresses = _serve_examples(directory / "examples", server)

    def save(self, block: Block) -> None:
        """Saves a block under the name that the page gives it."""
        assert block.file is not None
        path = self.directory / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, "utf-8")

    def command(self, text: str) -> tuple[int, str]:
        """Runs a command. Returns its exit status, and what it prints, as a terminal would show it."""
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
            return self._succeed(block, f"mmqjp query {shlex.quote(block.text)} --state state/")
        parse_script(block.text)
        if block.printed is None:
            return ""
        (self.directory / "shown.xscl").write_text(block.text, "utf-8")
        return self._succeed(block, f"mmqjp run --queries shown.xscl {ASKED}")

    def _succeed(self, block: Block, command: str) -> str:
        status, printed = self.command(command)
        if status:
            raise NotAsSaid(f"{block.place}: {command} failed with status {status}:\n{printed}")
        return printed

    def _shown(self, text: str) -> str:
        """What a command printed, with the addresses that the page's reader would see, and no blanks at line ends."""
        for served, named in self._addresses.items():
            text = text.replace(served, named)
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
        yield Session(directory, server)
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
    """The address that a feed gives for itself."""
    if path.suffix == ".json":
        return str(json.loads(path.read_text("utf-8"))["feed_url"])
    links = etree.parse(path).iter("{http://www.w3.org/2005/Atom}link")
    return next(str(link.get("href")) for link in links if link.get("rel") == "self")
