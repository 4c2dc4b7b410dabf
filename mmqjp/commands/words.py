"""`mmqjp words`: learns the weights of words that similar() uses to compare texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from common.files import make_state
from feeds.documents import Document
from feeds.feed import EntryForm
from feeds.tail import read_documents
from mmqjp.commands import options
from mmqjp.commands.command_line import debug_option
from mmqjp.process import pluralise
from mmqjp.state.word_weights import save_weights
from xpath_stage.documents import ParsedDocument, parse_documents
from xscl.algebra.near import words as words_of
from xscl.algebra.weights import is_weights_name, learnt_weights, write_weights


@click.group("words")
@debug_option
def words_group() -> None:
    """Learn how much each word says about whether two texts tell the same story.

    \b
    Example:
      mmqjp words learn press-2026 archive/ --feeds --state state/
    """


@words_group.command(cls=options.FeedsBeforePaths)
@click.argument("name")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@options.feeds_option
@options.time_xpath_option
@options.state_option("The store that gets the table; it need not exist yet.", required=True)
@debug_option
def learn(name: str, paths: tuple[Path, ...], feeds: EntryForm | None, time_xpath: str | None, state: Path) -> None:
    """Create a table of weights from documents, the more the better: the fewer have a word, the more it weighs.

    \b
    Example:
      mmqjp words learn press-2026 archive/ --feeds --state state/

    By default a store weighs words by a table for general texts. DECLARE WEIGHTS "NAME"; at the beginning of a script
    chooses another one for a store that has no queries yet. A table keeps its name for good: stores depend on it.
    """
    if not is_weights_name(name):
        raise click.BadParameter('write letters, digits, "-", "_" and ".", such as press-2026', param_hint="NAME")
    count = 0

    def texts() -> Iterator[set[str]]:
        nonlocal count
        items = read_documents(paths, feeds=feeds, time_xpath=time_xpath)
        xmls = (item.xml for item in items if isinstance(item, Document))
        for found in parse_documents(xml.encode() if isinstance(xml, str) else xml for xml in xmls):
            if isinstance(found, ParsedDocument):
                count += 1
                yield {word for text in map(str, found.top.itertext()) for word in words_of(text)}

    weights = learnt_weights(texts())
    make_state(state)
    path = save_weights(state, name, write_weights(weights))
    documents = pluralise(count, "document", "documents")
    click.echo(f'{path}: {len(weights):,} words of {documents}; choose it by DECLARE WEIGHTS "{name}";')
