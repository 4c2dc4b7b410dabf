"""Random items whose titles nearly repeat one another, and queries that find those that do, by near() or similar()."""

from __future__ import annotations

from random import Random
from xml.sax.saxutils import escape

from feeds.documents import Document
from tests.generate.documents import SECOND, chance
from xscl.parser import parse_script
from xscl.syntax import Script

WORDS = (
    *("storm", "Storm", "hits", "the", "coast", "a", "rain", "ﬁre", "FIRE", "Straße", "strasse", "2", "3.5", "it's"),
    *("京都市", "東京タワー", "ไทย", "café", "cafe\u0301", "—", "…"),
)
WHOLE = 'concat(a/t, " ", a/@k)', 'upper-case(concat(b/t, " - ", lower-case(b/@k), b/none))'
VALUES = (
    *("tokens({})", "upper-case(tokens({}))", "lower-case(extract({}, '[A-Za-z]+'))", "tokens(lower-case({}))"),
    *("extract({}, '([a-z])[a-z]*', 'i')", "extract(concat({}, '2'), '[0-9]')"),
)
PATHS = ("x", "a/@k", "a/t"), ("y", "b/@k", "b/t")
THRESHOLDS = ("0.5", "0.6", "0.66", "0.75", ".8", "0.8", "1")
SIMILAR = ("0.05", "0.12", ".15", "0.3", "0.66", "1")


def near_case(seed: int, queries: int = 8, documents: int = 24) -> tuple[Script, list[Document]]:
    """A script of queries with near() and similar(), and documents of which many are near others."""
    rng = Random(seed)
    texts = [_text(rng) for _ in range(6)]
    script = parse_script(";".join(_query(rng, number) for number in range(queries)))
    return script, [_document(rng, number, texts) for number in range(documents)]


def _text(rng: Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.choice((0, 1, 2, 4, 6, 9, 12))))


def _varied(rng: Random, texts: list[str]) -> str:
    """One of some texts, perhaps with other words, or in another order."""
    words = rng.choice(texts).split(" ")
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        words[rng.randrange(len(words))] = rng.choice(WORDS)
    if chance(rng, 20):
        rng.shuffle(words)
    return " ".join(words)


def _document(rng: Random, number: int, texts: list[str]) -> Document:
    titles = "".join(f"<t>{escape(_varied(rng, texts))}</t>" for _ in range(rng.choice((1, 1, 1, 2, 3))))
    items = f'<a k="{escape(_varied(rng, texts))}">{titles}<c>{rng.randrange(2)}</c></a>'
    if chance(rng, 20):
        items = f"<r>{items}<a><t>{escape(_varied(rng, texts))}</t><c>1</c></a></r>"
    time = rng.randrange(12) * SECOND
    return Document(f"d{number}", items, "ST"[chance(rng, 25)], (time, time))


def _near(rng: Random, one: str, other: str) -> str:
    if chance(rng, 40):
        return f"similar({one}, {other}, {rng.choice(SIMILAR)})"
    return f"near({one}, {other}, {rng.choice(THRESHOLDS)})"


def _query(rng: Random, number: int) -> str:
    one, other = rng.choice((("x", "y"), ("x", "y"), ("lower-case(x)", "y"), ("a/@k", "y"), ("x", "b/t"), WHOLE))
    near = _near(rng, one, other)
    if chance(rng, 30):
        values = [rng.choice(VALUES), rng.choice((*VALUES, "{}"))]
        values = [value.format(rng.choice(paths)) for value, paths in zip(values, PATHS, strict=True)]
        near = " = ".join(values if chance(rng, 80) else values[::-1])
    shape = rng.randrange(100)
    if shape < 15:
        near = f"{near} AND c = d"
    elif shape < 30:
        near = f"{near} AND c != d"
    elif shape < 40:
        near = f"({near} OR x = y)"
    elif shape < 50:
        near = f"{near} AND {_near(rng, 'a/@k', 'b/@k')}"
    operator = rng.choice(("FOLLOWED BY", "JOIN", "JOIN UNORDERED"))
    window = rng.choice(("INF", "3", "6", "0"))
    left, right = (
        f"{rng.choice('SST')}//a->{item}[./t->{title}][./c->{channel}]" for item, title, channel in ("axc", "byd")
    )
    join = f"{left} {operator} {{{near}, {window}}} {right}"
    if chance(rng, 20):
        third = _near(rng, rng.choice(("y", "concat(b/t, b/none)")), "z")
        join += f" {rng.choice(('JOIN', 'FOLLOWED BY'))} {{{third}, {window}}} S//a[./t->z]"
    select = rng.choice(
        ("", "SELECT x, y FROM ", "SELECT c FROM ", f"SELECT {rng.choice(VALUES).format('x')} AS v FROM ")
    )
    if chance(rng, 10):
        told = rng.choice(('"storm hits the coast"', '"STRASSE"', '"京都市 rain"', '"hits the"', '"it\'s a"'))
        told = rng.choice((_near(rng, "./t", told), f"has-words(./t, {told})", f"has-phrase(./@k, {told})"))
        value = rng.choice(VALUES).format("./t")
        tests = f"{value} = ./@k", f"not({value} != 'a')", f"contains({value}, 'st')", value, f"{value} > 1"
        told = told if chance(rng, 50) else rng.choice(tests)
        join, select = f"S//a->a[{told}]", ""
    return f"{select or 'FROM '}{join} PUBLISH p{number}"


def near_texts(rng: Random) -> tuple[str, str]:
    """Two texts, of which the second one is often near the first one."""
    words = rng.choices(WORDS, k=rng.choice((0, 1, 3, 8, 20)))
    others = [rng.choice(WORDS) if chance(rng, 20) else word for word in words]
    return " ".join(words), " ".join(others[rng.randrange(2) :])
