"""A document as a person sees it: a title, a site, a link; or, for XML that has none of these, its first texts.

The facts behind a match in words: the values that were joined, other conditions, and the selected values.

Groups matches by query, newest first. Keeps them in a temporary file: there may be more than fit in memory.

Marks in titles: which parts of an item's title are values that were joined.

A match as a person sees it: an output with its documents, the reason for it, and the values that it selects.

Reads the matches of a store, some at a time: looks up their documents and reasons together.

What the formats for people show: matches in groups, and how many there are in all.

Rows of a table as people and programs read them: times, nodes, and names that are there twice.

The values that an output document has to show: those of SELECT items, or of an element constructor.

Times as people read them: in the local time zone, or in UTC.

Which matches are wanted: of which query, since when, and how many of the newest.
"""

from __future__ import annotations

import json
import re
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import IO, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from lxml import etree

from common.tools import in_batches
from feeds.documents import EPOCH, from_datetime, iso_utc, parse_iso
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.explain.funnel import Evidence
from mmqjp.explain.join_trial import JoinTiming, Reason
from mmqjp.explain.retrace.events import Filling, ShownEvent
from mmqjp.explain.retrace.stages import display_value
from mmqjp.explain.terms import JoinedValue, Operand, ShownCondition, duration_text, format_window
from mmqjp.process import printable_line
from mmqjp.tables.schema import TIMES
from xpath_stage.documents import element_text, parse_document
from xscl.algebra.events import ERRORS

MOST_TEXTS = 4
"""So many texts of a document without a title stand in for one."""

MAX_ITEM_CHARACTERS = 300
"""Longer titles and texts are cut short, in characters."""


@dataclass(frozen=True, slots=True)
class ShownItem:
    """What is shown of a document. `time` is its t0 in microseconds; None if the document is no longer stored.

    `kind` is the name of its root element. `site` is the host of its link or of its feed, `feed` the title of its feed;
    `link` is an http(s) address. Each is "" if there is none. `title` is never empty: it is the id if all else fails.
    """

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
        """Whether the document is still stored."""
        return self.time is not None


def item_of(id: str, stream: str, time: int, xml: str) -> ShownItem:
    """Returns what is shown of a document of the store."""
    root = parse_document(xml.encode(), trusted=True).root
    fields: dict[str, str] = {}
    for child in root.iterchildren(tag=etree.Element):
        name = local_name(child)
        if name in _FIELDS and name not in fields and (text := printable_line(element_text(child))):
            fields[name] = text
    link = next((found for found in _links(root, fields) if is_web_address(found)), "")
    title = fields.get("title") or " · ".join(islice(_document_texts(root), MOST_TEXTS)) or id
    site = host(link) or host(fields.get("channel_url", "")) or host(fields.get("feed_url", ""))
    return ShownItem(
        id, stream, time, local_name(root), truncate(title), site, truncate(fields.get("feed_title", "")), link
    )


def missing_item(id: str, stream: str) -> ShownItem:
    """Returns what is shown of a document that is no longer stored."""
    return ShownItem(id, stream, title=truncate(printable_line(id)) or "?")


_UNSAFE = re.compile(r'[\s<>"\\`{}|^]')

_FIELDS = frozenset(("title", "item_url", "channel_url", "feed_url", "feed_title"))


def _links(root: etree._Element, fields: dict[str, str]) -> Iterator[str]:
    """Yields what may be the address of a document: that of an `<item>`, or what Atom and RSS call `link`."""
    yield fields.get("item_url", "")
    for child in root.iterchildren(tag=etree.Element):
        if local_name(child) == "link" and child.get("rel", "alternate") == "alternate":
            yield (child.get("href") or child.text or "").strip()


def _document_texts(root: etree._Element) -> Iterator[str]:
    for element in root.iter(tag=etree.Element):
        for text in (*map(str, element.attrib.values()), element.text or ""):
            if shown := printable_line(text[: 2 * MAX_ITEM_CHARACTERS]):
                yield shown


def local_name(element: etree._Element) -> str:
    """Returns the name of an element without its namespace."""
    return str(element.tag).rpartition("}")[2]


def truncate(text: str, most: int = MAX_ITEM_CHARACTERS) -> str:
    """Returns a text of at most `most` characters. One that was cut ends in an ellipsis."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def is_web_address(text: str) -> bool:
    """Returns whether a text is an http(s) address that is safe to show as a link."""
    if not text.isprintable() or _UNSAFE.search(text):
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme.lower() in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def host(address: str) -> str:
    """Returns the host of an http(s) address without "www.", or ""."""
    return (urlsplit(address).hostname or "").removeprefix("www.") if is_web_address(address) else ""


@dataclass(frozen=True, slots=True)
class ShownMatch:
    """An output as a person sees it. There is an item for each of `output.documents`.

    `reason` is None if it cannot be told. `selected` has the name and text of each value in the output document of a
    query with SELECT.
    """

    output: Output
    items: tuple[ShownItem, ...]
    reason: Reason | None = None
    selected: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON object: that of the output line, and `items`, `why` and `selected`."""
        why = None if self.reason is None else _why(self.reason)
        selected = [{"name": name, "text": text} for name, text in self.selected]
        return self.output.to_dict() | {
            "items": [asdict(item) for item in self.items],
            "why": why,
            "selected": selected,
        }

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> ShownMatch:
        """Returns the match of such an object."""
        output = {key: found[key] for key in ("query", "t0", "t1", "nodes", "xml", "id", "seq")}
        return ShownMatch(
            Output(documents=tuple(found["documents"]), streams=tuple(found["streams"]), **output),
            tuple(ShownItem(**item) for item in found["items"]),
            None if found["why"] is None else _reason(found["why"]),
            tuple((one["name"], one["text"]) for one in found["selected"]),
        )


def _why(reason: Reason) -> dict[str, Any]:
    joined = [asdict(one) | {"value": one.left.value} for one in reason.joined]
    conditions, filters = map(_conditions, (reason.conditions, reason.filters))
    timings = [asdict(one) | {"distance": one.distance, "gap": one.gap} for one in reason.timings]
    return {"joined": joined, "conditions": conditions, "filters": filters, "timings": timings}


def _conditions(found: Iterable[ShownCondition]) -> list[dict[str, Any]]:
    return [
        {"text": one.text, "parts": [part if isinstance(part, str) else asdict(part) for part in one.parts]}
        for one in found
    ]


def _reason(found: Mapping[str, Any]) -> Reason:
    return Reason(
        tuple(JoinedValue(_operand(one["left"]), _operand(one["right"])) for one in found["joined"]),
        _read_conditions(found["conditions"]),
        tuple(
            JoinTiming(one["op"], one["window"], tuple(one["left"]), tuple(one["right"])) for one in found["timings"]
        ),
        _read_conditions(found["filters"]),
    )


def _read_conditions(found: Iterable[Mapping[str, Any]]) -> tuple[ShownCondition, ...]:
    return tuple(
        ShownCondition(tuple(part if isinstance(part, str) else _operand(part) for part in one["parts"]))
        for one in found
    )


def _operand(found: Mapping[str, Any]) -> Operand:
    return Operand(found["name"], found["text"], tuple(found["functions"]), found["document"], found["node"])


MAX_FACT_CHARACTERS = 160
"""Longer values are cut short, in characters."""

UNKNOWN = "the reason is not known: a document is no longer stored, or too large to search"
OF_EVENTS = "the query's conditions hold for these events, in this order"
FILTERED = "passes the filter"


class FactToken(NamedTuple):
    """A part of a fact: the name of an element or function, a value of a document, or what stands between them, with
    its spaces."""

    kind: Literal["name", "value", "plain"]
    text: str


Fact = tuple[FactToken, ...]


def reason_facts(match: ShownMatch) -> list[Fact]:
    """Returns what made a match, each fact once."""
    if match.reason is None:
        return [(FactToken("plain", OF_EVENTS if _is_of_events(match) else UNKNOWN),)]
    found = [*map(_equality, match.reason.joined), *map(_condition, match.reason.conditions)]
    if not found:
        found = [*map(_condition, match.reason.filters)]
    return list(dict.fromkeys(found)) or [(FactToken("plain", OF_EVENTS if _is_of_events(match) else FILTERED),)]


def _is_of_events(match: ShownMatch) -> bool:
    """Returns whether an output without a reason names its nodes like that of an event query."""
    nodes = match.output.nodes
    return bool(nodes) and list(nodes) == [f"e{place}" for place in range(1, len(nodes) + 1)]


def filters(match: ShownMatch) -> list[Fact]:
    """Returns the conditions on single documents that held, each once, if they were asked for."""
    return list(dict.fromkeys(map(_condition, () if match.reason is None else match.reason.filters)))


def timings(match: ShownMatch) -> list[Fact]:
    """Returns how far apart the inputs of the joins were, if it was asked for."""
    return [_timing(one) for one in (() if match.reason is None else match.reason.timings)]


def _timing(timing: JoinTiming) -> Fact:
    op = FactToken("name", timing.op)
    if timing.distance:
        far = FactToken("plain", f"{duration_text(timing.distance)} from the first to the last; ")
    else:
        far = FactToken("plain", "at the same time; ")
    if timing.window is None:
        return far, op, FactToken("plain", " allows any time")
    return far, op, FactToken("plain", f" allows {format_window(timing.window)}")


def values(match: ShownMatch) -> list[tuple[str, str]]:
    """Returns the selected values that do not stand in the items already, as pairs of name and text."""
    known = {text for item in match.items for text in (item.title, item.link)}
    return [(name, text) for name, text in match.selected if text not in known]


def fact_text(fact: Fact) -> str:
    """Returns a fact as text: `title "A" = "a" by lower-case`."""
    return "".join(f'"{word.text}"' if word.kind == "value" else word.text for word in fact)


def events(filling: Filling) -> Iterator[Fact]:
    """Yields the events that filled the parts of an event query, with their attributes: each in a line, which says when
    it ended if there are several."""
    for part in filling.parts:
        if part.count == 1:
            yield FactToken("name", part.name), *_attributes(part.events[0])
            continue
        more = part.count - len(part.events)
        yield (
            FactToken("name", part.name),
            FactToken("plain", f": {part.count:,} events{', these among them' if more else ''}"),
        )
        for seen in part.events:
            yield FactToken("plain", iso_utc(seen.t1)), *_attributes(seen)


def _attributes(seen: ShownEvent) -> Iterator[FactToken]:
    for number, (name, value) in enumerate(seen.attributes):
        yield FactToken("plain", ", " if number else "  ")
        yield FactToken("name", name)
        yield _SPACE
        if isinstance(value, str):
            yield FactToken("value", truncate(printable_line(value), MAX_FACT_CHARACTERS))
        else:
            yield FactToken("plain", display_value(value))


def spans(filling: Filling) -> Iterator[Fact]:
    """Yields how long the parts of an event query took, and may take."""
    for span in filling.spans:
        gap = "" if span.gap is None else f", GAP {duration_text(span.gap)}"
        limit = "for any time" if span.limit is None else f"at most {format_window(span.limit)}"
        yield FactToken("name", span.part), FactToken("plain", f": DUR {duration_text(span.duration)}, {limit}{gap}")


def _equality(joined: JoinedValue) -> Fact:
    left, right = joined.left, joined.right
    name, value = _name(left.name), FactToken("value", _short(left))
    if left.text == right.text:
        if left.name == right.name:
            return FactToken("plain", "same "), name, _SPACE, value
        return name, FactToken("plain", " = "), _name(right.name), _SPACE, value
    other = () if left.name == right.name else (_name(right.name), _SPACE)
    return name, _SPACE, value, FactToken("plain", " = "), *other, FactToken("value", _short(right)), *_how(left, right)


def _how(left: Operand, right: Operand) -> Iterator[FactToken]:
    """Yields the functions that made two texts equal, and the value if neither text shows it."""
    if functions := dict.fromkeys((*left.functions, *right.functions)):
        yield FactToken("plain", " by ")
        yield _name(", ".join(functions))
    if printable_line(left.value).casefold() not in (
        printable_line(left.text).casefold(),
        printable_line(right.text).casefold(),
    ):
        yield FactToken("plain", ": ")
        yield FactToken("value", truncate(printable_line(left.value), MAX_FACT_CHARACTERS))


def _condition(condition: ShownCondition) -> Fact:
    words: list[FactToken] = []
    for part in condition.parts:
        if isinstance(part, str):
            words.append(FactToken("plain", "".join(char if char.isprintable() else "\ufffd" for char in part)))
            continue
        words.append(_name(part.name))
        if len(part.text) <= MAX_FACT_CHARACTERS and not _is_stated(
            part.text, condition
        ):  # the content of an item would hide everything else
            words += [_SPACE, FactToken("value", _short(part))]
    return tuple(words)


def _is_stated(text: str, condition: ShownCondition) -> bool:
    """Whether a condition says no more than that a node has this text."""
    return condition.parts[1:] == (' = "{}"'.format(text.replace('"', '""')),)


def _name(text: str) -> FactToken:
    return FactToken("name", text)


_SPACE = FactToken("plain", " ")


def _short(operand: Operand) -> str:
    return truncate(printable_line(operand.text), MAX_FACT_CHARACTERS)


@dataclass(frozen=True, slots=True)
class MatchGroup:
    """The matches of a query. `matches` yields them, newest first."""

    name: str
    spool: MatchSpool

    def __len__(self) -> int:
        return len(self.spool.offsets[self.name])

    @property
    def matches(self) -> Iterator[ShownMatch]:
        """Yields the matches by t1, then seq, the last ones first."""
        return self.spool.read(self.name)


class MatchSpool:
    """Matches in a temporary file, until `close`."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self.offsets: dict[str, array[int]] = {}
        self._times: dict[str, array[int]] = {}
        self.most_documents = 0
        """The greatest number of documents behind a match."""

    def add(self, matches: Iterable[ShownMatch]) -> Self:
        """Adds matches, in the order of seq."""
        offset = 0
        for match in matches:
            name = match.output.query
            self.offsets.setdefault(name, array("q")).append(offset)
            self._times.setdefault(name, array("q")).append(match.output.t1)
            offset += self._file.write(json.dumps(match.to_dict(), ensure_ascii=False).encode() + b"\n")
            self.most_documents = max(self.most_documents, len(match.items))
        self._file.flush()
        return self

    def groups(self) -> list[MatchGroup]:
        """Returns the groups in the order of their names."""
        return [MatchGroup(name, self) for name in sorted(self.offsets)]

    def read(self, name: str) -> Iterator[ShownMatch]:
        """Yields the matches of a query, newest first."""
        offsets, times = self.offsets[name], self._times[name]
        for place in sorted(range(len(offsets)), key=lambda place: (times[place], offsets[place]), reverse=True):
            self._file.seek(offsets[place])
            yield _match(self._file.readline())

    def all(self) -> Iterator[ShownMatch]:
        """Yields all matches, in the order in which they were added."""
        self._file.seek(0)
        yield from map(_match, self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _match(line: bytes) -> ShownMatch:
    return ShownMatch.from_dict(json.loads(line))


SHORTEST = 3
"""Shorter values are only marked if they are the whole title, in characters."""


def marked_title(match: ShownMatch, place: int) -> list[tuple[str, bool]]:
    """Returns the title of the item at a place in parts, each with whether it is marked."""
    title = match.items[place].title
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


MOST_VALUES = 50
"""The most values that are shown of one output."""

_EVENT = ["t0", "t1"]
_MATCH = ["query", *_EVENT]


def selected_values(xml: str) -> tuple[tuple[str, str], ...]:
    """Returns the name and the text of each value in an output document.

    >>> selected_values('<match query="q" t0="1" t1="1"><title>A</title><link>b</link></match>')
    (('title', 'A'), ('link', 'b'))
    >>> selected_values('<alert who="Ada">said <what at="10">hello</what></alert>')
    (('who', 'Ada'), ('alert', 'said'), ('what', 'hello'), ('at', '10'))

    An event of a PATTERN is one value:

    >>> selected_values('<match query="q" t0="1" t1="1" errors="2"><p t0="1" t1="1"><k>A</k><n>3</n></p></match>')
    (('errors', '2'), ('p', 'A, 3'))
    """
    root = parse_document(xml.encode(), trusted=True).root
    constructed = not (root.tag == "match" and list(root.attrib) in (_MATCH, [*_MATCH, ERRORS]))
    return tuple(value for value, _ in zip(_values(root, constructed), range(MOST_VALUES)))  # noqa: B905  # the first ones


def _values(root: etree._Element, constructed: bool) -> Iterator[tuple[str, str]]:
    if constructed:
        yield from (
            (name.rpartition("}")[2], truncate(printable_line(text)))
            for name, text in map(_attribute_texts, root.attrib.items())
        )
        own = printable_line(" ".join(text for text in (root.text, *(child.tail for child in root)) if text))
        if own:
            yield local_name(root), truncate(own)
    elif ERRORS in root.attrib:
        yield ERRORS, str(root.attrib[ERRORS])
    for child in root.iterchildren(tag=etree.Element):
        is_event = not constructed and list(child.attrib) == _EVENT
        texts = map(element_text, child) if is_event else [element_text(child)]
        if text := ", ".join(filter(None, map(printable_line, texts))):
            yield local_name(child), truncate(text)
        if constructed:
            yield from (
                (name.rpartition("}")[2], truncate(printable_line(text)))
                for name, text in map(_attribute_texts, child.attrib.items())
            )


def _attribute_texts(attribute: tuple[str | bytes, str | bytes]) -> tuple[str, str]:
    return str(attribute[0]), str(attribute[1])


PAGE, PAGE_CHARACTERS = 200, 4 << 20
"""Matches are looked up together until there are this many, or until they have this many characters of XML."""


class OutputPresenter:
    """Shows the outputs of a session. Without `reasons` it does not look for those, which takes longest."""

    def __init__(self, engine: Session, *, reasons: bool = True) -> None:
        self._engine, self._evidence, self._reasons = engine, Evidence(engine), reasons

    def matches(self, outputs: Iterable[Output]) -> Iterator[ShownMatch]:
        """Yields stored outputs as matches, in their order. Raises StoreError."""
        for page in in_batches(outputs, PAGE, PAGE_CHARACTERS, lambda output: len(output.xml)):
            items = self._items({key for output in page for key in _keys(output)})
            reasons = self._evidence.of(page) if self._reasons else [None] * len(page)
            for output, reason in zip(page, reasons, strict=True):
                shown = selected_values(output.xml) if self._evidence.has_select(output.query) else ()
                yield ShownMatch(output, tuple(items[key] for key in _keys(output)), reason, shown)

    def _items(self, keys: set[tuple[str, str]]) -> dict[tuple[str, str], ShownItem]:
        stored = self._engine.documents(keys)
        return {
            (stream, id): item_of(id, stream, *stored[stream, id])
            if (stream, id) in stored
            else missing_item(id, stream)
            for stream, id in keys
        }


def _keys(output: Output) -> Sequence[tuple[str, str]]:
    return list(zip(output.streams, output.documents, strict=True))


@dataclass(frozen=True, slots=True)
class TimeFormat:
    """Shows times of a zone. None is the local one."""

    zone: tzinfo | None = None

    def minute(self, microseconds: int) -> str:
        moment = self._at(microseconds)
        if moment is None:
            return str(microseconds)
        # `strftime` takes much longer, and pages have hundreds of times.
        return f"{moment.year:04}-{moment.month:02}-{moment.day:02} {moment.hour:02}:{moment.minute:02}"

    def iso(self, microseconds: int) -> str:
        """Returns a time as ISO 8601 with its zone: `2026-07-16T14:02:00+02:00`, or with `Z` for UTC."""
        moment = self._at(microseconds)
        return str(microseconds) if moment is None else moment.isoformat().replace("+00:00", "Z")

    def zone_at(self, microseconds: int) -> str:
        """Returns the name of the zone at a time: `CEST`, `UTC`."""
        moment = self._at(microseconds)
        return str(microseconds) if moment is None else moment.strftime("%Z")

    def read(self, text: str) -> int:
        """Returns the microseconds of a date or time as ISO 8601 has it, of this zone if it names none. Raises
        InvalidValue."""
        found = parse_iso(text)
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            return found
        if moment.tzinfo is not None:
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
    """Matches to show. `total` is how many there are, which may be more than are shown."""

    groups: list[MatchGroup]
    total: int
    clock: TimeFormat
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The texts of the queries of each name, as far as they are known."""
    which: Literal["newest", "first"] = "newest"
    """Which of them are shown, if they are not all."""

    @property
    def shown(self) -> int:
        """How many are shown."""
        return sum(map(len, self.groups))

    @property
    def newest(self) -> int | None:
        return max((next(group.matches).output.t1 for group in self.groups), default=None)

    @property
    def summary(self) -> str:
        """How many there are and are shown, in words."""
        if self.shown < self.total:
            return f"the {self.which} {self.shown:,} of {match_count_text(self.total)}"
        return match_count_text(self.total)


def match_count_text(matches: int) -> str:
    return f"{matches:,} match{'' if matches == 1 else 'es'}"


def source(item: ShownItem) -> str:
    """Where a document is from: the title of its feed and its site, or what it is and its stream."""
    if item.feed and item.site:
        return f"{item.feed}, {item.site}"
    if item.feed or item.site:
        return item.feed or item.site
    return f"{item.kind} of {item.stream}" if item.is_kept else f"of {item.stream}, no longer stored"


NODES = "nodes"
"""The column that holds a JSON object as text."""

_EXTREME = re.compile(r"(?:min|max)\((?:\w+\.)?(\w+)\)")
"""What DuckDB and Spark call the earliest and latest value of a column."""


def format_rows(columns: Sequence[str], rows: Sequence[Sequence[object]], clock: TimeFormat) -> Iterator[list[object]]:
    """Yields rows whose times and nodes can be read."""
    names = [found[1] if (found := _EXTREME.fullmatch(name)) else name for name in columns]
    for row in rows:
        yield [_readable(name, value, clock) for name, value in zip(names, row, strict=True)]


def _readable(name: str, value: object, clock: TimeFormat) -> object:
    if name in TIMES and isinstance(value, int):
        return clock.iso(value)
    if name == NODES and isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:  # another column of that name
            return value
    return value


def unique_keys(names: Sequence[str]) -> list[str]:
    """Returns names for the keys of an object: one that was there before gets the next number that is free.

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
    """Returns a value for CSV: numbers stay numbers."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else cell_text(value)


def cell_text(value: object) -> str:
    """Returns a value as text: "" for null, JSON for lists, objects and booleans."""
    match value:
        case None:
            return ""
        case str():
            return value
    return json.dumps(value, ensure_ascii=False)


_Select = Callable[[str], list[dict[str, Any]]]
"""Returns the rows of an SQL query over a store."""


@dataclass(frozen=True, slots=True)
class MatchFilter:
    """Matches of the query `name` with t1 >= `since`, in microseconds; of all queries and times by default. The newest
    `most` of them, by seq, if it is not None."""

    name: str | None = None
    since: int | None = None
    most: int | None = None

    def has(self, output: Output) -> bool:
        """Returns whether an output is of the query and the time."""
        return self.name in (None, output.query) and (self.since is None or output.t1 >= self.since)

    def among(self, outputs: Iterable[Output]) -> Iterator[Output]:
        """Yields those of the query and the time."""
        return filter(self.has, outputs)

    def count(self, select: _Select) -> int:
        """Returns how many there are in a store, without the limit."""
        (row,) = select(f"SELECT count(*) AS n FROM outputs{self._condition()}")
        return int(row["n"])

    def start(self, select: _Select) -> int:
        """Returns the number after which the newest `most` of them follow."""
        if self.most is None:
            return -1
        newest = f"SELECT seq FROM outputs{self._condition()} ORDER BY seq DESC LIMIT {self.most}"
        (row,) = select(f"SELECT min(seq) AS least FROM ({newest}) AS newest")
        return -1 if row["least"] is None else int(row["least"]) - 1

    def _condition(self) -> str:
        """The WHERE of SQL. The name is one of a query, so it has no quotes."""
        parts = [] if self.name is None else [f"query = '{self.name}'"]
        parts += [] if self.since is None else [f"t1 >= {self.since}"]
        return f" WHERE {' AND '.join(parts)}" if parts else ""
