"""The conjunctive query CQ_T of a template (thesis 6.4.4), which prints as Datalog and as SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from templates.template import Shape

R_DOC = ("docid", "node", "strval")
R_BIN = ("docid", "var1", "var2", "node1", "node2")
R_VJ = ("docid1", "node1", "docid2", "node2")
"""The attributes of the witness relations. The W relations hold a batch, and so have docid too. R_vj is the join of
R_doc and R_docW on strval, which all templates share."""

R_L = (*R_BIN, "strval")
R_LR = ("docid1", "var1", "var2", "node1", "node2", "docid2", "var3", "var4", "node3", "node4")
"""The attributes of the views of section 6.5. R_L joins R_doc and R_bin on node = node2, and R_R does so for the batch.
R_LR is the join of R_L and R_R on strval, which all templates share."""


@dataclass(frozen=True, slots=True)
class Atom:
    """A relation with a variable for each attribute. Equal variables join."""

    relation: str
    attributes: tuple[str, ...]
    args: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.relation}({', '.join(self.args)})"


@dataclass(frozen=True, slots=True)
class ConjunctiveQuery:
    """`head :- body`. The SQL joins the atoms of the body in their order."""

    head: Atom
    body: tuple[Atom, ...]

    def datalog(self) -> str:
        """The query in Datalog, one atom a line."""
        return f"{self.head} :-\n  " + ",\n  ".join(map(str, self.body))

    def sql(self, tables: Mapping[str, str], select: str | None = None, conditions: tuple[str, ...] = ()) -> str:
        """The query in SQL. `tables` maps relations to tables; a relation that it lacks is a table of that name.

        `select` replaces the head. It and the `conditions` have variables of the body in braces.
        """
        place: dict[str, str] = {}
        lines, where = [], []
        for i, atom in enumerate(self.body):
            equal = []
            for attribute, arg in zip(atom.attributes, atom.args, strict=True):
                column = f"a{i}.{attribute}"
                if arg in place:
                    equal.append(f"{place[arg]} = {column}")
                place.setdefault(arg, column)
            table = f"{tables.get(atom.relation, atom.relation)} a{i}"
            if i == 0:
                lines.append(f"FROM {table}")
                where += equal
            else:
                lines.append(f"JOIN {table} ON {' AND '.join(equal) or 'TRUE'}")
        columns = zip(self.head.args, self.head.attributes, strict=True)
        head = (select or ", ".join(f"{{{arg}}} AS {name}" for arg, name in columns)).format_map(place)
        where += [condition.format_map(place) for condition in conditions]
        if where:
            lines.append(f"WHERE {' AND '.join(where)}")
        return "\n".join([f"SELECT {head}", *lines])


def conjunctive_query(shape: Shape, template: str) -> ConjunctiveQuery:
    """CQ_T of the thesis: R_T, for each value join a copy of R_doc and of R_docW joined on strval, and for each
    structural edge a copy of R_bin or R_binW. The template of a filter reads the batch only."""
    if not shape.joins:
        body = [_binary(shape, 0, "R_binW", "docid1")]
    else:
        body = []
        bound: set[int] = set()
        for i, (left, right) in enumerate(shape.joins, 1):
            for leaf, docid, suffix in ((left, "docid1", ""), (right, "docid2", "W")):
                body.append(Atom(f"R_doc{suffix}", R_DOC, (docid, f"node{leaf + 1}", f"strval{i}")))
                body += _path(shape, leaf, f"R_bin{suffix}", docid, bound)
    return ConjunctiveQuery(_head(shape, template), (*body, _rows(shape, template)))


def executable_query(shape: Shape, template: str) -> ConjunctiveQuery:
    """CQ_T in the order of execution: R_vj instead of R_doc and R_docW, and R_T as soon as a left edge is known.

    An optimizer without statistics chooses orders that are slower by orders of magnitude.
    """
    if not shape.joins:
        return conjunctive_query(shape, template)
    body: list[Atom] = []
    bound: set[int] = set()
    for i, (left, right) in enumerate(shape.joins):
        body.append(Atom("R_vj", R_VJ, ("docid1", f"node{left + 1}", "docid2", f"node{right + 1}")))
        body += _path(shape, left, "R_bin", "docid1", bound)
        if i == 0:
            body.append(_rows(shape, template))
        body += _path(shape, right, "R_binW", "docid2", bound)
    return ConjunctiveQuery(_head(shape, template), tuple(body))


def views_query(shape: Shape, template: str) -> ConjunctiveQuery:
    """CQ_T over the views (thesis 6.5): for each value join a copy of R_L and of R_R, and R_T.

    R_L and R_R hold the edges of leaves: one between inner nodes still takes a copy of R_bin or R_binW.
    """
    if not shape.joins:
        return conjunctive_query(shape, template)
    body: list[Atom] = []
    bound: set[int] = set()
    for i, (left, right) in enumerate(shape.joins, 1):
        for leaf, docid, view, relation in ((left, "docid1", "R_L", "R_bin"), (right, "docid2", "R_R", "R_binW")):
            body.append(Atom(view, R_L, (*_binary(shape, leaf, relation, docid).args, f"strval{i}")))
            body += _above(shape, leaf, relation, docid, bound)
    return ConjunctiveQuery(_head(shape, template), (*body, _rows(shape, template)))


def executable_views_query(shape: Shape, template: str) -> ConjunctiveQuery:
    """CQ_T over the views in the order of execution: R_LR instead of R_L and R_R, and R_T after the first R_LR."""
    if not shape.joins:
        return conjunctive_query(shape, template)
    body: list[Atom] = []
    bound: set[int] = set()
    for i, (left, right) in enumerate(shape.joins):
        edges = _binary(shape, left, "R_bin", "docid1"), _binary(shape, right, "R_binW", "docid2")
        body.append(Atom("R_LR", R_LR, edges[0].args + edges[1].args))
        if i == 0:
            body.append(_rows(shape, template))
        body += _above(shape, left, "R_bin", "docid1", bound)
        body += _above(shape, right, "R_binW", "docid2", bound)
    return ConjunctiveQuery(_head(shape, template), tuple(body))


def _above(shape: Shape, leaf: int, relation: str, docid: str, bound: set[int]) -> list[Atom]:
    """The atoms that bind the parent of a leaf and its ancestors, without nodes that are already bound."""
    parent = shape.parents[leaf]
    return [] if parent is None else _path(shape, parent, relation, docid, bound)


def _path(shape: Shape, node: int, relation: str, docid: str, bound: set[int]) -> list[Atom]:
    """The atoms that bind a node and its ancestors, without nodes that are already bound."""
    atoms = []
    place: int | None = node
    while place is not None and place not in bound:
        bound.add(place)
        # The rows of its children bind the top of a side; its self row binds a side of one node.
        if shape.parents[place] is not None or place not in shape.parents:
            atoms.append(_binary(shape, place, relation, docid))
        place = shape.parents[place]
    return atoms


def _binary(shape: Shape, node: int, relation: str, docid: str) -> Atom:
    """The atom of R_bin for a node and its parent, or for the self row of a side with a single node."""
    parent = shape.parents[node]
    above = node if parent is None else parent
    return Atom(relation, R_BIN, (docid, f"var{above + 1}", f"var{node + 1}", f"node{above + 1}", f"node{node + 1}"))


def _rows(shape: Shape, template: str) -> Atom:
    columns = ("qid", *(f"var{i + 1}" for i in range(len(shape.parents))), "wl")
    return Atom(f"R_{template}", columns, columns)


def _head(shape: Shape, template: str) -> Atom:
    nodes = tuple(f"node{i + 1}" for i in range(len(shape.parents)))
    columns = ("qid", "docid1", *(("docid2",) if shape.joins else ()), *nodes, "wl")
    return Atom(f"R_out{template}", columns, columns)
