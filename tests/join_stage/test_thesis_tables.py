"""The running example through the real code, relation by relation: Tables 6.2 to 6.4 and section 6.4.4 of the thesis.

Documents and node numbers are those of Figures 6.1 and 6.2; node 1 of each is a leaf that no query binds. Tables 6.4(b)
and (d) also list node 0 of each document with a dash for its value: we keep the strings of the value joins' nodes only,
so that row is left out here. Our W relations hold a batch, so they carry a docid where the thesis' do not.
"""

from functools import partial

import duckdb
import pytest

from bench.stage1_workload import WitnessSets
from templates.catalog import Catalog, Placement, StepEdge, TemplateRow
from templates.graph import conjunctive_query, executable_query
from tests.generate.shapes import templates
from xpath_stage.documents import StreamDocument, parse_document
from xpath_stage.evaluator import XPathStage
from xscl.lower import normalize
from xscl.parser import parse_script

SECOND = 1_000_000
DAY = 86_400 * SECOND
T1, T2, T3 = 7 * DAY, 14 * DAY, 21 * DAY

QUERIES = """
S//book->x1[./author->x2][./title->x3] FOLLOWED BY {x2=x5 AND x3=x6, 7 d} S//blog->x4[./author->x5][./title->x6];
S//book->x1[./author->x2][./category->x7] FOLLOWED BY {x2=x5 AND x7=x8, 14 d} S//blog->x4[./author->x5][./category->x8];
S//blog->x4[./author->x5][./title->x6] FOLLOWED BY {x5=x5' AND x6=x6', 21 d} S//blog->x4'[./author->x5'][./title->x6']
"""

D1 = b"""<book><isbn>0764579169</isbn><author>Danny Ayers</author><author>Andrew Watt</author>\
<title>Beginning RSS and Atom Programming</title><category>Scripting &amp; Programming</category>\
<category>Web Site Development</category></book>"""

D2 = b"""<blog><url>http://example.org/2006/06</url><author>Danny Ayers</author>\
<title>Beginning RSS and Atom Programming</title><category>Book Announcement</category>\
<category>Scripting &amp; Programming</category></blog>"""

NAMES = {
    "//book": "x1", "//book/author": "x2", "//book/title": "x3", "//book/category": "x7",
    "//blog": "x4", "//blog/author": "x5", "//blog/title": "x6", "//blog/category": "x8",
}  # fmt: skip
"""The thesis' names of variables by their definitions."""


class Example:
    """The example after both documents: the catalog, the rows of R_T and the witnesses of each document."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.placements: list[Placement] = []
        self.rows: list[TemplateRow] = []
        stage1 = XPathStage()
        for query in parse_script(QUERIES).queries:
            normal = normalize(query, {})
            (conjunct,) = normal.conjuncts
            placement, change = self.catalog.add(conjunct, normal.window or 0, normal.op == "FOLLOWED BY")
            self.placements.append(placement)
            self.rows += change.rows
            stage1.add(change)
        documents = [StreamDocument(n, "S", n * DAY, n * DAY, parse_document(xml)) for n, xml in ((1, D1), (2, D2))]
        self.batches = [stage1.evaluate([document]) for document in documents]
        groups: dict[int, list[StepEdge]] = {}
        found = [WitnessSets(batch, groups).edges for batch in self.batches]
        self.r_bin = [[(doc, *edge, *pair) for (doc, edge), pairs in one.items() for pair in pairs] for one in found]
        """The witnesses of each batch, a row for each edge of their groups."""

    def name(self, variable: int) -> str:
        """A variable's name in the thesis."""
        return NAMES[self._path(variable)]

    def _path(self, variable: int) -> str:
        step = self.catalog.steps[variable]
        return ("" if step.parent is None else self._path(step.parent)) + str(step.node)


@pytest.fixture(scope="module")
def example() -> Example:
    return Example()


FORMS = (conjunctive_query, executable_query, partial(executable_query, views=True))

R_OUT = [(0, 1, 2, 0, 2, 4, 0, 2, 3, T1), (1, 1, 2, 0, 2, 5, 0, 2, 5, T2)]
"""Table 6.4(f), with docid2: (qid, docid1, docid2, node1 to node6, wl) for Q1 and Q2."""


def test_table_6_4_f_r_out_by_the_conjunctive_query_alone(example: Example):
    (shape,) = example.catalog.templates
    with duckdb.connect() as connection:
        for suffix, batch, r_bin in zip(("", "W"), example.batches, example.r_bin, strict=True):
            connection.register(f"R_doc{suffix}", batch.r_doc)
            connection.execute(
                f"CREATE TABLE R_bin{suffix} (docid BIGINT, var1 INT, var2 INT, node1 BIGINT, node2 BIGINT)"
            )
            connection.executemany(f"INSERT INTO R_bin{suffix} VALUES (?, ?, ?, ?, ?)", r_bin)
        columns = ", ".join(f"var{i} INT" for i in range(1, 7))
        connection.execute(f"CREATE TABLE R_T (qid BIGINT, {columns}, wl BIGINT)")
        rows = [(row.id, *row.variables, row.window) for row in example.rows]
        connection.executemany("INSERT INTO R_T VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        pairs = """CREATE VIEW R_vj AS SELECT a.docid AS docid1, a.node AS node1, b.docid AS docid2, b.node AS node2
            FROM R_doc a JOIN R_docW b USING (strval)"""
        connection.execute(pairs)
        for name, suffix in (("R_L", ""), ("R_R", "W")):
            connection.execute(f"""CREATE VIEW {name} AS SELECT b.docid, b.var1, b.var2, b.node1, b.node2, d.strval
                FROM R_doc{suffix} d JOIN R_bin{suffix} b ON b.docid = d.docid AND b.node2 = d.node""")
        connection.execute("""CREATE VIEW R_LR AS SELECT l.docid AS docid1, l.var1, l.var2, l.node1, l.node2,
            r.docid AS docid2, r.var1 AS var3, r.var2 AS var4, r.node1 AS node3, r.node2 AS node4
            FROM R_L l JOIN R_R r USING (strval)""")
        for query in (form(shape, "T") for form in FORMS):
            assert sorted(connection.execute(query.sql({})).fetchall()) == R_OUT


def test_table_6_4_a_r_t_of_the_one_template_of_the_three_queries(example: Example):
    assert [placement.template for placement in example.placements] == [0, 0, 0]
    (shape,) = example.catalog.templates
    assert (shape.left, shape.parents, shape.joins) == (3, (None, 0, 0, None, 3, 3), ((1, 4), (2, 5)))
    assert [(row.id, *map(example.name, row.variables), row.window) for row in example.rows] == [
        (0, "x1", "x2", "x3", "x4", "x5", "x6", T1),
        (1, "x1", "x2", "x7", "x4", "x5", "x8", T2),
        (2, "x4", "x5", "x6", "x4", "x5", "x6", T3),
    ]
    assert all(row.ordered for row in example.rows)


def test_tables_6_4_b_to_e_values_and_edges(example: Example):
    ayers, title, scripting = "Danny Ayers", "Beginning RSS and Atom Programming", "Scripting & Programming"
    values = [
        {(1, 2, ayers), (1, 3, "Andrew Watt"), (1, 4, title), (1, 5, scripting), (1, 6, "Web Site Development")},
        {(2, 2, ayers), (2, 3, title), (2, 4, "Book Announcement"), (2, 5, scripting)},
    ]
    edges = [
        ["1 x1 x2 0 2", "1 x1 x2 0 3", "1 x1 x3 0 4", "1 x1 x7 0 5", "1 x1 x7 0 6"],
        ["2 x4 x5 0 2", "2 x4 x6 0 3", "2 x4 x8 0 4", "2 x4 x8 0 5"],
    ]
    for batch, r_bin, strings, bound in zip(example.batches, example.r_bin, values, edges, strict=True):
        assert set(batch.r_doc["stream"].to_pylist()) == {"S"} and len(batch.r_doc) == len(strings)
        columns = (batch.r_doc[name].to_pylist() for name in ("docid", "node", "strval"))
        assert set(zip(*columns, strict=True)) == strings
        named = sorted((doc, example.name(v1), example.name(v2), n1, n2) for doc, v1, v2, n1, n2 in r_bin)
        assert [" ".join(map(str, row)) for row in named] == bound


def test_table_6_3_number_of_templates():
    """The thesis bounds the last by 230."""
    for flat, counts in ((True, [1, 3, 6, 16]), (False, [1, 3, 16, 215])):
        assert [len(templates(joins, flat=flat)) for joins in range(1, 5)] == counts
    for shape in templates(3, flat=False):
        inner = set(shape.parents) - {None}
        assert {end for join in shape.joins for end in join} == set(range(len(shape.parents))) - inner
        assert all(shape.parents.count(node) >= 2 for node in inner)
