"""Stores the definitions of events: their texts, so that a store can be opened and read without the script."""

from __future__ import annotations

from collections.abc import Iterable

from join_stage.joiner import JoinEngine
from mmqjp.queries.event_compile import stored_definition
from mmqjp.queries.event_statements import Definition
from mmqjp.tables.table_rows import TableRows
from xscl.event_lower import lower_definition
from xscl.event_normal import schema_of
from xscl.event_syntax import EventDefinition


class StoredDefinitions:
    """Writes and reads the tables of definitions. The caller begins and commits batches."""

    def __init__(self, store: JoinEngine) -> None:
        self._rows = TableRows(store)
        self._removed = {id for (id,) in self._rows.tuples("removed_definitions", "id")}
        self.next_id = max((id for (id,) in self._rows.tuples("definitions", "id")), default=-1) + 1

    def definitions(self) -> list[Definition]:
        """Returns the definitions that were added and not removed. Raises StoreError if this version cannot read
        one."""
        rows = self._rows.tuples("definitions", "id text", "id")
        return [self._read(id, text) for id, text in rows if id not in self._removed]

    @staticmethod
    def _read(id: int, text: str) -> Definition:
        definition, script = stored_definition(text)
        return made(id, text, definition, script.namespaces)

    def save(self, added: Iterable[Definition], removed: Iterable[Definition], now: int) -> None:
        """Writes that definitions were added and removed at a time, in microseconds."""
        self._rows.append("definitions", [(one.id, one.name, one.text, now) for one in added])
        self._rows.append("removed_definitions", [(one.id, now) for one in removed])

    def committed(self, added: Iterable[Definition]) -> None:
        """Marks what `save` wrote as committed."""
        self.next_id = max([self.next_id, *(one.id + 1 for one in added)])


def made(id: int, text: str, definition: EventDefinition, namespaces: Iterable[tuple[str, str]]) -> Definition:
    """Returns a definition to register. `text` is its text as a script of its own."""
    return Definition(id, definition.name, text, schema_of(definition), lower_definition(definition, dict(namespaces)))
