"""Documents and tree patterns, also as XPaths, for the benchmark of stage 1. The same seed gives the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from random import Random

from xscl.algebra.joins import Conjunct, Side, Term
from xscl.algebra.trees import Condition, PatternNode, Test

_TEXT = (
    "stream join event query template witness node value path atom feed book author title data system window time "
    "graph edge engine model scale cache view index plan cost blog news item link"
)
_WORDS = _TEXT.split()
_DC, _CONTENT = "http://purl.org/dc/elements/1.1/", "http://purl.org/rss/1.0/modules/content/"
_YEARS = range(1990, 2008)

STREAM = "S"


def flat_item(rng: Random) -> bytes:
    """The item of the thesis (6.6.3): five leaves below the root."""
    return (
        f"<item><item_url>http://i.example/{rng.randrange(10**6)}</item_url>"
        f"<channel_url>http://c.example/{rng.randrange(418)}</channel_url><title>{_words(rng, 6)}</title>"
        f"<timestamp>{rng.randrange(10**9)}</timestamp><description>{_words(rng, 40)}</description></item>"
    ).encode()


def feed_item(rng: Random) -> bytes:
    """An entry of 10 to 20 nodes with optional and repeated fields, of some two hundred shapes."""
    parts = [f'<item xmlns:dc="{_DC}" xmlns:content="{_CONTENT}"><title>{_words(rng, 6)}</title>']
    parts.append(f"<link>http://example.org/{rng.randrange(10**6)}</link>")
    parts += [f"<dc:creator>{_words(rng, 2)}</dc:creator>" for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    parts += [f"<category>{rng.choice(_WORDS)}</category>" for _ in range(rng.choice([0, 1, 2, 2, 3, 4]))]
    parts.append(f"<description><![CDATA[<p>{_words(rng, 30)}</p>]]></description>")
    if rng.random() < 0.5:
        parts.append(f"<content:encoded>&lt;div&gt;{_words(rng, 60)}&lt;/div&gt;</content:encoded>")
    parts.append("<pubDate>Mon, 01 Jan 2007 00:00:00 GMT</pubDate>")
    parts.append(f'<guid isPermaLink="false">{rng.randrange(10**8)}</guid>')
    channel = f"http://c.example/{rng.randrange(418)}"
    parts.append(f'<source url="{channel}"><channel_url>{channel}</channel_url><name>{_words(rng, 1)}</name></source>')
    if rng.random() < 0.4:
        parts.append(f'<enclosure url="http://e.example/{rng.randrange(999)}" length="1" type="audio/mpeg"/>')
    return "".join([*parts, "</item>"]).encode()


def new_shape_item(rng: Random) -> bytes:
    """A feed item with markup in it: hardly any two have the same shape."""
    markup = "".join(rng.choice(["<p><b/></p>", "<p/>", "<i><u/><u/></i>", "<br/>"]) for _ in range(12))
    return feed_item(rng).replace(b"</item>", f"<body>{markup}</body></item>".encode())


def dblp(rng: Random, size: int) -> bytes:
    """A bibliography: many small records below one root."""
    parts, length = ["<dblp>"], 0
    while length < size:
        kind = rng.choice(["article", "inproceedings", "book", "phdthesis"])
        fields = [f"<author>{_words(rng, 2)}</author>" for _ in range(rng.randint(1, 5))]
        fields.append(f"<title>{_words(rng, 8)}</title><pages>1-{rng.randrange(99)}</pages>")
        fields.append(f"<year>{rng.choice(_YEARS)}</year>")
        if kind == "article":
            fields.append("<volume>3</volume><journal>TODS</journal>")
        else:
            fields.append("<booktitle>SIGMOD</booktitle><crossref>conf/x</crossref>")
        if rng.random() < 0.6:
            fields.append("<ee>http://doi.example/x</ee>")
        fields.append(f"<url>db/{rng.randrange(10**5)}</url>")
        if rng.random() < 0.3:
            fields.append("<cite><label>a</label><ref><author>x y</author><title>z</title></ref></cite>")
        record = f'<{kind} key="k{rng.randrange(10**7)}" mdate="2007-01-01">{"".join(fields)}</{kind}>'
        length += len(record)
        parts.append(record)
    return "".join([*parts, "</dblp>"]).encode()


def xmark(rng: Random, size: int) -> bytes:
    """An auction site like that of XMark: deep, with mixed content and a list within a list."""
    parts, length = ["<site>"], 0
    for section in ("regions", "people", "open_auctions"):
        parts.append(f"<{section}>")
        while length < size * (1 + ("regions", "people", "open_auctions").index(section)) / 3:
            record = _RECORDS[section](rng)
            length += len(record)
            parts.append(record)
        parts.append(f"</{section}>")
    return "".join([*parts, "</site>"]).encode()


def _region_item(rng: Random) -> str:
    categories = "".join(f'<incategory category="c{rng.randrange(99)}"/>' for _ in range(rng.randint(1, 4)))
    mail = f"<mail><from>{_words(rng, 2)}</from><date>07/05/2000</date><text>{_words(rng, 9)}</text></mail>"
    return (
        f'<item id="i{rng.randrange(10**6)}"><location>{_words(rng, 1)}</location><quantity>1</quantity>'
        f"<name>{_words(rng, 3)}</name><payment>Cash</payment><description>{_parlist(rng, 2)}</description>"
        f"<shipping>now</shipping>{categories}<mailbox>{mail * rng.randint(0, 2)}</mailbox></item>"
    )


def _parlist(rng: Random, depth: int) -> str:
    if not depth or rng.random() < 0.5:
        return f"<text>{_words(rng, 8)} <keyword>{_words(rng, 1)}</keyword> {_words(rng, 4)} <bold>x</bold></text>"
    inner = "".join(f"<listitem>{_parlist(rng, depth - 1)}</listitem>" for _ in range(rng.randint(1, 3)))
    return f"<parlist>{inner}</parlist>"


def _person(rng: Random) -> str:
    watches = "".join(f'<watch open_auction="o{rng.randrange(999)}"/>' for _ in range(rng.randint(0, 4)))
    address = "<address><street>1</street><city>x</city><country>y</country></address>" * rng.randint(0, 1)
    return (
        f'<person id="p{rng.randrange(10**6)}"><name>{_words(rng, 2)}</name><emailaddress>m</emailaddress>{address}'
        f'<profile income="1"><interest category="c1"/><age>{rng.randrange(90)}</age></profile>'
        f"<watches>{watches}</watches></person>"
    )


def _auction(rng: Random) -> str:
    bidder = '<bidder><date>1</date><personref person="p1"/><increase>6.00</increase></bidder>'
    return (
        f'<open_auction id="o{rng.randrange(10**6)}"><initial>1</initial>{bidder * rng.randint(0, 5)}'
        "<current>9</current>"
        '<itemref item="i1"/><seller person="p2"/><annotation><author person="p3"/><description>'
        f"{_parlist(rng, 2)}</description></annotation><quantity>1</quantity><type>Regular</type></open_auction>"
    )


_RECORDS: dict[str, Callable[[Random], str]] = {
    "regions": _region_item,
    "people": _person,
    "open_auctions": _auction,
}


def _words(rng: Random, number: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(number))


# ------------------------------------------------------------ patterns


@dataclass(frozen=True)
class TagNames:
    """What patterns are made of: `roots` with weight by repetition, `leaves`, and those of them that lie deeper."""

    roots: tuple[str, ...]
    leaves: tuple[str, ...]
    deep: frozenset[str]
    attributes: tuple[str, ...]


_FIELDS = (
    f"title link {{{_DC}}}creator category description {{{_CONTENT}}}encoded "
    "pubDate guid source enclosure channel_url name"
)
ITEMS = TagNames(
    ("item", "item", "item", "*", "entry", "post"),
    tuple(_FIELDS.split()),
    frozenset({"channel_url", "name"}),
    ("url", "isPermaLink", "type"),
)
FLAT = replace(ITEMS, leaves=("item_url", "channel_url", "title", "timestamp", "description"), deep=frozenset())
_DBLP_FIELDS = "author title pages year volume journal booktitle crossref ee url cite label ref"
DBLP = TagNames(
    ("article", "inproceedings", "book", "*", "phdthesis", "dblp"),
    tuple(_DBLP_FIELDS.split()),
    frozenset({"label", "ref"}),
    ("key", "mdate"),
)
_XMARK_FIELDS = (
    "name location text keyword listitem parlist from date city "
    "age bidder increase quantity description annotation incategory"
)
XMARK = TagNames(
    ("item", "person", "open_auction", "*", "description", "site"),
    tuple(_XMARK_FIELDS.split()),
    frozenset({"text", "keyword", "listitem", "from", "date", "city", "age", "increase"}),
    ("id", "category", "person"),
)


def patterns(vocabulary: TagNames, number: int, filtered: float, valued: float = 0.0, seed: int = 7) -> list[Conjunct]:
    """`number` distinct patterns, each joined with itself over its leaves: one to four under a root.

    `filtered` is the share with an existential filter, `valued` that with a value filter or an attribute. Where the
    vocabulary is used up, leaves are added that no document has.
    """
    rng = Random(seed)
    found: dict[str, PatternNode] = {}
    absent, tries = count(), 0
    leaves = list(vocabulary.leaves)
    while len(found) < number:
        pattern = _pattern(rng, vocabulary, leaves, filtered, valued)
        tries += 1
        found.setdefault(str(pattern), pattern)
        if tries > 20 * number:
            leaves += [f"absent{next(absent)}" for _ in range(5)]
            tries = 0
    return [_self_join(pattern) for pattern in found.values()]


def _pattern(rng: Random, vocabulary: TagNames, leaves: list[str], filtered: float, valued: float) -> PatternNode:
    size = min(4, int(rng.paretovariate(1.2)), len(leaves))
    children = []
    for i, leaf in enumerate(rng.sample(leaves, size), 1):
        axis = "//" if leaf in vocabulary.deep or rng.random() < 0.3 else "/"
        children.append(PatternNode(axis, _test(leaf), var=f"x{i}"))
    if rng.random() < valued:
        if rng.random() < 0.5:
            word = Condition(literal=rng.choice(_WORDS))
            children.append(PatternNode("/", _test(rng.choice(leaves)), (word,)))
        else:
            axis = rng.choice(["/", "//"])
            children.append(PatternNode(axis, Test("attribute", "", rng.choice(vocabulary.attributes)), var="x0"))
    if rng.random() < filtered:
        below = (PatternNode("/", _test(rng.choice(leaves))),) if rng.random() < 0.3 else ()
        children.append(PatternNode(rng.choice(["/", "//"]), _test(rng.choice(leaves)), children=below))
    return PatternNode("//", _test(rng.choice(vocabulary.roots)), children=tuple(children), var="x")


def _test(name: str) -> Test:
    if name == "*":
        return Test("element", "*", "*")
    uri, _, local = name[1:].rpartition("}") if name.startswith("{") else ("", "", name)
    return Test("element", uri, local)


def _self_join(pattern: PatternNode) -> Conjunct:
    variables = sorted(node.var for node in pattern.children if node.var)
    side = Side(STREAM, pattern)
    return Conjunct(side, side, tuple((Term(var), Term(var)) for var in variables))


def xpaths(conjuncts: Iterable[Conjunct]) -> tuple[list[str], dict[str, str]]:
    """The distinct XPaths that give the nodes of every variable of the patterns, with the namespaces of their prefixes:
    to each variable the path from its pattern's root, the branches off it as predicates."""
    prefixes: dict[str, str] = {}
    paths = dict.fromkeys(path for conjunct in conjuncts for path in _to_variables(conjunct.left.pattern, prefixes))
    return list(paths), {prefix: uri for uri, prefix in prefixes.items()}


def _to_variables(node: PatternNode, prefixes: dict[str, str]) -> Iterator[str]:
    step, branches = _step(node, prefixes), [_branch(child, prefixes) for child in node.children]
    if node.var:
        yield step + "".join(branches)
    for i, child in enumerate(node.children):
        others = "".join(branches[:i] + branches[i + 1 :])
        for below in _to_variables(child, prefixes):
            yield step + others + below


def _branch(node: PatternNode, prefixes: dict[str, str]) -> str:
    return f"[.{_step(node, prefixes)}{''.join(_branch(child, prefixes) for child in node.children)}]"


def _step(node: PatternNode, prefixes: dict[str, str]) -> str:
    uri, local = node.test.uri, node.test.local
    name = local if uri in ("", "*") else f"{prefixes.setdefault(uri, f'n{len(prefixes)}')}:{local}"
    at = "@" if node.test.kind == "attribute" else ""
    return f"{node.axis}{at}{name}{''.join(f'[{condition}]' for condition in node.conditions)}"


def documents(kind: str, number: int, seed: int = 3, size: int = 1_000_000) -> Iterator[bytes]:
    """`number` documents of one of `KINDS`; those of a kind in `LARGE` have about `size` bytes."""
    rng = Random(seed)
    return (_MAKERS[kind](rng) if kind in _MAKERS else _LARGE[kind](rng, size) for _ in range(number))


_MAKERS: dict[str, Callable[[Random], bytes]] = {
    "flat": flat_item,
    "items": feed_item,
    "new-shapes": new_shape_item,
}
_LARGE: dict[str, Callable[[Random, int], bytes]] = {"xml-1mb": xmark, "dblp-1mb": dblp}
VOCABULARIES = {"flat": FLAT, "items": ITEMS, "new-shapes": ITEMS, "xml-1mb": XMARK, "dblp-1mb": DBLP}
KINDS, LARGE = tuple(VOCABULARIES), tuple(_LARGE)
