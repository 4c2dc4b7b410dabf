"""A user's rules for reading the entries of one feed: encoding, identity, keep and block rules, time.

The rules are stored beside each fetched version, so that every reader derives the same entries from it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, Literal

from lxml import etree

from common.errors import InvalidValue
from feeds.items import Entry, html_to_text, one_line

IDENTITIES = ("guid", "link", "title")
_FIELDS = ("title", "text", "author", "category", "link", "guid", "path")
_LONGEST = 2_000


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """`encoding` is that of the feed's bytes. `identity` distinguishes entries: `guid`, `link`, `title` or a path. An
    entry is left out if it matches a rule in `block`, or none in `keep`. `versions` says whether a changed entry
    becomes a document again, `time` whether an entry has its own time or that of its arrival. "" and () mean the
    default."""

    encoding: str = ""
    identity: str = ""
    keep: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    versions: Literal["", "keep", "ignore"] = ""
    time: Literal["", "own", "arrival"] = ""

    def to_table(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value}

    def to_json(self) -> str:
        """Encodes the rules in ASCII, for a header; "" if none are set."""
        return "" if self == AS_USUAL else json.dumps(self.to_table())

    @staticmethod
    def from_json(text: str) -> ReadingRules:
        """Like `from_table`."""
        try:
            return ReadingRules.from_table(json.loads(text)) if text else AS_USUAL
        except (ValueError, RecursionError):
            return AS_USUAL

    @staticmethod
    def from_table(table: object) -> ReadingRules:
        """The inverse of `to_table`. Ignores invalid values: a crawl may come from another program."""
        given = table if isinstance(table, Mapping) else {}
        found: dict[str, Any] = {}
        for field in fields(ReadingRules):
            value = given.get(field.name)
            if field.name in ("keep", "block"):
                rules = value if isinstance(value, list | tuple) else ()
                found[field.name] = tuple(
                    rule for rule in rules if isinstance(rule, str) and _is_valid(check_rule, rule)
                )
            elif isinstance(value, str) and len(value) <= _LONGEST:
                found[field.name] = value
        if found.get("versions") not in ("keep", "ignore"):
            found["versions"] = ""
        if found.get("time") not in ("own", "arrival"):
            found["time"] = ""
        if not _is_valid(check_identity, found.get("identity", "")):
            found["identity"] = ""
        return ReadingRules(**found)


AS_USUAL = ReadingRules()


def _is_valid(check: Callable[[str], None], text: str) -> bool:
    try:
        check(text)
    except InvalidValue:
        return False
    return len(text) <= _LONGEST


def check_identity(text: str) -> None:
    """Raises InvalidValue if a text is neither one of IDENTITIES nor a path."""
    if text and text not in IDENTITIES:
        advice = f"write {', '.join(IDENTITIES)}, or a path such as ./identifier"
        if text.isidentifier():
            raise InvalidValue(f"{text!r:.60} is not an identity; {advice}")
        try:
            _xpath(text)
        except InvalidValue as error:
            raise InvalidValue(f"{error}; {advice}") from None


def check_rule(text: str) -> None:
    """Raises InvalidValue if a rule cannot be read."""
    _rule(text)


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule about one field (or any): consecutive `words` for each part, a `pattern`, or a `path`."""

    field: str
    words: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    path: etree.XPath | None = None


_PREFIX = re.compile(r"([a-z_]+):\s*(.*)", re.DOTALL)
_QUOTED = re.compile(r'"([^"]*)"|(\S+)')


@lru_cache(1_000)
def _rule(text: str) -> _Rule:
    found = _PREFIX.fullmatch(text.strip())
    is_address = found is not None and found[1] not in _FIELDS and found[2].startswith("//")
    field, rest = (found[1], found[2]) if found and not is_address else ("", text.strip())
    if field and field not in _FIELDS:
        raise InvalidValue(f"there is no field {field!r:.30}; the fields are {', '.join(_FIELDS)}")
    if not rest:
        raise InvalidValue("write words, a /regular expression/, or path: and a condition")
    if field == "path":
        return _Rule(field, path=_xpath(rest))
    if len(rest) > 2 and rest[0] == rest[-1] == "/":
        try:
            return _Rule(field, pattern=re.compile(rest[1:-1], re.IGNORECASE))
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidValue(f"not a regular expression: {error}") from None
    phrases = (_words(quoted or plain) for quoted, plain in _QUOTED.findall(rest))
    words = tuple(phrase for phrase in phrases if phrase.strip())
    if not words:
        raise InvalidValue("it has no word")
    return _Rule(field, words)


@lru_cache(1_000)
def _xpath(text: str) -> etree.XPath:
    try:
        return etree.XPath(text)
    except etree.XPathError as error:
        raise InvalidValue(f"not a path in XPath: {error}") from None


_WORD = re.compile(r"\w+")


def _words(text: str) -> str:
    """The normalised words of a text, each surrounded by blanks."""
    return f" {' '.join(_WORD.findall(unicodedata.normalize('NFKC', text).casefold()))} "


class RulesReader:
    """Applies rules to the entries of one feed."""

    def __init__(self, rules: ReadingRules) -> None:
        self.identity = rules.identity
        self.keep, self.block = (tuple(map(_rule, some)) for some in (rules.keep, rules.block))

    def seen(self, entry: Entry, element: etree._Element | None) -> SeenEntry:
        return SeenEntry(self, entry, element)


class SeenEntry:
    """An entry, with the parts that rules read computed once."""

    def __init__(self, rules: RulesReader, entry: Entry, element: etree._Element | None) -> None:
        self._rules, self._entry, self._element = rules, entry, element
        self._texts: dict[str, str] = {}
        self._plain: etree._Element | None = None

    def is_left_out(self) -> bool:
        if any(map(self._meets, self._rules.block)):
            return True
        return bool(self._rules.keep) and not any(map(self._meets, self._rules.keep))

    def identity(self) -> str:
        """The identity by the rules, "" if they set none or the entry lacks it."""
        match self._rules.identity:
            case "":
                return ""
            case "guid":
                return self._entry.guid
            case "link":
                return self._entry.item_url
            case "title":
                return one_line(self._entry.title)
        found = self._at(_xpath(self._rules.identity))
        first = (found[0] if found else "") if isinstance(found, list) else found
        return one_line("".join(map(str, first.itertext())) if isinstance(first, etree._Element) else str(first))

    def _meets(self, rule: _Rule) -> bool:
        if rule.path is not None:
            return bool(self._at(rule.path))
        if rule.pattern is not None:
            return any(rule.pattern.search(text) for text in self._parts(rule.field))
        if rule.field not in self._texts:
            self._texts[rule.field] = "|".join(map(_words, self._parts(rule.field)))
        return all(phrase in self._texts[rule.field] for phrase in rule.words)

    def _parts(self, field: str) -> Iterable[str]:
        entry = self._entry
        match field:
            case "title":
                return (entry.title,)
            case "text":
                return (entry.description, html_to_text(entry.content))
            case "author":
                return entry.authors
            case "category":
                return entry.categories
            case "link":
                return (entry.item_url, *(href for _, href in entry.links))
            case "guid":
                return (entry.guid,)
        return (*self._parts("title"), *self._parts("text"), *entry.categories)

    def _at(self, path: etree.XPath) -> Any:
        """The result of a path on the entry as it is in the feed, with prefixes and namespaces removed."""
        if self._plain is None:
            self._plain = etree.Element("entry") if self._element is None else deepcopy(self._element)
            for element in self._plain.iter(etree.Element):
                element.tag = etree.QName(element).localname
        try:
            return path(self._plain)
        except etree.XPathError:
            return []
