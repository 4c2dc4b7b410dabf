"""Stored documents as items: listed newest first, searched by words, and one with its fields, versions and outputs. The
store finds candidates by regular expressions; words are compared here, split as by `near`. SQL is DuckDB's."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice, pairwise

from lxml import etree

from common.errors import InvalidValue
from common.tools import gathered
from mmqjp.answers.output import LEAST_WEIGHT
from mmqjp.present.item import ShownItem, item_of, local_name, missing_item, truncate
from mmqjp.process import printable_line
from mmqjp.tables.lookup import ID, LARGE, LONGEST_XML, Row, quote_literal, value_rows
from mmqjp.tables.schema import IN_HIDDEN_FORM, ITEM_VERSIONS, RECIPIENTS
from xpath_stage.documents import parse_document
from xscl.algebra.near import has_words, words
from xscl.algebra.weights import chosen_weights

ReadRows = Callable[[str], list[Row]]  # runs SQL of DuckDB

PAGE_ITEMS = 50  # items of a page

AT_ONCE, MOST_COMPARED = 100, 2_000
"""Number of documents whose words are compared at a time, and the maximum for a page; the next page goes on from
there."""

NEWEST = (5_000, 40_000)  # a search first reads this many of the newest documents, and all only if these do not suffice

SEARCHED = frozenset(("title", "author", "category", "description", "content"))
"""The fields of an item that a search reads. In other documents it reads all text, but no attributes."""

Place = tuple[int, int]  # the t1 and docid of a document


@dataclass(frozen=True, slots=True)
class ItemFilter:
    """Selects documents from outside by the address of their `feed`, by t1 in microseconds, and by the words of
    `search`, all of which they must contain; "" and None select all. Only the newest version of an item counts. Raises
    InvalidValue if a search has no words."""

    feed: str = ""
    since: int | None = None
    until: int | None = None
    search: str = ""

    def __post_init__(self) -> None:
        if self.search.strip() and not words(self.search):
            raise InvalidValue(f"search: {self.search[:80]!r} has no word: write letters or digits")

    @property
    def is_search(self) -> bool:
        return bool(self.search.strip())

    def candidates_sql(self, before: Place | None, after: int | None, most: int) -> str:
        """SQL for documents before a place, newest first, with a t1 of at least `after`: `docid`, `t1`, and the number
        of stored `versions`. Their XML contains the words, possibly as parts of longer ones."""
        conditions = self._conditions(before)
        conditions += [] if after is None else [f"d.t1 >= {after}"]
        longest = sorted(words(self.search), key=lambda word: (-len(word), word))[:MOST_SOUGHT]
        conditions += [f"regexp_matches(d.xml, {quote_literal(word_regex(word))})" for word in longest]
        return f"""SELECT d.docid, d.t1, n.versions FROM documents d JOIN (
  SELECT max(docid) AS docid, count(*) AS versions FROM {ITEM_VERSIONS} AS v GROUP BY stream, item
) n ON n.docid = d.docid WHERE {" AND ".join(conditions)} ORDER BY d.t1 DESC, d.docid DESC LIMIT {most}"""

    def time_sql(self, before: Place | None, place: int) -> str:
        """SQL for the t1 of the document at index `place` among those before another place, ignoring the search."""
        where = " AND ".join(self._conditions(before))
        return f"SELECT d.t1 FROM documents d WHERE {where} ORDER BY d.t1 DESC, d.docid DESC LIMIT 1 OFFSET {place}"

    def _conditions(self, before: Place | None) -> list[str]:
        conditions = ["d.kind = 'external'"]
        conditions += [f"starts_with(d.id, {quote_literal(f'{self.feed} ')})"] if self.feed else []
        conditions += [] if self.since is None else [f"d.t1 >= {self.since}"]
        conditions += [] if self.until is None else [f"d.t1 < {self.until}"]
        return conditions + ([] if before is None else [f"(d.t1, d.docid) < ({before[0]}, {before[1]})"])

    def has_words_of(self, xml: str | None) -> bool:
        return not self.is_search or (xml is not None and has_words(searched_text(xml), self.search))


def searched_text(xml: str) -> str:
    """Returns the text of a document that a search reads. Markup in an item's content separates words."""
    root = parse_document(xml.encode(), trusted=True).root
    if not _is_item(root):
        return " ".join(map(str, root.itertext()))
    texts = ((child.tag, child.text or "") for child in root if child.tag in SEARCHED)
    return " ".join(_TAG.sub(" ", text) if name == "content" else text for name, text in texts)


_TAG = re.compile("<[^<>]*>")


def _is_item(root: etree._Element) -> bool:
    """Whether a document is an item, whose fields have no elements inside."""
    return root.tag == "item" and not any(map(len, root))


@dataclass(frozen=True, slots=True)
class ItemField:
    """A field of an item, or an element of other XML that has text of its own or attributes."""

    name: str
    text: str
    attributes: tuple[tuple[str, str], ...] = ()


MOST_FIELDS, LONGEST_FIELD, LONGEST_SUMMARY = 300, 5_000, 240
"""Maximum number of fields read, of characters of one, and of the beginning of a description."""


@dataclass(frozen=True, slots=True)
class ItemFields:
    """The fields of a document, in order. `texts` are those of an item by name; other XML has none."""

    every: tuple[ItemField, ...] = ()
    texts: Mapping[str, list[str]] = field(default_factory=dict)

    @staticmethod
    def of(xml: str) -> ItemFields:
        root = parse_document(xml.encode(), trusted=True).root
        is_item = _is_item(root)
        elements = root.iterchildren(tag=etree.Element) if is_item else root.iter(tag=etree.Element)
        found = tuple(islice(filter(None, map(_field, elements)), MOST_FIELDS))
        return ItemFields(found, gathered((one.name, one.text) for one in found if one.text) if is_item else {})

    def first(self, name: str) -> str:
        return next(iter(self.texts.get(name, ())), "")


def _field(element: etree._Element) -> ItemField | None:
    text = (element.text or "").strip()
    given = tuple((str(name), str(value)[:LONGEST_FIELD]) for name, value in element.attrib.items())
    return ItemField(local_name(element), text[:LONGEST_FIELD], given) if text or given else None


@dataclass(frozen=True, slots=True)
class ListedItem:
    """A document in a list. `feed` is the address of its feed, `author` its authors, and `summary` the beginning of its
    description, "" without; `first_seen` is when this version arrived, None if that is not known."""

    docid: int
    item: ShownItem
    feed: str
    author: str
    categories: tuple[str, ...]
    summary: str
    first_seen: int | None
    versions: int


@dataclass(frozen=True, slots=True)
class ItemList:
    """Documents, newest first. The next page has those that precede `next`; None at the end."""

    items: tuple[ListedItem, ...]
    next: Place | None


def list_items(select: ReadRows, wanted: ItemFilter, before: Place | None = None, most: int = PAGE_ITEMS) -> ItemList:
    """Returns up to `most` documents that precede a place. A search may return fewer, and go on with the next page,
    after it has compared MOST_COMPARED."""
    found: list[ListedItem] = []
    asked, spans = (MOST_COMPARED, iter(NEWEST)) if wanted.is_search else (most + 1, iter(()))
    while True:
        span = next(spans, None)
        times = [] if span is None else select(wanted.time_sql(before, span))
        after = times[0]["t1"] if times else None
        candidates = select(wanted.candidates_sql(before, after, asked))
        for begin in range(0, len(candidates), AT_ONCE):
            some = candidates[begin : begin + AT_ONCE]
            rows = {row["docid"]: row for row in select(_rows_sql(row["docid"] for row in some))}
            for one in some:
                row = rows.get(one["docid"])
                if row is not None and wanted.has_words_of(row["xml"]):
                    if len(found) == most:
                        return ItemList(tuple(found), before)
                    found.append(_listed(row, one["versions"]))
                    before = one["t1"], one["docid"]
        if len(candidates) == asked:
            return ItemList(tuple(found), (candidates[-1]["t1"], candidates[-1]["docid"]))
        if after is None:
            return ItemList(tuple(found), None)
        before = after, -1  # before all documents of this time


def _rows_sql(docids: Iterable[int], longest: int = LONGEST_XML) -> str:
    """SQL for documents, with their `xml` unless it is longer."""
    return f"""SELECT docid, id, stream, t0, arrival, taken_at, length(xml) AS characters,
CASE WHEN length(xml) <= {longest} THEN xml END AS xml
FROM documents WHERE kind = 'external' AND docid IN ({value_rows((-1, *docids))})"""


def _listed(row: Row, versions: int) -> ListedItem:
    item, said = _item_and_fields(row)
    summary = truncate(printable_line(said.first("description")), LONGEST_SUMMARY)
    author, categories = ", ".join(said.texts.get("author", ())), tuple(said.texts.get("category", ()))
    feed, came = said.first("feed_url"), row["taken_at"]
    return ListedItem(row["docid"], item, feed, author, categories, summary, came, versions)


def _item_and_fields(row: Row) -> tuple[ShownItem, ItemFields]:
    """If the `xml` was not read, the item has only its time and id."""
    id, stream, time, xml = row["id"], row["stream"], row["t0"], row["xml"]
    if xml is None:
        return replace(missing_item(id, stream), time=time), ItemFields()
    return item_of(id, stream, time, xml), ItemFields.of(xml)


# ------------------------------------------------------------ one item

MOST_VERSIONS, MOST_OUTPUTS, MOST_WORDS = 20, 50, 8
"""Maximum number of versions shown, the newest ones, of outputs, and of words to make a query of."""

LONGEST_CHANGE, LONGEST_RAW = 300, 20_000  # maximum number of characters shown of a change, and of the XML


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field's previous and current text; "" if absent."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ItemVersion:
    """A version of an item: its arrival (None if unknown), and its changes (None for the first version shown, and for
    long documents)."""

    docid: int
    id: str
    time: int
    first_seen: int | None
    changes: tuple[FieldChange, ...] | None


@dataclass(frozen=True, slots=True)
class ItemOutput:
    """An output with this item; `group` speeds up finding it."""

    id: str
    group: int
    query: str
    t1: int


@dataclass(frozen=True, slots=True)
class ItemDetails:
    """A stored document and its fields; its `feed`, `author` and heaviest `words` can be made into a query. `xml` is
    its text, up to LONGEST_RAW of its `characters`. `versions` are the stored versions of the same item, newest first;
    `outputs` are the newest ones, `has_more` if there are others."""

    docid: int
    item: ShownItem
    first_seen: int | None
    fields: tuple[ItemField, ...]
    feed: str
    author: str
    words: tuple[str, ...]
    xml: str
    characters: int
    versions: tuple[ItemVersion, ...]
    outputs: tuple[ItemOutput, ...]
    has_more: bool


def item_details(select: ReadRows, docid: int) -> ItemDetails | None:
    """Returns a document from outside; None if it is not stored."""
    rows = select(_rows_sql([docid], LARGE))
    if not rows:
        return None
    (row,) = rows
    item, said = _item_and_fields(row)
    words = " ".join((said.first("title"), said.first("description")))
    outputs = _outputs(select, row)
    return ItemDetails(
        docid, item, row["taken_at"], said.every, said.first("feed_url"), said.first("author"), heaviest_words(words),
        (row["xml"] or "")[:LONGEST_RAW], row["characters"], _versions(select, row), outputs[:MOST_OUTPUTS],
        len(outputs) > MOST_OUTPUTS,
    )  # fmt: skip


def heaviest_words(text: str) -> tuple[str, ...]:
    """Returns the most significant words of a text, heaviest first, without numbers.

    >>> heaviest_words("The storm that closed the ferry of Bornholm")
    ('ferry', 'bornholm', 'storm', 'closed')
    """
    weight = chosen_weights().weight
    found = (word for word in words(text) if weight(word) >= LEAST_WEIGHT and not word.isdecimal())
    return tuple(sorted(found, key=lambda word: (-weight(word), word))[:MOST_WORDS])


def _outputs(select: ReadRows, row: Row) -> tuple[ItemOutput, ...]:
    def of(relation: str) -> str:
        having = f"array_contains({relation}.documents, {quote_literal(row['id'])})"
        return f"{having} AND array_contains({relation}.streams, {quote_literal(row['stream'])})"

    # An answer arrives with the last of its documents.
    arrival = "" if row["arrival"] is None else f"AND a.arrival >= {row['arrival']} "
    sql = f"""SELECT * FROM (
  SELECT {ID} AS id, a.first_seq AS seq, m.name AS query, a.t1 {RECIPIENTS} {arrival}AND {of("a")}
    AND NOT {IN_HIDDEN_FORM.replace("form", "a.form")}
  UNION ALL SELECT e.id, e.seq, e.query, e.t1 FROM earlier_outputs e WHERE {of("e")}
) AS found ORDER BY t1 DESC, seq DESC, id LIMIT {MOST_OUTPUTS + 1}"""
    return tuple(ItemOutput(one["id"], one["seq"], one["query"], one["t1"]) for one in select(sql))


def _versions(select: ReadRows, row: Row) -> tuple[ItemVersion, ...]:
    stream = quote_literal(row["stream"])
    sql = f"""SELECT v.docid FROM {ITEM_VERSIONS} AS v WHERE v.stream = {stream} AND v.item = (
  SELECT item FROM {ITEM_VERSIONS} AS w WHERE w.docid = {row["docid"]}
) ORDER BY v.docid DESC LIMIT {MOST_VERSIONS}"""
    rows = select(_rows_sql(one["docid"] for one in select(sql)))
    rows.sort(key=lambda one: int(one["docid"]))
    changes = [None, *(_changes(one["xml"], other["xml"]) for one, other in pairwise(rows))]
    found = [
        ItemVersion(one["docid"], one["id"], one["t0"], one["taken_at"], changed)
        for one, changed in zip(rows, changes, strict=True)
    ]
    return tuple(reversed(found))


def _changes(before: str | None, after: str | None) -> tuple[FieldChange, ...] | None:
    if before is None or after is None:
        return None
    ours, theirs = (ItemFields.of(xml).texts for xml in (before, after))
    names = (name for name in dict.fromkeys((*theirs, *ours)) if ours.get(name) != theirs.get(name))
    return tuple(FieldChange(name, *(_shown(texts.get(name, ())) for texts in (ours, theirs))) for name in names)


def _shown(texts: Iterable[str]) -> str:
    return truncate(printable_line(", ".join(texts)), LONGEST_CHANGE)


# ------------------------------------------------------------ words in XML

MOST_SOUGHT, LONGEST_SOUGHT = 5, 12
"""SQL searches for at most this many words, the longest ones, and at most this many of their first characters."""

_PLANES = (range(0x20000), range(0x2F800, 0x2FA20))  # the planes with all characters that fold into others
_SURROGATES = range(0xD800, 0xE000)
_RUN, _PURE = re.compile(r"[^\W_]+"), re.compile(r"[0-9a-z]+|[^\W_0-9a-z]+")


def _fold(text: str) -> str:
    """As `words` does."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


_ANY = "[^<]{0,4}"


@cache
def _unfolded() -> tuple[Mapping[str, list[str]], frozenset[str]]:
    """For each text, the other characters that fold into it, or into more around it, like `½` and `㋀`; and the
    characters that combine with others when folded."""
    chars = (chr(code) for plane in _PLANES for code in plane if code not in _SURROGATES)
    folded = [(text, char) for char in chars if (text := _fold(char)) != char]
    pairs = ((run, char) for text, char in folded for run in {*_RUN.findall(text), *_PURE.findall(text)})
    return gathered(pairs), frozenset("".join(text for text, _ in folded if len(text) > 1))


def word_regex(word: str) -> str:
    """A regular expression of RE2 that matches wherever a text contains a word (and possibly elsewhere).

    >>> bool(re.search(word_regex("first"), "<b>The &lt;i&gt;ﬁrﬆ</b>")), word_regex("a1")[:3]
    (True, '[aA')
    """
    (unfolded, parts), end = _unfolded(), min(len(word), LONGEST_SOUGHT)
    tails, bases = {end: ""}, "".join(unicodedata.normalize("NFD", char)[0] for char in word)
    for place in reversed(range(end)):
        char = word[place]
        is_part = not char.isascii() and char in parts
        if is_part or unicodedata.combining(char) or unicodedata.decomposition(char)[:1] not in ("", "<"):
            ways = [_ANY + tails[place + 1]]  # it may be several characters, or a part of one
        else:
            ways = [f"[{char}{''.join(unfolded.get(char, ()))}]{tails[place + 1]}"]
        for stop in range(place + 2, min(place + 4, len(word)) + 1):
            if some := unfolded.get(bases[place:stop]):
                accent = "" if word.startswith(bases[place:stop], place) else _ANY
                ways.append(f"[{''.join(some)}]{accent}{tails[min(stop, end)]}")
        tails[place] = ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"
    return tails[0]
