"""The conjunctive queries of scripts, as the catalog takes them."""

from xscl.algebra.joins import Conjunct, Hidden
from xscl.lower import normalize
from xscl.parser import parse_script
from xscl.syntax import Script


def conjuncts_of(script: Script) -> list[Conjunct]:
    """The conjunctive queries of a script, including those of its hidden streams."""
    found: list[Conjunct] = []

    def collect(conjuncts: tuple[Conjunct, ...]) -> None:
        for conjunct in conjuncts:
            found.append(conjunct)
            for side in conjunct.sides():
                if isinstance(side.hidden, Hidden):
                    collect(side.hidden.conjuncts)

    for query in script.queries:
        collect(normalize(query, dict(script.namespaces)).conjuncts)
    return found


def conjunct(query: str) -> Conjunct:
    (found,) = conjuncts_of(parse_script(query))
    return found
