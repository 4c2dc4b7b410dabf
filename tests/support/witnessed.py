"""Compares stage 1 with exact matching, by joining its witnesses over the minors of the registered patterns."""

from collections.abc import Iterable, Sequence

from bench.stage1_workload import WitnessSets, check_side
from templates.catalog import Catalog, Placement, StepEdge
from templates.witness import CHAIN_SHIFT, plain_node
from xpath_stage.documents import StreamDocument
from xpath_stage.evaluator import XPathStage
from xscl.algebra.joins import Conjunct


class Stage:
    """Stage 1 and the catalog that feeds it, with the registered conjunctive queries."""

    def __init__(self, stage: XPathStage | None = None) -> None:
        self.catalog, self.stage = Catalog(), stage or XPathStage()
        self.groups: dict[int, list[StepEdge]] = {}
        self.standing: list[tuple[Conjunct, Placement]] = []

    def add(self, conjuncts: Iterable[Conjunct]) -> None:
        for conjunct in conjuncts:
            placement, change = self.catalog.add(conjunct, 1, True)
            self.stage.add(change)
            self.standing.append((conjunct, placement))

    def remove(self, index: int) -> None:
        _, placement = self.standing.pop(index)
        self.stage.remove(self.catalog.remove(placement.row, 1, True)[0])

    def evaluate(self, documents: Iterable[StreamDocument]) -> WitnessSets:
        return WitnessSets(self.stage.evaluate(documents), self.groups)

    def definition(self, variable: int) -> str:
        """The definition of a variable, which no other variable has, whatever the ids."""
        step = self.catalog.steps[variable]
        above = f"{step.stream}:" if step.parent is None else self.definition(step.parent) + " "
        return above + str(step.node)

    def named(self, found: WitnessSets) -> object:
        """The witnesses with variables by definition and nodes with their functions, to compare stages whose ids
        differ."""
        functions_of = {number: functions for functions, number in self.catalog.chains.items()}

        def named(node: int) -> tuple[object, ...]:
            return *plain_node(node), *functions_of.get(node >> CHAIN_SHIFT, ())

        edges = {
            (docid, self.definition(one), self.definition(two)): {(named(above), named(below)) for above, below in rows}
            for (docid, (one, two)), rows in found.edges.items()
        }
        return edges, {(docid, named(node)): value for (docid, node), value in found.values.items()}

    def check(self, documents: Sequence[StreamDocument]) -> int:
        """Compares the matches of all registered patterns in the documents. Returns how many there are."""
        found = self.evaluate(documents)
        count = 0
        for conjunct, placement in self.standing:
            for side in range(len(conjunct.sides())):
                for document in documents:
                    count += check_side(self.catalog, conjunct, placement, side, document, found)
        return count
