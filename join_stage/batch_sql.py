"""The SQL of a batch: the conjunctive queries of all templates as one union-all statement (thesis, Algorithm 1).

A batch joins the state, which already holds it, with the batch on the right; then the batch on the left with the state
as it was before. So each pair of documents with a new one in it is met exactly once, whichever arrived first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from templates.catalog import INFINITE
from templates.conjunctive import Atom, ConjunctiveQuery, executable_query
from templates.template import Shape


@dataclass(frozen=True, slots=True)
class Orientation:
    """The tables left and right of the joins, by the suffixes of their names, and the names of R_vj and R_LR."""

    left: str
    right: str
    pairs: str
    edges: str


NEW_RIGHT = Orientation("", "_w", "r_vj", "r_lr")
"""The state, which includes the batch, on the left, and the batch on the right."""

NEW_LEFT = Orientation("_w", "_old", "r_vj_old", "r_lr_old")
"""The batch on the left, and the state without it on the right."""

QueryForm = Callable[[Shape, str], ConjunctiveQuery]
"""Makes CQ_T from the shape and the name of a template: `executable_query` or `executable_views_query`."""


@dataclass(frozen=True, slots=True)
class TemplateTable:
    """A template whose relation R_T has rows: its number and shape."""

    number: int
    shape: Shape

    @property
    def name(self) -> str:
        """The table of its shared rows; `r_t_...` is the view of it in which each query has a row of its own."""
        return f"rows_t_{self.number}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Its attributes: qid (of the shared row), var1, ..., wl, and `ordered`: all subscribers are FOLLOWED BY."""
        return ("qid", *(f"var{i + 1}" for i in range(len(self.shape.parents))), "wl", "ordered")


SPAN = "greatest(l.t1, r.t1) - least(l.t0, r.t0)"
APART = "l.t1 <= r.t0"


def value_pairs_statement(side: Orientation, window: int, *, many: bool = False, state: str = "r_doc") -> str:
    """R_vj: the pairs of nodes with equal string values, of two documents that some query may join. With `many`, nodes
    may have several values, and a pair is there once however many it has in common. `state` is R_doc with the batch.

    Their streams are a pair of `joined_streams`, and they cover no more than the largest `window`, in microseconds.
    `span` is the time that both documents cover. `apart` says that the left one ends before the right one begins, or
    just then: such ties are counted (`mmqjp.answers.ties`), and are no matches of FOLLOWED BY.
    """
    within = "" if window == INFINITE else f" AND {SPAN} <= {window}"
    select = "SELECT DISTINCT" if many else "SELECT"
    return f"""{select} a.docid AS docid1, a.node AS node1, b.docid AS docid2, b.node AS node2,
  {SPAN} AS span, {APART} AS apart
FROM {f"r_doc{side.left}" if side.left else state} a JOIN joined_streams s ON s.stream1 = a.stream
JOIN r_doc{side.right} b ON b.strval = a.strval AND b.stream = s.stream2
JOIN r_docts{side.left} l ON l.docid = a.docid JOIN r_docts{side.right} r ON r.docid = b.docid
WHERE a.docid <> b.docid{within}"""


def timed_query(template: TemplateTable, form: QueryForm) -> tuple[ConjunctiveQuery, tuple[str, ...]]:
    """CQ_T as it is run, with the conditions of Algorithm 3, line 4, for the largest window of the row."""
    query = form(template.shape, f"T{template.number}")
    rows = Atom(f"R_T{template.number}", template.columns, (*template.columns[:-1], "ordered"))
    body = [rows if atom.relation == rows.relation else atom for atom in query.body]
    if not template.shape.joins:
        return ConjunctiveQuery(query.head, tuple(body)), ()
    pairs = body[0]
    body[0] = Atom(pairs.relation, (*pairs.attributes, "span", "apart"), (*pairs.args, "span", "apart"))
    return ConjunctiveQuery(query.head, tuple(body)), ("{span} <= {wl}", "({apart} OR NOT {ordered})")


def template_statement(
    template: TemplateTable, side: Orientation, array: str, form: QueryForm = executable_query
) -> str:
    """CQ_T in SQL. Its rows are those of RESULT. `array` is the array constructor of the engine, with `{}` for the
    elements."""
    query, conditions = timed_query(template, form)
    tables = {
        "R_vj": side.pairs,
        "R_LR": side.edges,
        "R_bin": f"r_bin{side.left}",
        "R_binW": f"r_bin{side.right}",
        f"R_T{template.number}": template.name,
    }
    nodes = array.format(", ".join(f"{{node{i + 1}}}" for i in range(len(template.shape.parents))))
    docid2 = "{docid2}" if template.shape.joins else "CAST(NULL AS BIGINT)"
    select = f"{{qid}} AS qid, {{docid1}} AS docid1, {docid2} AS docid2, {nodes} AS nodes"
    return query.sql(tables, select, conditions)


def batch_statements(
    templates: Sequence[TemplateTable],
    array: str,
    *,
    with_old: bool,
    joins: int | None = None,
    form: QueryForm = executable_query,
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The union-all statement that answers all templates for a batch, and the numbers of the templates. `with_old` adds
    the second orientation.

    An engine that runs all branches of a union at once bounds the number of `joins` in a statement. It gets several
    statements if there are more.
    """
    selects: list[str] = []
    numbers: list[int] = []
    count = 0
    for template in templates:
        more = len(timed_query(template, form)[0].body) - 1
        for side in (NEW_RIGHT, NEW_LEFT) if with_old and template.shape.joins else (NEW_RIGHT,):
            if selects and joins is not None and count + more > joins:
                yield "\nUNION ALL\n".join(selects), tuple(dict.fromkeys(numbers))
                selects, numbers, count = [], [], 0
            selects.append(template_statement(template, side, array, form))
            numbers.append(template.number)
            count += more
    if selects:
        yield "\nUNION ALL\n".join(selects), tuple(dict.fromkeys(numbers))
