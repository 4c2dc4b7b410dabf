"""Scripts of very many queries: equal ones under other names, ones that differ in constants, quite different ones, and
mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from random import Random

from bench.expert_workload import parameters
from feeds.documents import Document

START, SECOND = 1_780_000_000_000_000, 1_000_000

_TAGS = [f"{kind}{n}" for kind in ("title", "author", "link", "date", "place", "topic", "text", "id") for n in range(9)]
_FUNCTIONS = ("lower-case", "upper-case", "normalize-space", "canonical-url", "host")
_MISTAKE_EVERY = 100
"""In `mistakes`, one of so many queries has a mistake."""

_LEFT, _RIGHT = "S//a->x[./t->t][./w->w]", "S//b->y[./t->u]"


def _names(number: int) -> Iterator[str]:
    for _ in range(number):
        yield f"FROM {_LEFT} FOLLOWED BY {{t = u, 60 min}} {_RIGHT}"


def _windows(number: int) -> Iterator[str]:
    for n in range(number):
        yield f"FROM {_LEFT} FOLLOWED BY {{t = u, {3_600 + n} s}} {_RIGHT}"


def _keywords(number: int) -> Iterator[str]:
    for n in range(number):
        predicate = f't = u AND contains(w, "word{n % 1_000:03}.")'
        yield f"FROM {_LEFT} FOLLOWED BY {{{predicate}, {3_600 + n} s}} {_RIGHT}"


def _expert(number: int) -> Iterator[str]:
    for one in parameters(number):
        yield one.xscl


def _different(number: int) -> Iterator[str]:
    """Texts of which no two are equal. Hardly any two differ in constants only."""
    rng, seen = Random(8), set[str]()
    while len(seen) < number:
        text = _Text(rng).query()
        if text not in seen:
            seen.add(text)
            yield text


def _mistakes(number: int) -> Iterator[str]:
    for n, text in enumerate(_different(number)):
        yield _wrong(text, n // _MISTAKE_EVERY) if n % _MISTAKE_EVERY == 0 else text


def _all_wrong(number: int) -> Iterator[str]:
    for n, text in enumerate(_windows(number)):
        yield _wrong(text, n)


KINDS: dict[str, Callable[[int], Iterator[str]]] = {
    "names": _names,
    "windows": _windows,
    "keywords": _keywords,
    "expert": _expert,
    "different": _different,
    "mistakes": _mistakes,
    "all-wrong": _all_wrong,
}
"""Texts of queries."""

WRONG = ("mistakes", "all-wrong")
"""The kinds that cannot be registered."""


def queries(kind: str, number: int) -> Iterator[str]:
    """The queries of a kind, each with a name of its own: number 7 is called n7."""
    for n, text in enumerate(KINDS[kind](number)):
        yield f"{text} PUBLISH n{n}"


def script(kind: str, number: int) -> str:
    """The queries of a kind as a script, one on each line."""
    return "".join(f"{text};\n" for text in queries(kind, number))


def documents(number: int) -> list[Document]:
    """Pairs of documents that match for `names`, `windows` and some of `keywords`, and that a few of `different`
    match."""
    rng, made = Random(9), []
    for n in range(number):
        text = f"<w>word{n * 3 % 1_000:03}. and more</w>"
        fields = "".join(f"<{tag}>value {n % 3}</{tag}>" for tag in rng.sample(_TAGS, 20))
        for place, name in enumerate("ab"):
            xml = f"<{name}><t>value {n}</t>{text}{fields}</{name}>"
            made.append(Document(f"{name}{n}", xml, time=START + (place * 60 + n) * SECOND))
    return made


def _wrong(text: str, n: int) -> str:
    """A query with a mistake: in its syntax, in a name, or in a window."""
    match n % 3:
        case 0:
            return text.replace("[", "[[", 1)
        case 1:
            return text.replace(" = ", " = nothing.", 1) if " = " in text else f"{text} extra"
    return text.replace("FROM ", "FORM ", 1)


class _Text:
    """Writes one query at random: a filter, or a join of two or three blocks, each over paths of its own."""

    def __init__(self, rng: Random) -> None:
        self._rng, self._numbers = rng, count()

    def query(self) -> str:
        rng = self._rng
        roots, leaves = [], []
        for _ in range(rng.choice((1, 2, 2, 2, 3))):
            block, root, bound = self._block()
            roots.append((block, root))
            leaves.append(bound)
        source = roots[0][0]
        for place, (block, _) in enumerate(roots[1:], 1):
            left, right, number = leaves[place - 1], leaves[place], rng.choice((1, 1, 2))
            joins = dict.fromkeys(self._equality(left, right) for _ in range(number))
            operator = rng.choice(("FOLLOWED BY", "JOIN"))
            source += f" {operator} {{{' AND '.join(joins)}, {rng.randint(1, 200)} h}} {block}"
        return f"{self._select([root for _, root in roots], [leaf for one in leaves for leaf in one])}FROM {source}"

    def _name(self) -> str:
        return f"v{next(self._numbers)}"

    def _block(self) -> tuple[str, str, list[str]]:
        rng, root = self._rng, self._name()
        bound = [self._name() for _ in range(rng.randint(1, 3))]
        paths = [f"[.{rng.choice(('/', '//'))}{rng.choice(_TAGS)}->{name}]" for name in bound]
        if rng.random() < 0.4:
            paths.append(f"[.{rng.choice(('/', '//'))}{rng.choice(_TAGS)}]")
        if rng.random() < 0.3:
            paths.append(f'[./{rng.choice(_TAGS)} = "value {rng.randrange(100)}"]')
        step = rng.choice(("//a", "//b", "/a", "//item", "//*"))
        return f"S{step}->{root}{''.join(paths)}", root, bound

    def _equality(self, left: list[str], right: list[str]) -> str:
        rng = self._rng
        one, other = rng.choice(left), rng.choice(right)
        if rng.random() < 0.2:
            function = rng.choice(_FUNCTIONS)
            return f"{function}({one}) = {function}({other})"
        return f"{one} = {other}"

    def _select(self, roots: list[str], leaves: list[str]) -> str:
        rng = self._rng
        match rng.randrange(3):
            case 0:
                return ""
            case 1:
                items = [
                    *rng.sample(leaves, rng.randint(1, len(leaves))),
                    f"{rng.choice(roots)}/{rng.choice(_TAGS)} AS p",
                ]
                return f"SELECT {', '.join(items)} "
        return f'SELECT <found by="{{{rng.choice(leaves)}}}"><about>{{{rng.choice(roots)}}}</about></found> '
