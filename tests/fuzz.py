"""Fuzzes the readers of text from outside, guided by which lines of ours run: `make fuzz READER=feeds`. An input that
raises anything but an InputError ends the run and is in `crash-...` in the current directory, as is one that takes more
than `-timeout` seconds."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import atheris  # `make fuzz` installs it

with atheris.instrument_imports(include=["feeds", "xscl", "mmqjp.sinks", "mmqjp.commands", "common"]):
    # Before anything else that imports them.
    import click

    from common.errors import InputError
    from feeds.feed import read_feed
    from feeds.items import Origin
    from mmqjp.cli import main as cli
    from mmqjp.commands.configuration import configured
    from xscl.parser import parse_script

from tests.support.docs import PAGES, blocks
from tests.support.places import ROOT


def read_queries(data: bytes) -> None:
    parse_script(data.decode("utf-8", "replace"))


def read_feeds(data: bytes) -> None:
    for form in ("item", "raw"):
        _, found = read_feed(data, Origin("fuzz", 0, "https://example.org/feed"), form)
        for _ in found:
            pass


def read_configuration(data: bytes) -> None:
    path = Path(".cache", "fuzz", "mmqjp.toml")
    path.write_bytes(data)
    configured(cli, path)


READERS = {"queries": read_queries, "feeds": read_feeds, "configuration": read_configuration}


def seeds(reader: str) -> Iterator[bytes]:
    """What the documentation shows of it, and the feeds of the demonstration."""
    language = {"queries": "xscl", "feeds": "xml", "configuration": "toml"}[reader]
    for page in PAGES:
        yield from (block.text.encode() for block in blocks(page) if block.language == language)
    if reader == "feeds":
        files = (ROOT / "mmqjp" / "demo").iterdir()
        yield from (path.read_bytes() for path in files if path.suffix in (".xml", ".atom", ".rdf", ".json"))


def fuzz() -> None:
    reader = sys.argv.pop(1)
    corpus = Path(".cache", "fuzz", reader)
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(reader)):
        (corpus / f"seed-{number}").write_bytes(seed)
    read = READERS[reader]

    def run(data: bytes) -> None:
        with suppress(InputError, click.UsageError):
            read(data)

    atheris.Setup([*sys.argv, str(corpus)], run)
    atheris.Fuzz()


if __name__ == "__main__":
    fuzz()
