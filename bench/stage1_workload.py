"""Documents and tree patterns for the benchmarks of stage 1, and exact matching as the reference for it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, repeat
from random import Random
from typing import cast

from templates.catalog import Catalog, Placement, StepEdge
from templates.witness import Witnesses, node_id, plain_node
from xpath_stage.binder import PreparedNode, each_binding
from xpath_stage.documents import ParsedDocument, StreamDocument
from xpath_stage.evaluator import XPathStage
from xpath_stage.filters import tree_value
from xscl.algebra.joins import Condition, Conjunct, PatternNode, Side, Term, Test

STREAM = "S"
_TEXT = (
    "stream join event query template witness node value path atom feed book author title data system window time "
    "graph edge engine model scale cache view index plan cost blog news item link"
)
_WORDS = _TEXT.split()
_DC, _CONTENT = "http://purl.org/dc/elements/1.1/", "http://purl.org/rss/1.0/modules/content/"


def evaluate(stage: XPathStage, texts: Iterable[bytes]) -> Witnesses:
    """The witnesses of documents, which are read as the engine reads them: known tags without a parser."""
    trees = cast(Iterable[ParsedDocument], stage.outlines.parsed(zip(repeat(STREAM), texts), None))  # none is refused
    return stage.evaluate(zip(count(), repeat(STREAM), repeat(0), repeat(0), trees))


def flat_item(rng: Random) -> bytes:
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
    markup = "".join(rng.choice(["<p><b/></p>", "<p/>", "<i><u/><u/></i>", "<br/>"]) for _ in range(12))
    return feed_item(rng).replace(b"</item>", f"<body>{markup}</body></item>".encode())


def dblp(rng: Random, size: int) -> bytes:
    parts, length = ["<dblp>"], 0
    while length < size:
        kind = rng.choice(["article", "inproceedings", "book", "phdthesis"])
        fields = [f"<author>{_words(rng, 2)}</author>" for _ in range(rng.randint(1, 5))]
        fields.append(f"<title>{_words(rng, 8)}</title><pages>1-{rng.randrange(99)}</pages>")
        fields.append(f"<year>{rng.choice(range(1990, 2008))}</year>")
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
    parts, length = ["<site>"], 0
    for place, (section, record_of) in enumerate(_RECORDS.items(), 1):
        parts.append(f"<{section}>")
        while length < size * place / 3:
            record = record_of(rng)
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
        '<current>9</current><itemref item="i1"/><seller person="p2"/><annotation><author person="p3"/><description>'
        f"{_parlist(rng, 2)}</description></annotation><quantity>1</quantity><type>Regular</type></open_auction>"
    )


_RECORDS: dict[str, Callable[[Random], str]] = {"regions": _region_item, "people": _person, "open_auctions": _auction}


def _words(rng: Random, number: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(number))


_SMALL: dict[str, Callable[[Random], bytes]] = {"flat": flat_item, "items": feed_item, "new-shapes": new_shape_item}
_LARGE: dict[str, Callable[[Random, int], bytes]] = {"xml-1mb": xmark, "dblp-1mb": dblp}
LARGE = tuple(_LARGE)


def stage1_documents(kind: str, number: int, seed: int = 3, size: int = 1_000_000) -> Iterator[bytes]:
    """`number` documents of one of `DOCUMENT_KINDS`; those of a kind in `LARGE` have about `size` bytes."""
    rng = Random(seed)
    return (_SMALL[kind](rng) if kind in _SMALL else _LARGE[kind](rng, size) for _ in range(number))


@dataclass(frozen=True)
class TagNames:
    """The names in patterns: `roots` with weight by repetition, `leaves`, and those of them that lie deeper."""

    roots: tuple[str, ...]
    leaves: tuple[str, ...]
    deep: frozenset[str]
    attributes: tuple[str, ...]


def _tag_names(roots: str, leaves: str, deep: str, attributes: str) -> TagNames:
    return TagNames(tuple(roots.split()), tuple(leaves.split()), frozenset(deep.split()), tuple(attributes.split()))


ITEMS = _tag_names(
    "item item item * entry post",
    f"title link {{{_DC}}}creator category description {{{_CONTENT}}}encoded pubDate guid source enclosure "
    "channel_url name",
    "channel_url name",
    "url isPermaLink type",
)
FLAT = replace(ITEMS, leaves=("item_url", "channel_url", "title", "timestamp", "description"), deep=frozenset())
DBLP = _tag_names(
    "article inproceedings book * phdthesis dblp",
    "author title pages year volume journal booktitle crossref ee url cite label ref",
    "label ref",
    "key mdate",
)
XMARK = _tag_names(
    "item person open_auction * description site",
    "name location text keyword listitem parlist from date city age bidder increase quantity description annotation "
    "incategory",
    "text keyword listitem from date city age increase",
    "id category person",
)
VOCABULARIES = {"flat": FLAT, "items": ITEMS, "new-shapes": ITEMS, "xml-1mb": XMARK, "dblp-1mb": DBLP}
DOCUMENT_KINDS = tuple(VOCABULARIES)


def patterns(vocabulary: TagNames, number: int, filtered: float, valued: float = 0.0, seed: int = 7) -> list[Conjunct]:
    """`number` distinct patterns, each joined with itself over its one to four leaves. `filtered` is the share with an
    existential filter, `valued` with a value filter or an attribute. At need, leaves are added that no document has."""
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
    joined = []
    for pattern in found.values():
        variables = sorted(node.var for node in pattern.children if node.var)
        side = Side(STREAM, pattern)
        joined.append(Conjunct(side, side, tuple((Term(var), Term(var)) for var in variables)))
    return joined


def _pattern(rng: Random, vocabulary: TagNames, leaves: list[str], filtered: float, valued: float) -> PatternNode:
    size = min(4, int(rng.paretovariate(1.2)), len(leaves))
    children = []
    for i, leaf in enumerate(rng.sample(leaves, size), 1):
        axis = "//" if leaf in vocabulary.deep or rng.random() < 0.3 else "/"
        children.append(PatternNode(axis, _element(leaf), var=f"x{i}"))
    if rng.random() < valued:
        if rng.random() < 0.5:
            word = Condition(literal=rng.choice(_WORDS))
            children.append(PatternNode("/", _element(rng.choice(leaves)), (word,)))
        else:
            axis = rng.choice(["/", "//"])
            children.append(PatternNode(axis, Test("attribute", "", rng.choice(vocabulary.attributes)), var="x0"))
    if rng.random() < filtered:
        below = (PatternNode("/", _element(rng.choice(leaves))),) if rng.random() < 0.3 else ()
        children.append(PatternNode(rng.choice(["/", "//"]), _element(rng.choice(leaves)), children=below))
    return PatternNode("//", _element(rng.choice(vocabulary.roots)), children=tuple(children), var="x")


def _element(name: str) -> Test:
    if name == "*":
        return Test("element", "*", "*")
    uri, _, local = name[1:].rpartition("}") if name.startswith("{") else ("", "", name)
    return Test("element", uri, local)


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


WitnessCounts = tuple[Counter[tuple[object, ...]], Counter[tuple[object, ...]]]


class WitnessSets:
    def __init__(self, batch: Witnesses, groups: dict[int, list[StepEdge]]) -> None:
        for group, var1, var2 in zip(*batch.r_group.to_pydict().values(), strict=True):
            groups.setdefault(group, []).append((var1, var2))
        self.edges: dict[tuple[int, StepEdge], set[tuple[int, int]]] = {}
        for docid, group, node1, node2 in zip(*batch.r_bin.to_pydict().values(), strict=True):
            for edge in groups[group]:
                rows = self.edges.setdefault((docid, edge), set())
                assert (node1, node2) not in rows, "a witness is given once"
                rows.add((node1, node2))
        self.values: dict[tuple[int, int], str] = {}
        for docid, node, value, _ in zip(*batch.r_doc.to_pydict().values(), strict=True):
            assert (docid, node) not in self.values, "a value is given once"
            self.values[docid, node] = value


def rows_of(batch: Witnesses, groups: dict[int, frozenset[StepEdge]]) -> WitnessCounts:
    """The rows of R_bin, with edges for a group's number, and of R_doc; the batch's new groups are put in `groups`."""
    edges: dict[int, set[StepEdge]] = {}
    for group, var1, var2 in zip(*batch.r_group.to_pydict().values(), strict=True):
        edges.setdefault(group, set()).add((var1, var2))
    groups.update((group, frozenset(pairs)) for group, pairs in edges.items())
    r_bin = zip(*batch.r_bin.to_pydict().values(), strict=True)
    return (
        Counter((docid, groups[group], node1, node2) for docid, group, node1, node2 in r_bin),
        Counter(zip(*batch.r_doc.to_pydict().values(), strict=True)),
    )


def check_side(
    catalog: Catalog, conjunct: Conjunct, placement: Placement, side: int, document: StreamDocument, found: WitnessSets
) -> int:
    """Checks that the witnesses of a pattern join to its matches in a document. Returns the number of matches."""
    minor, stream = placement.minors[side], conjunct.sides()[side].stream
    if stream != document.stream:
        return 0
    row = catalog.variables_of(placement.row)
    variables = [row[slot] for slot in placement.slots[side]]
    parents = [node.parent for node in minor.nodes]
    marked = _mark(conjunct.sides()[side].pattern, (), {node.path for node in minor.nodes})
    functions = [node.definition[-1].functions for node in minor.nodes]
    chains = [catalog.chains[names] if names else 0 for names in functions]
    expected = {
        tuple(node_id(*bound[str(node.path)], chain) for node, chain in zip(minor.nodes, chains, strict=True))
        for bound in map(dict, each_binding(PreparedNode(marked), document.tree, {}))
    }
    assert _joined(found, document.docid, parents, variables) == expected
    for nodes in expected:
        for leaf in minor.node_of.values():
            text = tree_value(document.tree, plain_node(nodes[leaf]), functions[leaf])
            assert found.values[document.docid, nodes[leaf]] == text
    return len(expected)


def _mark(pattern: PatternNode, path: tuple[int, ...], paths: set[tuple[int, ...]]) -> PatternNode:
    children = tuple(_mark(child, (*path, i), paths) for i, child in enumerate(pattern.children))
    return replace(pattern, var=str(path) if path in paths else None, children=children)


def _joined(found: WitnessSets, docid: int, parents: list[int | None], variables: list[int]) -> set[tuple[int, ...]]:
    if len(variables) == 1:
        rows = found.edges.get((docid, (variables[0], variables[0])), set())
        assert all(node1 == node2 for node1, node2 in rows)
        return {(node1,) for node1, _ in rows}
    so_far: set[tuple[int, ...]] = set()
    for node, parent in enumerate(parents):
        if parent is not None:
            rows = found.edges.get((docid, (variables[parent], variables[node])), set())
            # Nodes stand in pre-order, so the first edge leads from the top to its first child.
            above = {(top,) for top, _ in rows} if node == 1 else so_far
            so_far = {(*nodes, low) for nodes in above for top, low in rows if nodes[parent] == top}
    return so_far
