"""The values that an output document has to show: those of SELECT items, or of an element constructor."""

from __future__ import annotations

from collections.abc import Iterator

from lxml import etree

from mmqjp.present.item import clipped, line, local_name
from xpath_stage.parse import parse_document, text_of
from xscl.algebra.event_sequences import ERRORS

MOST_VALUES = 50
"""The most values that are shown of one output."""

_EVENT = ["t0", "t1"]
_MATCH = ["query", *_EVENT]


def selected(xml: str) -> tuple[tuple[str, str], ...]:
    """Returns the name and the text of each value in an output document.

    >>> selected('<match query="q" t0="1" t1="1"><title>A</title><link>b</link></match>')
    (('title', 'A'), ('link', 'b'))
    >>> selected('<alert who="Ada">said <what at="10">hello</what></alert>')
    (('who', 'Ada'), ('alert', 'said'), ('what', 'hello'), ('at', '10'))

    An event of a PATTERN is one value:

    >>> selected('<match query="q" t0="1" t1="1" errors="2"><p t0="1" t1="1"><k>A</k><n>3</n></p></match>')
    (('errors', '2'), ('p', 'A, 3'))
    """
    root = parse_document(xml.encode(), trusted=True).root
    constructed = not (root.tag == "match" and list(root.attrib) in (_MATCH, [*_MATCH, ERRORS]))
    return tuple(value for value, _ in zip(_values(root, constructed), range(MOST_VALUES)))  # noqa: B905  # the first ones


def _values(root: etree._Element, constructed: bool) -> Iterator[tuple[str, str]]:
    if constructed:
        yield from ((name.rpartition("}")[2], clipped(line(text))) for name, text in map(_texts, root.attrib.items()))
        own = line(" ".join(text for text in (root.text, *(child.tail for child in root)) if text))
        if own:
            yield local_name(root), clipped(own)
    elif ERRORS in root.attrib:
        yield ERRORS, str(root.attrib[ERRORS])
    for child in root.iterchildren(tag=etree.Element):
        is_event = not constructed and list(child.attrib) == _EVENT
        texts = map(text_of, child) if is_event else [text_of(child)]
        if text := ", ".join(filter(None, map(line, texts))):
            yield local_name(child), clipped(text)
        if constructed:
            yield from (
                (name.rpartition("}")[2], clipped(line(text))) for name, text in map(_texts, child.attrib.items())
            )


def _texts(attribute: tuple[str | bytes, str | bytes]) -> tuple[str, str]:
    return str(attribute[0]), str(attribute[1])
