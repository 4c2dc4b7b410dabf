"""Random operations of live use, the same for the same seed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from feeds.documents import Visit, VisitOutcome
from tests.generate.absences import told_apart, with_absences
from tests.generate.documents import PUBLISHED, SECOND, START, STREAMS, chance
from tests.generate.near import near_case
from tests.generate.queries import with_once
from tests.generate.strategies import random_case
from tests.live import operations as ops
from tests.live.events import DEFINED, SCHEMAS, SETTLE, STATEMENTS, streams_read, text_of
from tests.live.model import has_inner_absence
from tests.live.operations import (
    Batch,
    Broken,
    Change,
    Doc,
    Operation,
    Pause,
    Reopen,
    Resume,
    Subscribe,
    Unsubscribe,
    taken,
)
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Join, Query, Script, Window

PLANS = ("signature", "signature", "views", "basic")
TEXTS = ("u", "u", "u", "U", " u ", "v", "http://Ex.org/p/", "http://ex.org/p#top", "https://ex.org/p")
FUNCTIONS = ("", "", "", "lower-case", "normalize-space", "canonical-url", "host")
WINDOWS = ("2", "5", "8", "INF")
JOINS = (0, 0, 1, 1, 1, 2, 3)
CHAINS = (0, 1, 2, 2, 2, 3)
HOWS: tuple[ops.How, ...] = ("replace", "replace", "add", "ensure")

Timing = tuple[str, ...]
FREE = ()
"""No document is late, and nothing is dropped."""
BOUNDED = ("bounded",)
"""Documents may be late."""
SILENT = ("bounded", "silent")
"""Silent streams may advance with the clock, too."""
FED = ("bounded", "silent", "fed")
"""Most documents are shown by feeds, which are visited."""


def random_operations(rng: Random, timing: Timing, length: int = 12, *, inner: bool = False) -> list[Operation]:
    """Some operations. The first opens the store. With `inner`, queries may have absences that more is made of."""
    script, documents = _case(rng, length, CHAINS if inner else JOINS)
    script = with_absences(rng, script, rng.choice((60, 80) if inner else (0, 50, 80)), inner=inner)
    script = with_once(rng, script, rng.choice((0, 30, 60)))
    queries = list(script.queries)
    if inner:
        # What all that have an inner absence share is decided for the first of them. Here it is seen which those are.
        queries = [
            replace(query, publish=query.publish or f"N{number}") if has_inner_absence(query.source) else query
            for number, query in enumerate(told_apart(script).queries)
        ]
        queries += [again for query in queries if chance(rng, 60) and (again := _with_the_same_inside(rng, query))]
    texts = [to_xscl(Script((query,), script.namespaces)) for query in queries]
    names = [*sorted({query.publish for query in queries if query.publish}), "q1", "q2", "q3"]
    operations: list[Operation] = [_reopen(rng, timing), _subscribe(rng, texts, len(texts) if chance(rng, 45) else 2)]
    items = fed(rng, documents) if "fed" in timing else documents

    def other(shape: int) -> Operation:
        if shape < 64:
            return _subscribe(rng, texts)
        if shape < 79:
            name = rng.choice(names)
            return rng.choice((Unsubscribe, Pause, Pause, Resume, Resume, Resume))(name)
        if shape < 86:
            return ops.Prune(rng.choice((None, 0, 3 * SECOND)), rng.choice((None, 0, 5 * SECOND)))
        if shape < 94:
            return _reopen(rng, timing)
        return ops.PassTime(rng.randrange(-3, 12) * SECOND) if shape < 97 else ops.Delivered()

    return _among_batches(rng, operations, items, length, other, 15)


def _among_batches(
    rng: Random, operations: list[Operation], waiting: Sequence[Doc | Visit], length: int,
    other: Callable[[int], Operation], broken: int,
) -> list[Operation]:  # fmt: skip
    """Operations with batches of the documents and other operations, which are drawn with a number from 48 to 99 if
    documents wait. `broken` percent of the changes fail."""
    while len(operations) < length or waiting:
        shape = rng.randrange(100)
        if len(operations) >= length or (shape < 48 and waiting):
            size = rng.choice((1, 2, 2, 3, 5))
            operation: Operation = Batch(tuple(waiting[:size]))
            waiting = waiting[size:]
        else:
            operation = other(shape)
        if isinstance(operation, Change) and chance(rng, broken):
            call, after = rng.choice((1, 2, 3, 4, 6, 9)), chance(rng, 40)
            operation = Broken(operation, call, after, *rng.choice(((True, False), (False, False), (False, True))))
        operations.append(operation)
    return operations


def fed(rng: Random, documents: Sequence[Doc]) -> list[Doc | Visit]:
    """The documents, most of them as entries of feeds, some with dates of long ago or of the future, amid visits. Feeds
    are awaited, come, fail for a while, come back, and go."""
    some = {stream: [f"{stream}{n}" for n in range(rng.choice((0, 1, 2, 3)))] for stream in (*STREAMS, *PUBLISHED[:1])}
    feeds = [(feed, stream) for stream, feeds in some.items() for feed in feeds]
    failing: dict[str, int] = {}
    items: list[Doc | Visit] = []
    now = min((document.t1 for document in documents), default=START)
    items += [Visit(feed, now, "awaited", stream) for feed, stream in feeds if chance(rng, 40)]
    for document in documents:
        if some.get(document.stream) and chance(rng, 85):
            document = replace(document, feed=rng.choice(some[document.stream]))
        now = max(now, document.t1)
        if (shift := rng.choice((0, 0, 0, -3, -6, -9, -40, 2)) * SECOND) and chance(rng, 60):
            document = replace(document, t0=document.t0 + shift, t1=document.t1 + shift)
        items.append(document)
        for feed, stream in rng.sample(feeds, rng.randrange(len(feeds) + 1)):
            if failing.get(feed, 0) > 0:
                failing[feed] -= 1
            elif chance(rng, 8):
                failing[feed] = rng.choice((1, 2, 5, 9))
            elif chance(rng, 70):
                outcome: VisitOutcome = rng.choice(("ended", "awaited")) if chance(rng, 12) else "complete"
                items.append(Visit(feed, now + rng.choice((0, 0, 0, -1, 1, 3)) * SECOND, outcome, stream))
    return items


READERS = (
    "SELECT m FROM E/match->m PUBLISH hits",
    "E/match->r[./k->v] FOLLOWED BY {v = w, 8} S/a[./x->w]",
    "S/a[./x->w] JOIN {w = v, 5} P/match[./k->v] PUBLISH news",
    "SELECT v FROM M/match[./p->v] PUBLISH alerts",
    "M/match->m; P/match->p",
)
"""Queries over what event statements publish."""


def operations_with_events(rng: Random, length: int = 14) -> list[Operation]:
    """Some operations on event statements and queries in one store. The first opens it."""
    texts = list(STATEMENTS)
    some = [rng.choice(texts) for _ in range(5)]
    # Those that differ from the first one in constants, windows or names only.
    alike = [text for text in texts if _shape(text) == _shape(some[0])]
    some += rng.sample(alike, min(3, len(alike)))
    queries = [*(_query(rng, (0, 0, 1, 1, 2)) for _ in range(3)), *rng.sample(READERS, 2)]
    definitions = dict.fromkeys(DEFINED, 0)
    names = [*sorted(SCHEMAS.keys() - DEFINED.keys()), *PUBLISHED, *(f"q{number}" for number in range(1, 6))]
    waiting = [_document(rng, number, length) for number in range(length + 4)]
    waiting.sort(key=lambda d: d.t1 + rng.randrange(5) * SECOND)

    def subscribe(count: int) -> Operation:
        if chance(rng, 15):
            name = rng.choice(list(DEFINED))
            definitions[name] = rng.randrange(len(DEFINED[name]))
        chosen = [STATEMENTS[text] for text in rng.sample(some, count)]
        defined = {name for one in chosen for name in streams_read(one)} & definitions.keys()
        script = text_of(chosen, {name: definitions[name] for name in sorted(defined)})
        parts = [script] if chosen else []
        parts += rng.sample(queries, rng.choice((0, 0, 1, 2)) if chosen else 1)
        how = rng.choice(HOWS)
        return Subscribe("; ".join(parts), how, how != "ensure" and chance(rng, 50))

    lateness, belated = rng.choice((None, 2 * SECOND, 5 * SECOND)), rng.choice(("take", "take", "drop"))
    opened = Reopen(lateness=lateness, settle=SETTLE, belated=belated)
    items = fed(rng, waiting) if chance(rng, 60) else waiting

    def other(shape: int) -> Operation:
        if shape < 74:
            return subscribe(rng.choice((0, 1, 1, 2, 3)))
        if shape < 92:
            return rng.choice((Unsubscribe, Pause, Pause, Resume, Resume))(rng.choice(names))
        return replace(opened, plan=rng.choice(PLANS))

    return _among_batches(rng, [opened, subscribe(3)], items, length, other, 10)


def _shape(text: str) -> str:
    return re.sub(r'"[uv]"|[0-9]+ s|PUBLISH .*', "", text).strip()


def small_case(rng: Random, queries: int, length: int) -> tuple[Script, list[Doc]]:
    """Short queries, most of them with joins, and small documents that they match."""
    script = parse_script("; ".join(_query(rng, JOINS) for _ in range(queries)))
    return script, [_document(rng, number, length) for number in range(length)]


def _case(rng: Random, length: int, joins: Sequence[int]) -> tuple[Script, list[Doc]]:
    """Queries, most of them with one of some numbers of joins, and documents that they match, in the order of
    arrival."""
    if chance(rng, 40):
        script, samples = random_case(rng.randrange(1 << 32), 6, length, 8)
        documents = list(map(taken, samples))
    elif chance(rng, 25):
        script, samples = near_case(rng.randrange(1 << 32), 6, length)
        documents = [taken(document, START) for document in samples]
    else:
        script = parse_script("; ".join(_query(rng, joins) for _ in range(8)))
        documents = [_document(rng, number, length) for number in range(length)]
    # Nearly in the order of time.
    documents.sort(key=lambda d: d.t1 + rng.randrange(6) * SECOND)
    if chance(rng, 10):
        at = rng.randrange(len(documents))
        documents[at] = replace(documents[at], xml=rng.choice(("<a", "<a>&no;</a>", "")))
    return script, documents


def _document(rng: Random, number: int, spread: int) -> Doc:
    published = chance(rng, 8)
    stream = rng.choice(PUBLISHED) if published else rng.choice(STREAMS)
    time = START + rng.randint(0, spread) * SECOND
    inner = "".join(f"<{tag}>{rng.choice(TEXTS)}</{tag}>" for tag in rng.choice(("x", "y", "xy", "xx", "yy")))
    tag = "match" if published else rng.choice("aab")
    identity = f"d{rng.randrange(number + 1) if chance(rng, 6) else number}"
    return Doc(identity, stream, time, time, f"<{tag}>{inner}</{tag}>")


def _query(rng: Random, numbers: Sequence[int]) -> str:
    """The text of a query with one of some numbers of joins, which may PUBLISH, or read what the queries of an earlier
    name PUBLISH."""
    level = rng.randrange(4)
    readable = ["S", "S", "T", *PUBLISHED[:level], *PUBLISHED[:level]]
    joins = rng.choice(numbers)
    names = (*PUBLISHED, rng.choice(("q1", "q2", "q3")))
    made = f" PUBLISH {names[level]}" if chance(rng, 75 if level < len(PUBLISHED) else 15) else ""

    def block(number: int, names: str = "xy") -> str:
        stream = rng.choice(readable)
        root = "//a" if stream in PUBLISHED else rng.choice(("/a", "/a", "//a", "/*", "/b"))
        leaf = rng.choice(names)
        return f"{stream}{root}->r{number}[./{leaf}->v{number}]"

    def join(left: str, one: int, right: str, other: int) -> str:
        function = rng.choice(FUNCTIONS)
        operands = [f"{function}(v{n})" if function else f"v{n}" for n in (one, other)]
        more = rng.choice(("", "", "", f" AND {rng.choice(('host', 'lower-case'))}(v{one}) != v{other}"))
        op = rng.choice(("JOIN", "JOIN", "JOIN UNORDERED", "FOLLOWED BY", "FOLLOWED BY"))
        return f"{left} {op} {{{operands[0]} = {operands[1]}{more}, {rng.choice(WINDOWS)}}} {right}"

    source = block(1)
    for number in range(2, joins + 2):
        right = block(number)
        if joins > 2 and number == joins:
            right = f"(SELECT v{number} FROM {join(right, number, block(0), 0)})"
        source = join(source, rng.randrange(1, number), right, number)
    select = rng.choice(
        (
            "",
            "",
            "",
            "SELECT v1 FROM ",
            f"SELECT v1, v{joins + 1} FROM " if joins else "",
            "SELECT <a>{v1}<x>{lower-case(v1)}</x></a> FROM ",
        )
    )
    return f"{select}{source}{made}"


def _subscribe(rng: Random, texts: Sequence[str], count: int | None = None) -> Subscribe:
    chosen = rng.sample(range(len(texts)), count or rng.choice((1, 1, 2, 3, len(texts))))
    text = script_of([texts[at] for at in sorted(chosen)])
    how = rng.choice(HOWS)
    return Subscribe(text, how, how != "ensure" and chance(rng, 50))


def _with_the_same_inside(rng: Random, query: Query) -> Query | None:
    """A query that has the inner absences of another one; None if it has none."""
    if not isinstance(query.source, Join) or not has_inner_absence(query.source):
        return None
    window = Window(rng.randrange(1, 9) * SECOND)
    return replace(query, source=replace(query.source, window=window), publish=f"{query.publish}x")


def script_of(texts: Sequence[str]) -> str:
    """Joins scripts, whose prefixes have the same meaning, into one."""
    scripts = [parse_script(text) for text in texts]
    namespaces = dict(pair for script in scripts for pair in script.namespaces)
    queries: list[Query] = [query for script in scripts for query in script.queries]
    return to_xscl(Script(tuple(queries), tuple(namespaces.items())))


def _reopen(rng: Random, timing: Timing) -> Reopen:
    plan = rng.choice(PLANS)
    if "bounded" not in timing:
        return Reopen(plan)
    lateness = rng.choice((2, 4, 7)) * SECOND
    by_stream = {"*": lateness, "T": rng.choice((0, 3, 6)) * SECOND}
    bounds = (lateness, by_stream) if timing == SILENT else (lateness, by_stream, None)
    belated = rng.choice(("take", "take", "take", "drop", {"*": "take", "T": "drop"}))
    if "silent" not in timing:
        return Reopen(plan, rng.choice(bounds), belated=belated)
    ahead, idle = rng.choice((None, 12 * SECOND)), rng.choice((6, 15)) * SECOND
    return Reopen(plan, rng.choice(bounds), idle, ahead, belated=belated)
