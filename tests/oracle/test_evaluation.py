"""The oracle against hand-checked cases: joins, published streams, output documents."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lxml import etree

from feeds.documents import Document
from tests.generate.documents import SECOND
from tests.oracle.cases import answers, brief, run
from tests.oracle.evaluation import comparable, evaluate
from xscl.parser import parse_script

BOOK = """<book><publisher/><author>Danny Ayers</author><author>Andrew Watt</author>
<title>Beginning RSS and Atom Programming</title><category>Scripting &amp; Programming</category>
<category>Web Site Development</category></book>"""
BLOG = """<blog><url/><author>Danny Ayers</author><title>Beginning RSS and Atom Programming</title>
<category>Book Announcement</category><category>Scripting &amp; Programming</category></blog>"""
TABLE_6_2 = """
S//book->x1[./author->x2][./title->x3] FOLLOWED BY {x2=x5 AND x3=x6, 60} S//blog->x4[./author->x5][./title->x6];
S//book->x1[./author->x2][./category->x7] FOLLOWED BY {x2=x5 AND x7=x8, 60} S//blog->x4[./author->x5][./category->x8];
S//blog->x4[./author->x5][./title->x6] FOLLOWED BY {x5=x5' AND x6=x6', 60} S//blog->x4'[./author->x5'][./title->x6']
"""


# ---------------------------------------------------------------- the thesis' example


def test_running_example() -> None:
    rows = run(TABLE_6_2, f"d1@0 {BOOK} | d2@30 {BLOG}")
    assert brief(rows) == ["q1: d1 d2 | x1=0 x4=0", "q2: d1 d2 | x1=0 x4=0"]
    assert {(row.t0, row.t1, row.streams) for row in rows} == {(0, 30 * SECOND, ("S", "S"))}
    one, two = (etree.fromstring(row.xml) for row in rows)
    assert [child.tag for child in one] == ["book", "blog"]
    assert etree.tostring(one[0]) == etree.tostring(two[0]) == etree.tostring(etree.fromstring(BOOK))


def test_running_example_needs_two_blogs_for_q3() -> None:
    rows = run(TABLE_6_2, f"d1@0 {BOOK} | d2@30 {BLOG} | d3@50 {BLOG}")
    assert brief(rows) == [
        "q1: d1 d2 | x1=0 x4=0",
        "q1: d1 d3 | x1=0 x4=0",
        "q2: d1 d2 | x1=0 x4=0",
        "q2: d1 d3 | x1=0 x4=0",
        "q3: d2 d3 | x4=0 x4'=0",
    ]


def test_running_example_bindings_of_table_6_4() -> None:
    first = TABLE_6_2.split(";")[0]
    assert answers(f"SELECT x1, x2, x3, x4, x5, x6 FROM {first}", f"d1@0 {BOOK} | d2@30 {BLOG}") == [
        "d1 d2 | x1=0 x2=2 x3=4 x4=0 x5=2 x6=3"
    ]


# ---------------------------------------------------------------- joins

JOINS = [
    # time
    ("//a->x FOLLOWED BY {x=y, 2} //a->y", "d1@1 <a><b>1</b></a> | d2@3 <a><b>1</b></a>", ["d1 d2 | x=0 y=0"]),
    ("//a->x FOLLOWED BY {x=y, 1999999 us} //a->y", "d1@1 <a><b>1</b></a> | d2@3 <a><b>1</b></a>", []),
    (
        "//a->x FOLLOWED BY {x=y, INF} //a->y",
        "d1@1 <a/> | d2@1 <a/> | d3@9999 <a/>",
        ["d1 d3 | x=0 y=0", "d2 d3 | x=0 y=0"],
    ),
    (
        "//a->x JOIN {x=y, 2} //a->y",
        "d1@1 <a><b>1</b></a> | d2@3 <a><b>1</b></a>",
        ["d1 d2 | x=0 y=0", "d2 d1 | x=0 y=0"],
    ),
    ("//a->x JOIN {x=y, 1.9} //a->y", "d1@1 <a><b>1</b></a> | d2@3 <a><b>1</b></a>", []),
    ("//a->x JOIN {x=y, 0} //a->y", "d1@1 <a/> | d2@1 <a/>", ["d1 d2 | x=0 y=0", "d2 d1 | x=0 y=0"]),
    ("//a->x JOIN {x=y, INF} //a->y", "d1@1 <r><a/><a/></r>", []),
    ("//a->x JOIN {x=y, INF} T//a->y", "d1@1 <a/> | T:d1@1 <a/>", ["d1 d1 | x=0 y=0"]),
    ("//a->x FOLLOWED BY {x=y, 9} T//a->y", "T:d1@1 <a/> | d2@2 <a/> | T:d3@3 <a/>", ["d2 d3 | x=0 y=0"]),
    # unordered: less by (t1, stream, id) comes first, where both orders match
    (
        "//a->x JOIN UNORDERED {x=y, 9} //a->y",
        "d2@1 <a/> | d1@1 <a/> | d0@2 <a/>",
        ["d1 d0 | x=0 y=0", "d1 d2 | x=0 y=0", "d2 d0 | x=0 y=0"],
    ),
    ("//a->x JOIN UNORDERED {x=y, 9} T//a->y", "d1@5 <a/> | T:d2@1 <a/>", ["d1 d2 | x=0 y=0"]),
    ("//a->x JOIN UNORDERED {x/b=y/c, 9} //a->y", "d1@5 <a><b>1</b></a> | d2@1 <a><c>1</c></a>", ["d1 d2 | x=0 y=0"]),
    (
        "//a->x JOIN UNORDERED {x/b=y/c, 9} //a->y",
        "d1@5 <a><b>1</b><c>2</c></a> | d2@1 <a><b>2</b><c>1</c></a>",
        ["d2 d1 | x=0 y=0"],
    ),
    # what SELECT asks for counts
    (
        "SELECT y/c AS c FROM //a->x JOIN UNORDERED {x/b=y/b, 9} //a->y",
        "d1@1 <a><b>1</b><c/></a> | d2@2 <a><b>1</b></a>",
        ["d2 d1 | c=2"],
    ),
    # of an inner join only what it asks for itself
    (
        "//a->x JOIN UNORDERED {x/b=y/b, 9} //a->y JOIN {x/c = z, 9} T//z->z",
        "d1@1 <a><b>1</b></a> | d2@2 <a><b>1</b><c>3</c></a> | T:z@1 <z>3</z>",
        [],
    ),
    # intervals: after the end, and from the first start to the last end
    (
        "//a->x FOLLOWED BY {x=y, 5} //a->y",
        "d1@1-3 <a/> | d2@3 <a/> | d3@4-6 <a/>",
        ["d1 d3 | x=0 y=0", "d2 d3 | x=0 y=0"],
    ),
    ("//a->x FOLLOWED BY {x=y, 4} //a->y", "d1@1-3 <a/> | d3@4-6 <a/>", []),
    ("//a->x JOIN {x=y, 7} T//a->y", "d1@1-9 <a/> | T:d2@3 <a/>", []),
    ("//a->x JOIN {x=y, 8} T//a->y", "d1@1-9 <a/> | T:d2@3 <a/>", ["d1 d2 | x=0 y=0"]),
    # values
    (
        "//a->x JOIN {x=y, 9} T//b->y",
        "d1@1 <a>x<i>y</i></a> | T:d2@1 <b>xy</b> | T:d3@1 <b>xy </b>",
        ["d1 d2 | x=0 y=0"],
    ),
    ("//a->x JOIN {x=y, 9} T//b->y", "d1@1 <a/> | T:d2@1 <b/> | T:d3@1 <c/>", ["d1 d2 | x=0 y=0"]),
    ("//@k->x JOIN {x=y, 9} T//b->y", "d1@1 <a k='1'><a k='2'/></a> | T:d2@1 <b>2</b>", ["d1 d2 | x=1/@k y=0"]),
    (
        "//a[./b->x] JOIN {x=y, 9} T//a[./b->y]",
        "d1@1 <a><b>1</b><b>2</b></a> | T:d2@1 <a><b>2</b><b>1</b></a>",
        ["d1 d2 | left=0 right=0"],
    ),
    # all of the predicate under one joint binding
    (
        "//a[./b->x] JOIN {x=y and x=z, 9} T//a[./b->y][./c->z]",
        "d1@1 <a><b>1</b><b>2</b></a> | T:d2@1 <a><b>1</b><c>2</c></a>",
        [],
    ),
    (
        "//a[./b->x] JOIN {x=y and x=z, 9} T//a[./b->y][./c->z]",
        "d1@1 <a><b>2</b></a> | T:d2@1 <a><b>2</b><c>2</c></a>",
        ["d1 d2 | left=0 right=0"],
    ),
    # a path on a variable: each occurrence is its own choice
    (
        "//a->x JOIN {x/b=y/b and x/b=y/c, 9} T//a->y",
        "d1@1 <a><b>1</b><b>2</b></a> | T:d2@1 <a><b>1</b><c>2</c></a>",
        ["d1 d2 | x=0 y=0"],
    ),
    (
        "//a->x JOIN {x/b=y/b or x/c=y/c, 9} T//a->y",
        "d1@1 <a><c>2</c></a> | T:d2@1 <a><b>1</b><c>2</c></a>",
        ["d1 d2 | x=0 y=0"],
    ),
    (
        "//a->x JOIN {x//@k=y and x/b[./c] != y, 9} T//b->y",
        "d1@1 <a><b k='1'><c/></b></a> | d3@1 <a><b k='1'/></a> | T:d2@1 <b>1</b>",
        ["d1 d2 | x=0 y=0"],
    ),
    # OR is a union of sets
    (
        "//a->x[./b->u] JOIN {u=y or u=y/b, 9} T//a->y",
        "d1@1 <a><b>1</b></a> | T:d2@1 <a><b>1</b></a>",
        ["d1 d2 | x=0 y=0"],
    ),
    # residual predicates
    (
        "//a[b->x][@k->u] JOIN {x=y and u!=v, 9} T//a[b->y][@k->v]",
        "d1@1 <a k='1'><b/></a> | T:d2@1 <a k='1'><b/></a> | T:d3@1 <a k='2'><b/></a>",
        ["d1 d3 | left=0 right=0"],
    ),
    (
        "//a[b->x][@k->u] JOIN {x=y and u<v, 9} T//a[b->y][@k->v]",
        "d1@1 <a k='9'><b/></a> | T:d2@1 <a k='10'><b/></a> | T:d3@1 <a k='x'><b/></a>",
        ["d1 d2 | left=0 right=0"],
    ),
    (
        "//b->x JOIN {x=y and x=1, 9} T//b->y",
        "d1@1 <b>1.0</b> | d2@1 <b>2</b> | T:d3@1 <r><b>1.0</b><b>2</b></r>",
        ["d1 d3 | x=0 y=1"],
    ),
    (
        "//b->x JOIN {x=y and x='1', 9} T//b->y",
        "d1@1 <b>1.0</b> | d2@1 <b>1</b> | T:d3@1 <r><b>1.0</b><b>1</b></r>",
        ["d2 d3 | x=0 y=2"],
    ),
    (
        "//a->a[b->x][c->u] JOIN {x=y and x=u, 9} T//b->y",
        "d1@1 <a><b>1</b><c>2</c></a> | d2@1 <a><b>1</b><c>1</c></a> | T:d3@1 <b>1</b>",
        ["d2 d3 | a=0 y=0"],
    ),
    (
        "//a[b->x][c->u] JOIN {x=y and contains(v, u), 9} T//a[b->y][c->v]",
        "d1@1 <a><b/><c>el</c></a> | T:d3@1 <a><b/><c>hello</c></a> | T:d4@1 <a><b/><c>lo</c></a>",
        ["d1 d3 | left=0 right=0"],
    ),
    (
        "//b->x JOIN {x=y and matches(x, '^[a-z]+$'), 9} T//b->y",
        "d1@1 <r><b>ab</b><b>a1</b></r> | T:d3@1 <r><b>ab</b><b>a1</b></r>",
        ["d1 d3 | x=1 y=1"],
    ),
    # derived values
    (
        "//b->x JOIN {lower-case(normalize-space(x)) = y, 9} T//b->y",
        "d1@1 <b> A  b</b> | T:d3@1 <b>a b</b>",
        ["d1 d3 | x=0 y=0"],
    ),
    (
        "//a->x JOIN {host(x/@k) = y, 9} T//b->y",
        "d1@1 <a k='http://www.Ex.org:80/p'/> | T:d3@1 <b>ex.org</b>",
        ["d1 d3 | x=0 y=0"],
    ),
    (
        "//b->x JOIN {canonical-url(x) = canonical-url(y), 9} T//b->y",
        "d1@1 <b>http://ex.org/p/?utm_source=z</b> | T:d3@1 <b>https://EX.org/p</b>",
        ["d1 d3 | x=0 y=0"],
    ),
    # chains: the left input is a hidden document with the interval of its inputs
    (
        "//a->x FOLLOWED BY {x=y, 9} //a->y FOLLOWED BY {y=z, 9} //a->z",
        "d1@1 <a/> | d2@2 <a/> | d3@3 <a/>",
        ["d1 d2 d3 | x=0 y=0 z=0"],
    ),
    ("//a->x FOLLOWED BY {x=y, 9} //a->y FOLLOWED BY {y=z, 1} //a->z", "d1@1 <a/> | d2@2 <a/> | d3@3 <a/>", []),
    ("//a->x FOLLOWED BY {x=y, 1} (//a->y FOLLOWED BY {y=z, 9} //a->z)", "d1@1 <a/> | d2@2 <a/> | d3@3 <a/>", []),
    (
        "//a->x FOLLOWED BY {x=y, 2} (//a->y FOLLOWED BY {y=z, 9} //a->z)",
        "d1@1 <a/> | d2@2 <a/> | d3@3 <a/>",
        ["d1 d2 d3 | x=0 y=0 z=0"],
    ),
    (
        "//a[./i->x] JOIN {x=y, 9} T//a[./i->y] JOIN {y=z, 9} S//a[./i->z]",
        "d1@1 <a><i/></a> | T:d2@1 <a><i/></a>",
        ["d1 d2 d1 | b1=0 b2=0 b3=0"],
    ),
    (
        "//a[./i->x] JOIN {x=y, 9} T//a->r[./i->y] JOIN {x=z, 9} S//a[./i->z]",
        "d1@1 <a><i/></a> | T:d2@1 <a><i/></a>",
        ["d1 d2 d1 | b1=0 r=0 b3=0"],
    ),
    (
        "//a->x JOIN {x=y, 9} T//a->y JOIN {x=u, 9} (//a->u JOIN {u=v, 9} T//a->v)",
        "d1@1 <a/> | T:d2@1 <a/>",
        ["d1 d2 d1 d2 | x=0 y=0 u=0 v=0"],
    ),
    # a parenthesised SELECT names what is seen outside
    (
        "(SELECT x FROM //a->x[./b->u] JOIN {u=y, 9} T//b->y) JOIN {x/b=z, 9} U//b->z",
        "d1@1 <a><b>1</b><b>2</b></a> | T:d2@1 <b>1</b> | U:d3@1 <b>2</b>",
        ["d1 d2 d3 | x=0 z=0"],
    ),
    (
        "(SELECT x, y/c AS c FROM //a->x JOIN {x/b=y/b, 9} T//a->y) JOIN {c=z, 9} U//b->z",
        "d1@1 <a><b>1</b></a> | T:d2@1 <a><b>1</b><c>2</c><c>2</c></a> | T:d4@1 <a><b>1</b></a> | U:d3@1 <b>2</b>",
        ["d1 d2 d3 | x=0 c=2 z=0", "d1 d2 d3 | x=0 c=3 z=0"],
    ),
    (
        "(SELECT lower-case(x) AS l FROM //a->x) JOIN {l=z, 9} U//b->z",
        "d1@1 <r><a>X</a></r> | U:d3@1 <b>x</b>",
        ["d1 d3 | l=1 z=0"],
    ),
    (
        "(SELECT * FROM //a[./i->x] JOIN {x=y, 9} T//b[.//i->y]) JOIN {left=z, 9} U//b[./c->z]",
        "d1@1 <a><i>1</i></a> | T:d2@1 <b><i>1</i></b> | U:d3@1 <r><b><c>1</c></b></r>",
        ["d1 d2 d3 | left=0 right=0 b3=1"],
    ),
    ("SELECT * FROM (SELECT x FROM //a->x JOIN {x=y, 9} T//a->y)", "d1@1 <a/> | T:d2@1 <a/>", ["d1 d2 | x=0"]),
    # a parenthesised SELECT over one block keeps that block's document: it does not join itself
    ("(SELECT x FROM //a->x) JOIN {x=y, 9} //a->y", "d1@1 <a/>", []),
]


@pytest.mark.parametrize(("script", "documents", "expected"), JOINS)
def test_joins(script: str, documents: str, expected: list[str]) -> None:
    assert answers(script, documents) == expected


# ---------------------------------------------------------------- published streams

PUBLISHING = [
    # nodes are those of the published document (its root is 0); documents are the external ones
    (
        "//a->x JOIN {x=y, 9} T//a->y PUBLISH pair; SELECT m, z FROM pair/match->m[./a->z]",
        "d1@1 <a><b/></a> | T:d2@2 <a/>",
        ["pair: d1 d2 | x=0 y=0", "q2: d1 d2 | m=0 z=1", "q2: d1 d2 | m=0 z=3"],
    ),
    # a reader may stand before its publisher; chains have any depth
    (
        "three; //a PUBLISH one; one//a PUBLISH two; two//a PUBLISH three",
        "d1@1 <r><a/></r>",
        ["one: d1 | left=1", "q1: d1 | left=0", "three: d1 | left=1", "two: d1 | left=1"],
    ),
    # identity is recursive: outputs over different published documents are different, even if they look the same
    (
        "SELECT x FROM //a->x[./b->y] PUBLISH one; SELECT x, y FROM //a->x[./b->y] PUBLISH two; one//a; two//a",
        "d1@1 <a><b/><b/></a>",
        [
            "one: d1 | x=0",
            "q3: d1 | left=2",
            "q4: d1 | left=2",
            "q4: d1 | left=2",
            "two: d1 | x=0 y=1",
            "two: d1 | x=0 y=2",
        ],
    ),
    # a union merges nothing, and external documents belong to it
    (
        "//a PUBLISH u; //a PUBLISH u; u//a",
        "d1@1 <a/> | u:d2@1 <a/>",
        ["q3: d1 | left=1", "q3: d1 | left=1", "q3: d2 | left=0", "u: d1 | left=0", "u: d1 | left=0"],
    ),
    # a published document is another one than its input, and than each other output
    ("//a PUBLISH u; u//a->x JOIN {x=y, 0} //a->y", "d1@1 <a/>", ["q2: d1 d1 | x=1 y=0", "u: d1 | left=0"]),
    ("//a PUBLISH u; u//a->x JOIN {x=y, 0} u//a->y", "d1@1 <a/>", ["u: d1 | left=0"]),
    (
        "//a PUBLISH u; //a PUBLISH u; u//a->x JOIN {x=y, 0} u//a->y",
        "d1@1 <a/>",
        ["q3: d1 d1 | x=1 y=1", "q3: d1 d1 | x=1 y=1", "u: d1 | left=0", "u: d1 | left=0"],
    ),
    # its interval is that of its inputs
    (
        "//a->x JOIN {x=y, 9} T//a->y PUBLISH u; u//a->x FOLLOWED BY {x=y, 2} V//a->y",
        "d1@1 <a/> | T:d2@3 <a/> | V:d3@3 <a/> | V:d4@3.5 <a/>",
        ["u: d1 d2 | x=0 y=0"],
    ),
    (
        "//a->x JOIN {x=y, 9} T//a->y PUBLISH u; SELECT x FROM u//a->x FOLLOWED BY {x=y, 3} V//a->y",
        "d1@1 <a/> | T:d2@3 <a/> | V:d3@3 <a/> | V:d4@3.5 <a/>",
        ["q2: d1 d2 d4 | x=1", "q2: d1 d2 d4 | x=2", "u: d1 d2 | x=0 y=0"],
    ),
    # the first document of a stream and id counts
    ("//a", "d1@1 <a/> | d1@2 <r><a/></r> | T:d1@1 <a/>", ["q1: d1 | left=0"]),
]


@pytest.mark.parametrize(("script", "documents", "expected"), PUBLISHING)
def test_published_streams(script: str, documents: str, expected: list[str]) -> None:
    assert brief(run(script, documents)) == expected


# ---------------------------------------------------------------- output documents

DOCUMENTS = [
    (
        "//a",
        "d1@1-2 <r>x<a k='1'>y<b/></a>z</r>",
        '<match query="q1" t0="1000000" t1="2000000"><a k="1">y<b/></a></match>',
    ),
    (
        "//b->x JOIN {x=y, 9} T//@k->y PUBLISH pair",
        "d1@1 <b>1</b> | T:d2@2 <r k='1'/>",
        '<match query="pair" t0="1000000" t1="2000000"><b>1</b><k>1</k></match>',
    ),
    ("//@*", "d1@0 <r xmlns:q='u:x' q:k='1'/>", '<match query="q1" t0="0" t1="0"><k xmlns="u:x">1</k></match>'),
    (
        "SELECT x1', x1'/@k AS link, lower-case(x1') AS low, 'c' AS c FROM //*:a->x1'",
        "d1@0 <a xmlns='u:x' k='1'>X</a>",
        '<match query="q1" t0="0" t1="0"><x1_><a xmlns="u:x" k="1">X</a></x1_><link>1</link><low>x</low>'
        "<c>c</c></match>",
    ),
    (
        "(SELECT x/b AS b, host(x/@k) AS h FROM //a->x) JOIN {h=y, 9} T//b->y",
        "d1@0 <a k='http://ex.org/'><b>1</b></a> | T:d2@0 <b>ex.org</b>",
        '<match query="q1" t0="0" t1="0"><b>1</b><h>ex.org</h><b>ex.org</b></match>',
    ),
    (
        """SELECT <alert who="{x/b}" n="{{{'1'}}}">by {x/b}, {x/@k}; <i>{ x } &amp; </i>{x/b}</alert> FROM //a->x""",
        "d1@0 <r><a k='&lt;'><b>1</b>t</a>u</r>",
        '<alert who="1" n="{1}">by <b>1</b>, &lt;; <i><a k="&lt;"><b>1</b>t</a> &amp; </i><b>1</b></alert>',
    ),
    (
        'DECLARE NAMESPACE p = "u:x"; SELECT <p:o p:k="{x}"/> FROM //a->x',
        "d1@0 <a>1</a>",
        '<o xmlns="u:x" xmlns:q="u:x" q:k="1"/>',
    ),
]


@pytest.mark.parametrize(("script", "documents", "expected"), DOCUMENTS)
def test_output_documents(script: str, documents: str, expected: str) -> None:
    rows = run(script, documents)
    canonical = [etree.canonicalize(xml, rewrite_prefixes=True) for xml in (*(row.xml for row in rows), expected)]
    assert canonical == [canonical[-1]] * 2


def test_text_documents_ignore_their_encoding_declaration() -> None:
    text = '<?xml version="1.0" encoding="iso-8859-1"?><a>\u00e9</a>'
    rows = evaluate(
        parse_script("//a[. = '\u00e9']"),
        [Document("d1", text, time=0), Document("d2", text.encode("latin-1"), time=0)],
    )
    assert brief(rows) == ["q1: d1 | left=0", "q1: d2 | left=0"]


def test_comparable_is_equal_for_the_same_outputs_only() -> None:
    rows = run("//a->x", "d1@0 <r><a/><a xmlns:p='u:x' p:k='1'/></r>")
    spelt = [replace(row, xml=row.xml.replace("p:k", "q:k").replace("xmlns:p", "xmlns:q")) for row in reversed(rows)]
    assert comparable(rows) == comparable(spelt)
    assert comparable(rows) != comparable(rows[:1])
    assert comparable(rows) != comparable([*rows, rows[0]])
    assert comparable(rows) != comparable([rows[0], replace(rows[1], xml=rows[0].xml)])
