"""Says of which kind each statement of a script is, before a grammar sees it: a query of XSCL or an event statement.

A statement is a definition, or a pattern, by its first two words. It is an event query if it has FILTER, FOLD,
AGGREGATE or NEXT with a brace, or NEXT or UNION between two sources; or if what it reads is the bare name of an event
stream. All else is XSCL, so the scripts of before have the meaning of before.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from typing import Literal

from xscl.statements import Statement

Kind = Literal["xscl", "definition", "event query", "pattern"]

_HINTS = ("define", "pattern", "filter", "fold", "aggregate", "next", "union")
"""Every event statement that is one by its words has one of these."""

_FIRST = re.compile(r"(define\s+event|pattern\s+seq)(?![\w.\-])", re.IGNORECASE)
_TOKEN = re.compile(r"""("(?:[^"\n]|"")*"|(?<![\w.\-])'(?:[^'\n]|'')*')|([^\W\d](?:[\w.']|-(?!>))*)|(\S)""")
_CONSTRUCTOR = re.compile(r"[\s(]*select\s*<(?=[^\W\d])", re.IGNORECASE)
_CONSTRUCTOR_END = re.compile(r">\s*from(?![\w.\-])", re.IGNORECASE)
_PLAIN = re.compile(r"[^\"'/@:<>\-\[{]*(?<!\S)(?:filter|fold|aggregate|next)\s*\{", re.IGNORECASE)
"""What begins like an event query, without a string, a path, a binding or a constructor in front of an operator."""
_BARE = re.compile(
    r"(?:^|\(|\bfrom\b)\s*[A-Za-z_][A-Za-z0-9_]*[\s)]*(?:within[\s\w.∞)]{0,200})?(?:publish\s+\S+\s*)?$",
    re.IGNORECASE,
)
"""What every statement matches that reads a bare name."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BEFORE_A_SOURCE = frozenset({"", "(", "}", "from", "next", "union"})
_NO_SOURCE = frozenset(
    {"select", "from", "publish", "as", "and", "or", "not", "followed", "by", "join", "within", "once", "next", "union"}
)
_BRACED = frozenset({"filter", "fold", "aggregate", "next"})


def kinds_of(text: str, statements: Sequence[Statement], known: Container[str] = ()) -> list[Kind] | None:
    """The kind of each statement of a script; None if all are XSCL. `text` is the script without its comments, and
    `known` are the event streams that it can read without defining them.

    Takes time linear in the text.
    """
    lower = text.lower()
    if not known and not any(word in lower for word in _HINTS):
        return None
    kinds: list[Kind] = ["xscl"] * len(statements)
    streams: set[str] = set()
    readers: dict[str, list[tuple[int, str]]] = {}  # what may be event queries, by the name that they read
    for number, statement in enumerate(statements):
        part = text[statement.span.start : statement.span.end]
        if first := _FIRST.match(part):
            if first[1][0] in "dD":
                kinds[number] = "definition"
                if name := _NAME.match(part[first.end() :].lstrip()):
                    streams.add(name[0])
            else:
                kinds[number] = "pattern"
                streams.add(_published(part))
            continue
        if _PLAIN.match(part):
            kinds[number] = "event query"
            streams.add(_published(part))
            continue
        tokens = _tokens(part) if _may_tell(part) else []
        bare = _bare_name(tokens)
        publishes = tokens[-1][0] if len(tokens) > 1 and tokens[-2][1] == "publish" else ""
        if _has_operator(tokens) or bare in known:
            kinds[number] = "event query"
            streams.add(publishes)
        elif bare:
            readers.setdefault(bare, []).append((number, publishes))
    waiting = list(streams)
    while waiting:
        for number, publishes in readers.pop(waiting.pop(), ()):
            kinds[number] = "event query"
            waiting.append(publishes)
    return kinds if any(kind != "xscl" for kind in kinds) else None


def _published(text: str) -> str:
    """What a statement publishes that ends as it is written, or nothing."""
    ending = text.rsplit(None, 2)
    return ending[2] if len(ending) == 3 and ending[1].lower() == "publish" else ""


def _may_tell(text: str) -> bool:
    """Whether a statement may be an event query. Most queries are not: they read a path, and have no hint."""
    if _BARE.search(text):
        return True
    lower = text.lower()
    return any(word in lower for word in _HINTS)


def _tokens(text: str) -> list[tuple[str, str]]:
    """The words and signs of a statement, each as it is written and in lower case. Strings are signs; an element
    constructor is left out."""
    start = 0
    if _CONSTRUCTOR.match(text):
        for found in _CONSTRUCTOR_END.finditer(text):
            start = found.start() + 1
    return [(found[0], found[0].lower()) if found[2] else ('"' if found[1] else found[3],) * 2
            for found in _TOKEN.finditer(text, start)]  # fmt: skip


def _has_operator(tokens: Sequence[tuple[str, str]]) -> bool:
    """Whether there is an operator of events."""
    words = ["", "", *(lower for _, lower in tokens), "", ""]
    for at in range(2, len(words) - 2):
        word = words[at]
        if word not in _BRACED and word != "union":
            continue
        before, behind = words[at - 1], words[at + 1]
        if before in ("/", "@", ":", ">", "$", "."):
            continue
        if word in _BRACED and behind == "{":
            return True
        if word in ("next", "union") and _is_source(before, words[at - 2]) and (behind == "(" or _is_word(behind)):
            return True
    return False


def _is_source(word: str, before: str) -> bool:
    """Whether a source may end with a word."""
    return word == ")" or (_is_word(word) and before in _BEFORE_A_SOURCE)


def _is_word(word: str) -> bool:
    return word[:1].isidentifier() and word not in _NO_SOURCE


def _bare_name(tokens: Sequence[tuple[str, str]]) -> str:
    """The bare name that a statement reads, parentheses aside, or nothing."""
    places = _sources(tokens)
    at = next(places, -1)
    if at < 0 or not _is_word(tokens[at][1]) or not _NAME.fullmatch(tokens[at][0]):
        return ""
    name = tokens[at][0]
    windowed = False
    for _, word in tokens[at + 1 :]:
        if word == "publish":
            break
        windowed = windowed or word == "within"
        if word != ")" and not (windowed and (word in ".∞" or word.isalnum())):
            return ""
    return name


def _sources(tokens: Sequence[tuple[str, str]]) -> Iterator[int]:
    """Where the first source of a statement begins."""
    at = 0
    while at < len(tokens):
        word = tokens[at][1]
        if word in ("(", "from"):
            at += 1
        elif word == "select":
            depth, at = 0, at + 1
            while at < len(tokens) and not (depth == 0 and tokens[at][1] == "from"):
                depth += {"(": 1, ")": -1}.get(tokens[at][0], 0)
                at += 1
        else:
            yield at
            return
