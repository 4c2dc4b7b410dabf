"""Warns of streams that a query reads and that nothing seems to write."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from itertools import islice

from feeds.item import FIELDS
from xscl.algebra.expressions import Span
from xscl.problems import Problem
from xscl.scope import blocks
from xscl.syntax import DEFAULT_STREAM, Query

MOST_COMPARED = 1_000
"""With how many PUBLISHed names an unknown stream is compared."""


def stream_warnings(query: Query, published: Collection[str], *, feeds: bool) -> Iterator[Problem]:
    """The warnings for a query with spans, in a script that PUBLISHes these names.

    With `feeds`, documents come on the default stream alone. Otherwise they may come on any stream, so only a name that
    looks like a misspelt one is told.
    """
    for block in blocks(query.source):
        stream = block.stream
        if stream == DEFAULT_STREAM or stream in published:
            continue
        names = list(islice(published, MOST_COMPARED))
        close = get_close_matches(stream, names, n=1, cutoff=0.75)
        folded = [name for name in (DEFAULT_STREAM, *names) if name.lower() == stream.lower()]
        meant = (folded or close or [""])[0]
        span = Span(block.span.start, block.span.start + len(stream))
        if feeds:
            hint = f"did you mean {meant}?" if meant else f"read {DEFAULT_STREAM}, or PUBLISH {stream} in another query"
            if stream == "item" or stream in FIELDS:
                hint = f"to read all elements of this name, write {DEFAULT_STREAM}//{stream}"
            elif "." in stream:
                hint = f"write {DEFAULT_STREAM}//{'/'.join(filter(None, stream.split('.')[1:]))}"
            yield Problem(f"nothing PUBLISHes {stream}, and feeds come on stream {DEFAULT_STREAM}", span, hint)
        elif meant:
            yield Problem(f"nothing PUBLISHes {stream}", span, f"did you mean {meant}?")
