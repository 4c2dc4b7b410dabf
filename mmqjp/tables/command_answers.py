"""The table of answers to commands."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, TEXT, schema
from mmqjp.tables.table_rows import TableRows

TABLES = {"commands": schema(id=TEXT, answer=TEXT, noted_at=INT, batch=INT)}


def answer_to(store: TableStore, command: str) -> str | None:
    """Returns the stored answer to a command by its id, or None if the command is not done."""
    asked = pa.table({"id": [command]})
    found = store.select("SELECT c.answer FROM commands c JOIN asked a ON c.id = a.id", {"asked": asked})
    return next((row["answer"] for row in found.to_pylist()), None)


def save_answers(store: TableStore, answers: Mapping[str, str], now: int, batch: int) -> None:
    """Writes answers by id of their command, in a batch. `now` is in microseconds."""
    TableRows(store).append("commands", [(id, answer, now, batch) for id, answer in answers.items()])
