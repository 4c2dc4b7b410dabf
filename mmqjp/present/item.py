"""Outputs as people see them: a ShownMatch has an output, its items, reason and selected values, or its story; a WhyNot
has the obstacle to an output. An item is a document's title, site and link, or the first texts of other XML. Reasons
become facts (text in parts); MatchSpool groups matches in a temporary file, as they may exceed memory."""

from __future__ import annotations

import json
import re
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from itertools import islice
from math import inf, isfinite
from typing import IO, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from lxml import etree

from common.dates import EPOCH, SECOND
from common.tools import JsonRecord, from_json
from feeds.documents import from_datetime, parse_iso
from mmqjp.answers.output import Output
from mmqjp.documents.record import Record
from mmqjp.explain import terms
from mmqjp.process import pluralise, printable_line
from mmqjp.tables.schema import HIDDEN_SEQS, TIMES
from xpath_stage.documents import element_text, parse_document
from xscl.algebra.events import ERRORS
from xscl.algebra.near import words
from xscl.algebra.values import number_text, xpath_number

MOST_TEXTS, MAX_ITEM_CHARACTERS = 4, 300
"""Number of texts that replace the title of a document without one; maximum length of titles and texts."""


@dataclass(frozen=True, slots=True)
class ShownItem:
    """A document as shown. `time` is its t0 in microseconds; None if it is no longer stored. `kind` is the name of its
    root element, `site` the host of its link or feed, `feed` the title of its feed, and `link` an http(s) URL, each ""
    if missing. `title` is never empty: it falls back to the id."""

    id: str
    stream: str
    time: int | None = None
    kind: str = ""
    title: str = ""
    site: str = ""
    feed: str = ""
    link: str = ""

    @property
    def is_kept(self) -> bool:
        return self.time is not None


def item_of(id: str, stream: str, time: int, xml: str) -> ShownItem:
    root = parse_document(xml.encode(), trusted=True).root
    fields: dict[str, str] = {}
    links: list[str] = []  # of Atom and RSS
    for child in root.iterchildren(tag=etree.Element):
        name = local_name(child)
        if name in _FIELDS and name not in fields and (text := printable_line(element_text(child))):
            fields[name] = text
        elif name == "link" and child.get("rel", "alternate") == "alternate":
            links.append((child.get("href") or child.text or "").strip())
    link = next(filter(is_web_address, (fields.get("item_url", ""), *links)), "")
    title = fields.get("title") or " · ".join(islice(_document_texts(root), MOST_TEXTS)) or id
    site = host(link) or host(fields.get("channel_url", "")) or host(fields.get("feed_url", ""))
    feed = truncate(fields.get("feed_title", ""))
    return ShownItem(id, stream, time, local_name(root), truncate(title), site, feed, link)


def missing_item(id: str, stream: str) -> ShownItem:
    return ShownItem(id, stream, title=truncate(printable_line(id)) or "?")


_UNSAFE = re.compile(r'[\s<>"\\`{}|^]')

_FIELDS = frozenset(("title", "item_url", "channel_url", "feed_url", "feed_title"))


def _document_texts(root: etree._Element) -> Iterator[str]:
    for element in root.iter(tag=etree.Element):
        for text in (*map(str, element.attrib.values()), element.text or ""):
            if shown := printable_line(text[: 2 * MAX_ITEM_CHARACTERS]):
                yield shown


def local_name(element: etree._Element) -> str:
    return str(element.tag).rpartition("}")[2]


def truncate(text: str, most: int = MAX_ITEM_CHARACTERS) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def is_web_address(text: str) -> bool:
    """Whether a text is an http(s) URL that is safe to show as a link."""
    with suppress(ValueError):
        parts = urlsplit(text)
        is_web = parts.scheme.lower() in ("http", "https") and bool(parts.hostname)
        return is_web and text.isprintable() and not _UNSAFE.search(text)
    return False


def host(address: str) -> str:
    return (urlsplit(address).hostname or "").removeprefix("www.") if is_web_address(address) else ""


@dataclass(frozen=True, slots=True)
class ShownStory:
    """The state of a story after a `change`: its numbers of documents and feeds, the times of the first document and
    the latest, the query's `counts`, the heaviest `words` that its documents share, and the ids of the stories merged
    into it."""

    id: str
    change: str
    members: int
    feeds: int
    first: int
    latest: int
    counts: tuple[tuple[str, str], ...] = ()
    words: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()


class StoryMember(NamedTuple):
    """A document of a story: its time in microseconds, and the address of its feed, or the stream."""

    time: int
    stream: str
    id: str
    feed: str


MOST_MEMBERS = 12  # maximum number of members shown of a story: the first one and the latest ones

_OWN_ATTRIBUTES = "query", "t0", "t1"


def read_story(xml: str) -> tuple[ShownStory, list[StoryMember]]:
    """Reads the output document of a story: the story, and the members that it names, in order: the first, the latest,
    and those that no earlier one listed.

    >>> story, members = read_story('<story query="q" t0="0" t1="1" id="ab" change="opened" n="7" members="2" feeds="1"'
    ...     ' first="1970-01-01T00:00:00Z" latest="1970-01-01T00:00:01Z"><words>tram fire</words>'
    ...     '<first document="d" stream="S" feed="A" time="1970-01-01T00:00:00Z"><i/></first></story>')
    >>> story.counts, story.words, story.latest, members
    ((('n', '7'),), ('tram', 'fire'), 1000000, [StoryMember(time=0, stream='S', id='d', feed='A')])
    """
    root = parse_document(xml.encode(), trusted=True).root
    given = {str(name): str(text) for name, text in root.attrib.items() if name not in _OWN_ATTRIBUTES}
    first, latest = parse_iso(given.pop("first")), parse_iso(given.pop("latest"))
    id, change, members, feeds = (given.pop(name) for name in ("id", "change", "members", "feeds"))
    words, merged = (root.findtext("words") or "").split(), (one.attrib["id"] for one in root.iterchildren("merged"))
    story = ShownStory(
        id, change, int(members), int(feeds), first, latest, tuple(given.items()), tuple(words), tuple(map(str, merged))
    )
    return story, sorted({_member(one) for one in root.iterchildren("first", "latest", "member")})


def read_listed(xml: str) -> tuple[list[StoryMember], list[str]]:
    """Reads the end of the output document of a story: the members that it lists, and the merged stories."""
    root = parse_document(f"<listed>{xml}</listed>".encode(), trusted=True).root
    return list(map(_member, root.iterchildren("member"))), [
        str(one.attrib["id"]) for one in root.iterchildren("merged")
    ]


def _member(element: etree._Element) -> StoryMember:
    id, stream, feed, time = (str(element.attrib[name]) for name in ("document", "stream", "feed", "time"))
    return StoryMember(parse_iso(time), stream, id, feed)


def shown_members(members: Sequence[StoryMember]) -> list[StoryMember]:
    return [*members[:1], *members[1:][1 - MOST_MEMBERS :]]


@dataclass(frozen=True, slots=True)
class ShownMatch:
    """An output as shown, with an item for each of `output.documents`; of a story, for its first member and the latest
    ones. `reason` is None if unknown. `selected` has the name and text of each value in the output document of a query
    with SELECT."""

    output: Output
    items: tuple[ShownItem, ...]
    reason: terms.Reason | None = None
    selected: tuple[tuple[str, str], ...] = ()
    story: ShownStory | None = None

    @property
    def omitted(self) -> int:
        """The number of a story's members between the first one and those that are shown."""
        return 0 if self.story is None else self.story.members - len(self.items)

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON object: the output line with `items`, `why` and `selected`; of a story, with its `card`."""
        why = None if self.reason is None else reason_dict(self.reason)
        selected = [{"name": name, "text": text} for name, text in self.selected]
        found = self.output.to_dict() | {"items": list(map(asdict, self.items)), "why": why, "selected": selected}
        return found if self.story is None else found | {"card": asdict(self.story)}

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> ShownMatch:
        return ShownMatch(
            from_json(Output, found),
            from_json(tuple[ShownItem, ...], found["items"]),
            None if found["why"] is None else from_json(terms.Reason, found["why"]),
            from_json(tuple[tuple[str, str], ...], found["selected"]),
            from_json(ShownStory, found["card"]) if "card" in found else None,
        )


def reason_dict(reason: terms.Reason) -> dict[str, Any]:
    joined = [asdict(one) | {"value": one.left.value} for one in reason.joined]
    others = reason.conditions, reason.filters
    conditions, filters = ([{"text": one.text, **asdict(one)} for one in found] for found in others)
    timings = [asdict(one) | {"distance": one.distance, "gap": one.gap} for one in reason.timings]
    return {"joined": joined, "conditions": conditions, "filters": filters, "timings": timings}


@dataclass(frozen=True, slots=True)
class Near:
    """The documents nearest to an output, in query order, and the obstacle."""

    items: tuple[ShownItem, ...]
    kind: str
    part: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class WhyNot(JsonRecord):
    """Why documents give no output of a query, or that they do. `kind` is the first obstacle in this order: "query"
    (none of the name), "document" (unknown), "dead letter", "pruned", "blocks" (more documents than blocks), "paused",
    "newer" (than a document), a `mmqjp.explain.terms.StageKind`, "partner" (an absence has one) or "waiting" (it is
    undecided), "told" (ONCE, before), "dropped" (the outputs, or a document before the other came, were deleted), "too
    large"; or "output": then `outputs` has ids. `part` is the obstacle's part of the query, `message` and `hint`
    describe it. `items` are the documents in the order of the query that got furthest, whose text is `text`; `stages`
    were evaluated for it. With fewer documents than blocks, `tried` stored ones were combined with them, and `nearest`
    got nearest."""

    query: str
    kind: str
    message: str
    hint: str = ""
    part: str = ""
    text: str = ""
    items: tuple[ShownItem, ...] = ()
    outputs: tuple[str, ...] = ()
    stages: tuple[terms.FunnelStage, ...] = ()
    nearest: tuple[Near, ...] = ()
    tried: int = 0


def record_items(documents: Sequence[Record | None]) -> tuple[ShownItem, ...]:
    return tuple(item_of(record.id, record.stream, record.t0, record.xml) for record in documents if record is not None)


MAX_FACT_CHARACTERS = 160  # maximum length of a value, in characters

UNKNOWN = "the reason is unknown: a document is no longer stored, or too large to search"
OF_EVENTS = "the query's conditions hold for these events, in this order"
FILTERED = "passes the filter"


class FactToken(NamedTuple):
    """A part of a fact: the name of an element or function, a value of a document, a time in ISO 8601, or the text
    between."""

    kind: Literal["name", "value", "time", "plain"]
    text: str


Fact = tuple[FactToken, ...]


def reason_facts(match: ShownMatch, clock: TimeFormat | None = None) -> list[Fact]:
    """Returns the facts behind a match, without duplicates, with times as `clock` has them, by default in UTC; of a
    story, what it consists of."""
    if match.story is not None:
        return list(_story_facts(match.story))
    if (reason := match.reason) is not None:
        conditions = (_condition(one, clock or IN_UTC) for one in reason.conditions)
        found = [*map(_equality, reason.joined), *conditions] or filters(match)
        if found:
            return list(dict.fromkeys(found))
    nodes = list(match.output.nodes)
    if nodes and nodes == [f"e{place}" for place in range(1, len(nodes) + 1)]:  # as those of an event query
        return [(_plain(OF_EVENTS),)]
    return [(_plain(UNKNOWN if reason is None else FILTERED),)]


def _story_facts(story: ShownStory) -> Iterator[Fact]:
    feeds = f" of {pluralise(story.feeds, 'feed')}" if story.feeds else ""
    yield (_plain(f"{pluralise(story.members, 'document')}{feeds}"),)
    yield from ((_name(name), _SPACE, _plain(text)) for name, text in story.counts)
    if story.words:
        yield _plain("in common: "), _name(", ".join(story.words))
    if story.merged:
        yield (_plain(f"took up {pluralise(len(story.merged), 'other story', 'other stories')}"),)
    elif story.change in CHANGES:
        yield (_plain(CHANGES[story.change]),)


def last_told(newest_first: Iterable[ShownMatch]) -> Iterator[ShownMatch]:
    """Omits earlier outputs of each story, and stories merged into others."""
    seen = set[tuple[str, str]]()
    for match in newest_first:
        if match.story is None:
            yield match
            continue
        if (match.output.query, match.story.id) not in seen:
            yield match
        seen.update((match.output.query, id) for id in (match.story.id, *match.story.merged))


def and_more(story: ShownStory) -> str:
    """Says how many documents of a story follow the first one."""
    return f"and {story.members - 1:,} more"


CHANGES = {
    "opened": "new",
    "closed": "closed: no more documents can join it",
}  # other changes are described by their effects


def link_fact(match: ShownMatch, member: int, other: int, why: terms.Reason) -> Fact:
    """Says which other document linked one to a story."""
    names = (item.feed or item.site or item.title for item in (match.items[member], match.items[other]))
    first, second = map(_name, names)
    facts = reason_facts(replace(match, reason=why, story=None))
    listed = [word for number, fact in enumerate(facts) for word in ((_plain("; "), *fact) if number else fact)]
    return first, _plain(" with "), second, _plain(": "), *listed


def filters(match: ShownMatch) -> list[Fact]:
    """Returns the conditions on single documents that held, without duplicates, if they were requested."""
    return list(dict.fromkeys(_condition(one, IN_UTC) for one in (match.reason.filters if match.reason else ())))


def timings(match: ShownMatch) -> list[Fact]:
    """Returns the distances of the joins' inputs, if they were requested."""
    found = list[Fact]()
    for one in () if match.reason is None else match.reason.timings:
        far = f"{terms.duration_text(one.distance)} from the first to the last" if one.distance else "at the same time"
        allowed = "any time" if one.window is None else terms.format_window(one.window)
        found.append((_plain(f"{far}; "), _name(one.op), _plain(f" allows {allowed}")))
    return found


def values(match: ShownMatch) -> list[tuple[str, str]]:
    """Returns the name and text of selected values that the items do not show already."""
    known = {text for item in match.items for text in (item.title, item.link)}
    return [(name, text) for name, text in match.selected if text not in known]


def fact_text(fact: Fact, escape: Callable[[str], str] = str) -> str:
    """Returns a fact as text: `title "A" = "a" by lower-case`. `escape` is applied to its parts."""
    return "".join(f'"{escape(word.text)}"' if word.kind == "value" else escape(word.text) for word in fact)


def events(filling: terms.Filling, clock: TimeFormat) -> Iterator[Fact]:
    """Yields a line per event that filled a part of an event query, with its attributes and, of several, its end."""
    for part in filling.parts:
        is_one = part.count == 1
        if not is_one:
            among = ", these among them" if part.count > len(part.events) else ""
            yield _name(part.name), _plain(f": {part.count:,} events{among}")
        for seen in part.events:
            yield _name(part.name) if is_one else FactToken("time", clock.iso(seen.t1)), *_attributes(seen)


def _attributes(seen: terms.ShownEvent) -> Iterator[FactToken]:
    for number, (name, value) in enumerate(seen.attributes):
        yield from (_plain(", " if number else "  "), _name(name), _SPACE)
        if isinstance(value, str):
            yield _value(value)
        else:
            yield _plain("NULL" if value is None else number_text(value))


def spans(filling: terms.Filling) -> Iterator[Fact]:
    for span in filling.spans:
        gap = "" if span.gap is None else f", GAP {terms.duration_text(span.gap)}"
        limit = "for any time" if span.limit is None else f"at most {terms.format_window(span.limit)}"
        yield _name(span.part), _plain(f": DUR {terms.duration_text(span.duration)}, {limit}{gap}")


def _equality(joined: terms.JoinedValue) -> Fact:
    left, right = joined.left, joined.right
    name, value = _name(left.name), _value(left.text)
    if left.text == right.text:
        if left.name == right.name:
            return _plain("same "), name, _SPACE, value
        return name, _plain(" = "), _name(right.name), _SPACE, value
    other = () if left.name == right.name else (_name(right.name), _SPACE)
    found = [name, _SPACE, value, _plain(" = "), *other, _value(right.text)]
    if functions := dict.fromkeys((*left.functions, *right.functions)):
        found += _plain(" by "), _name(", ".join(functions))
    shown, *texts = (printable_line(text).casefold() for text in (left.value, left.text, right.text))
    if shown not in texts:
        found += _plain(": "), _value(left.value)
    return tuple(found)


_DEADLINE = re.compile(r"(.*, until )([0-9-]+T[0-9:.]+Z)")
"""The end of the text of an absence."""


def _condition(condition: terms.ShownCondition, clock: TimeFormat) -> Fact:
    words: list[FactToken] = []
    for part in condition.parts:
        if isinstance(part, str):
            text = "".join(char if char.isprintable() else "\ufffd" for char in part)
            if found := _DEADLINE.fullmatch(text):
                words += [_plain(found[1]), FactToken("time", clock.iso(parse_iso(found[2])))]
            else:
                words.append(_plain(text))
            continue
        words.append(_name(part.name))
        is_stated = condition.parts[1:] == (' = "{}"'.format(part.text.replace('"', '""')),)
        if len(part.text) <= MAX_FACT_CHARACTERS and not is_stated:  # an item's content would hide everything else
            words += [_SPACE, _value(part.text)]
    return tuple(words)


_name, _plain = partial(FactToken, "name"), partial(FactToken, "plain")

_SPACE = _plain(" ")


def _value(text: str) -> FactToken:
    return FactToken("value", truncate(printable_line(text), MAX_FACT_CHARACTERS))


@dataclass(frozen=True, slots=True)
class MatchGroup:
    """Matches with a name, in a file: offsets and t1. Only the last one of a story counts. `ranked`: they are in
    order."""

    name: str
    file: IO[bytes]
    ranked: bool = False
    offsets: array[int] = field(default_factory=partial(array, "q"))
    times: array[int] = field(default_factory=partial(array, "q"))
    stories: dict[str, int] = field(default_factory=dict)  # the index of the last match of each story
    superseded: set[int] = field(default_factory=set)

    def add(self, match: ShownMatch, offset: int) -> None:
        if match.story is not None:
            earlier = (self.stories.pop(id, None) for id in (match.story.id, *match.story.merged))
            self.superseded.update(place for place in earlier if place is not None)
            self.stories[match.story.id] = len(self.offsets)
        self.offsets.append(offset)
        self.times.append(match.output.t1)

    @property
    def count_text(self) -> str:
        return count_text(len(self), stories=len(self) == len(self.stories))

    def __len__(self) -> int:
        return len(self.offsets) - len(self.superseded)

    @property
    def matches(self) -> Iterator[ShownMatch]:
        """Yields the matches by t1, then seq, descending, unless they are ranked."""
        places = [place for place in range(len(self.offsets)) if place not in self.superseded]
        if not self.ranked:
            places.sort(key=lambda place: (self.times[place], self.offsets[place]), reverse=True)
        for place in places:
            self.file.seek(self.offsets[place])
            yield ShownMatch.from_dict(json.loads(self.file.readline()))


class MatchSpool:
    """Matches in a temporary file, until `close`. `ranked`: in the order in which they are added."""

    def __init__(self, *, ranked: bool = False) -> None:
        self._ranked = ranked
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._groups: dict[str, MatchGroup] = {}
        self.most_documents = 0  # the largest number of documents of a match

    def add(self, matches: Iterable[ShownMatch]) -> Self:
        offset = 0
        for match in matches:
            name = match.output.query
            self._groups.setdefault(name, MatchGroup(name, self._file, self._ranked)).add(match, offset)
            offset += self._file.write(json.dumps(match.to_dict(), ensure_ascii=False).encode() + b"\n")
            self.most_documents = max(self.most_documents, len(match.items))
        self._file.flush()
        return self

    def groups(self) -> list[MatchGroup]:
        return [group for _, group in sorted(self._groups.items())]

    def all(self) -> Iterator[ShownMatch]:
        self._file.seek(0)
        yield from (ShownMatch.from_dict(json.loads(line)) for line in self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


SHORTEST = 3  # shorter values, in characters, are marked only if they are the whole title


def marked_title(match: ShownMatch, place: int) -> list[tuple[str, bool]]:
    """Returns the title of an item in parts, each with whether a joined value marks it."""
    title = match.items[place].title
    if match.story is not None:
        return _with_words_marked(title, frozenset(match.story.words))
    joined = () if match.reason is None else match.reason.joined
    operands = (operand for pair in joined for operand in (pair.left, pair.right))
    texts = {printable_line(operand.text) for operand in operands if operand.document in (None, place)}
    if title in texts:
        return [(title, True)]
    found = [(start, start + len(text)) for text in texts if len(text) >= SHORTEST if (start := title.find(text)) >= 0]
    parts: list[tuple[str, bool]] = []
    end = 0
    for start, stop in sorted(found):
        if start >= end:
            parts += [(title[end:start], False), (title[start:stop], True)]
            end = stop
    return [part for part in [*parts, (title[end:], False)] if part[0]]


_RUN = re.compile(r"\w+")


def _with_words_marked(title: str, shared: frozenset[str]) -> list[tuple[str, bool]]:
    parts: list[tuple[str, bool]] = []
    end = 0
    for found in _RUN.finditer(title):
        if words(found[0]) <= shared:
            parts += [(title[end : found.start()], False), (found[0], True)]
            end = found.end()
    return [part for part in [*parts, (title[end:], False)] if part[0]]


MOST_VALUES = 50  # maximum number of values shown of an output

_EVENT = ["t0", "t1"]


def selected_values(xml: str) -> tuple[tuple[str, str], ...]:
    """Returns the name and the text of each value in an output document.

    >>> selected_values('<match query="q" t0="1" t1="1"><title>A</title><link>b</link></match>')
    (('title', 'A'), ('link', 'b'))
    >>> selected_values('<alert who="Ada">said <what at="10">hello</what></alert>')
    (('who', 'Ada'), ('alert', 'said'), ('what', 'hello'), ('at', '10'))

    An event of a PATTERN is one value, and so is the copy of a document:

    >>> selected_values('<match query="q" t0="1" t1="1" errors="2"><p t0="1" t1="1"><k>A</k><n>3</n></p></match>')
    (('errors', '2'), ('p', 'A, 3'))
    >>> selected_values('<pair><a><item><title>A</title><text>said <b>so</b></text></item></a></pair>')
    (('a', 'A, said so'),)
    """
    root = parse_document(xml.encode(), trusted=True).root
    constructed = not (root.tag == "match" and list(root.attrib) in (["query", *_EVENT], ["query", *_EVENT, ERRORS]))
    return tuple(value for value, _ in zip(_values(root, constructed), range(MOST_VALUES)))  # noqa: B905  # the first ones


def _values(root: etree._Element, constructed: bool) -> Iterator[tuple[str, str]]:
    if constructed:
        yield from _attribute_texts(root)
        own = printable_line(" ".join(text for text in (root.text, *(child.tail for child in root)) if text))
        if own:
            yield local_name(root), truncate(own)
    elif ERRORS in root.attrib:
        yield ERRORS, str(root.attrib[ERRORS])
    for child in root.iterchildren(tag=etree.Element):
        if text := ", ".join(filter(None, map(printable_line, islice(_texts_apart(child), MOST_VALUES)))):
            yield local_name(child), truncate(text)
        if constructed:
            yield from _attribute_texts(child)


def _texts_apart(element: etree._Element) -> Iterator[str]:
    """The texts of an element, apart from children that consist of elements only."""
    waiting = [element]
    while waiting:
        one = waiting.pop()
        if not len(one) or any(text and not text.isspace() for text in (one.text, *(child.tail for child in one))):
            yield element_text(one)
        else:
            waiting += reversed(list(one.iterchildren(tag=etree.Element)))


def _attribute_texts(element: etree._Element) -> Iterator[tuple[str, str]]:
    for name, text in element.attrib.items():
        yield str(name).rpartition("}")[2], truncate(printable_line(str(text)))


def number_of(xml: str, name: str) -> float:
    """Returns the first number of a name among the values of an output document; the least one if there is none.

    >>> number_of('<match query="q" t0="1" t1="1"><total>12</total></match>', "total")
    12.0
    >>> number_of('<story members="3"/>', "n")
    -inf
    """
    number = xpath_number(next((text for of, text in selected_values(xml) if of == name), ""))
    return number if isfinite(number) else -inf


PAGE, PAGE_CHARACTERS = 200, 4 << 20
"""Size limits of a page of matches looked up together: matches, and characters of XML."""


@dataclass(frozen=True, slots=True)
class TimeFormat:
    """Formats times in a zone (None: the local one)."""

    zone: tzinfo | None = None

    def minute(self, microseconds: int) -> str:
        moment = self._at(microseconds)
        if moment is None:
            return str(microseconds)
        # `strftime` is much slower, and pages have hundreds of times.
        return f"{moment.year:04}-{moment.month:02}-{moment.day:02} {moment.hour:02}:{moment.minute:02}"

    def iso(self, microseconds: int) -> str:
        """Returns a time as ISO 8601 with its zone: `2026-07-16T14:02:00+02:00`, or with `Z` for UTC."""
        moment = self._at(microseconds)
        return str(microseconds) if moment is None else moment.isoformat().replace("+00:00", "Z")

    def second(self, microseconds: int) -> str:
        """Returns a time as `iso` does, without fractions of its second."""
        return self.iso(microseconds // SECOND * SECOND)

    def utc(self, microseconds: int) -> str:
        """Returns a time in UTC, whatever this zone: `2026-07-16 12:02:00 UTC`."""
        text = IN_UTC.iso(microseconds)
        return f"{text[:19].replace('T', ' ')} UTC" if "T" in text else text

    def zone_at(self, microseconds: int) -> str:
        """Returns the zone's name at a time: `CEST`, `UTC`."""
        moment = self._at(microseconds)
        return str(microseconds) if moment is None else moment.strftime("%Z")

    def read(self, text: str) -> int:
        """Parses an ISO 8601 date or time into microseconds, in this zone unless it names one. Raises InvalidValue."""
        found, moment = parse_iso(text), None
        with suppress(ValueError):
            moment = datetime.fromisoformat(text.strip())
        if moment is None or moment.tzinfo is not None:
            return found
        return from_datetime(moment.astimezone() if self.zone is None else moment.replace(tzinfo=self.zone))

    def _at(self, microseconds: int) -> datetime | None:
        """The moment, or None outside of the years 1 to 9999."""
        try:
            return (EPOCH + timedelta(microseconds=microseconds)).astimezone(self.zone)
        except (OverflowError, ValueError, OSError):
            return None


IN_UTC = TimeFormat(UTC)


@dataclass(frozen=True, slots=True)
class Report:
    """Matches to show, out of `total`."""

    groups: list[MatchGroup]
    total: int
    clock: TimeFormat
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The texts of the queries by name, as far as known."""
    which: Literal["newest", "first"] = "newest"  # which matches are shown if not all
    by: str = ""  # the name of the values by which they are ranked

    @property
    def shown(self) -> int:
        return sum(map(len, self.groups))

    @property
    def newest(self) -> int | None:
        return max((next(group.matches).output.t1 for group in self.groups), default=None)

    @property
    def zone(self) -> str:
        """The name of the zone at the newest match."""
        return "" if self.newest is None else self.clock.zone_at(self.newest)

    @property
    def summary(self) -> str:
        which, ranked = ("top", f" by {self.by}") if self.by else (self.which, "")
        part = f"the {which} {self.shown:,} of " if self.shown < self.total else ""
        return part + self.count_text + ranked

    @property
    def count_text(self) -> str:
        are_stories = all(len(group) == len(group.stories) for group in self.groups)
        return count_text(self.total, stories=are_stories and (self.shown == self.total or self.which == "first"))


def count_text(matches: int, *, stories: bool) -> str:
    return pluralise(matches, "story", "stories") if stories and matches else pluralise(matches, "match", "matches")


def source(item: ShownItem) -> str:
    """The origin of a document: the title of its feed and its site, or its kind and stream."""
    if item.feed or item.site:
        return ", ".join(filter(None, (item.feed, item.site)))
    return f"{item.kind} of {item.stream}" if item.is_kept else f"of {item.stream}, no longer stored"


NODES = "nodes"  # the column that holds a JSON object as text

_EXTREME = re.compile(r"(?:min|max)\((?:\w+\.)?(\w+)\)")
"""DuckDB's and Spark's names for the minimum and maximum of a column."""


def format_rows(columns: Sequence[str], rows: Sequence[Sequence[object]], clock: TimeFormat) -> Iterator[list[object]]:
    names = [found[1] if (found := _EXTREME.fullmatch(name)) else name for name in columns]

    def readable(name: str, value: object) -> object:
        if name in TIMES and isinstance(value, int):
            return clock.iso(value)
        if name == NODES and isinstance(value, str):
            with suppress(ValueError):  # in another column of that name
                return json.loads(value)
        return value

    for row in rows:
        yield list(map(readable, names, row))


def unique_keys(names: Sequence[str]) -> list[str]:
    """Makes names unique: a repeated one gets the next free number.

    >>> unique_keys(["x", "x", "x_2", "x"])
    ['x', 'x_3', 'x_2', 'x_4']
    """
    taken, last, found = set(names), Counter[str](), list[str]()
    for name in names:
        last[name] += 1
        key = name
        while last[name] > 1 and (key := f"{name}_{last[name]}") in taken:
            last[name] += 1
        taken.add(key)
        found.append(key)
    return found


def cell(value: object) -> object:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else cell_text(value)


def cell_text(value: object) -> str:
    """Returns a value as text: "" for null, JSON for lists, objects and booleans."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


_Select = Callable[[str], list[dict[str, Any]]]  # returns the rows of an SQL query over a store


@dataclass(frozen=True, slots=True)
class MatchFilter:
    """Selects matches of the query `name` (None: any) with t1 >= `since`, in microseconds (None: any), and of these the
    newest `most` by seq (None: all)."""

    name: str | None = None
    since: int | None = None
    most: int | None = None

    def has(self, output: Output) -> bool:
        return self.name in (None, output.query) and (self.since is None or output.t1 >= self.since)

    def among(self, outputs: Iterable[Output]) -> Iterator[Output]:
        return filter(self.has, outputs)

    def count(self, select: _Select) -> int:
        (row,) = select(f"SELECT count(*) AS n FROM outputs{self._condition()}")
        return int(row["n"])

    def start(self, select: _Select) -> int:
        """Returns the number after which the newest `most` matches follow."""
        if self.most is None:
            return -1
        newest = f"SELECT seq FROM outputs{self._condition()} ORDER BY seq DESC LIMIT {self.most}"
        (row,) = select(f"SELECT min(seq) AS least FROM ({newest}) AS newest")
        return -1 if row["least"] is None else int(row["least"]) - 1

    def _condition(self) -> str:
        """The WHERE of SQL. Query names contain no quotes."""
        parts = [] if self.name is None else [f"query = '{self.name}'"]
        parts.append(f"seq NOT IN ({HIDDEN_SEQS})")
        parts += [] if self.since is None else [f"t1 >= {self.since}"]
        return f" WHERE {' AND '.join(parts)}" if parts else ""
