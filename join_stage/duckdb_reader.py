"""A DuckDB store that is opened to be read only. The file and its directory may belong to anybody."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import duckdb

from join_stage.only_read import OnlyRead
from join_stage.state_tables import BOUND_STORE
from join_stage.store.duckdb_damage import ADVICE, telling_damage
from join_stage.store.duckdb_prepared import PreparedStatements
from join_stage.store.duckdb_question import seclude
from join_stage.store.duckdb_tables import DuckDBTables, set_up
from join_stage.store.protocol import DUCKDB_FILE, Outdated, StoreError
from join_stage.store.schema import StoreSchema


@telling_damage
class DuckDBReader(OnlyRead, DuckDBTables):
    """A `JoinEngine` that only reads. It also reads what a killed process left in the log beside the file."""

    def __init__(self, schema: StoreSchema, directory: Path) -> None:
        """Opens the store in a directory; `schema` has what it holds beside the join state.

        Raises StoreError if there is no store that can be read, Outdated if it is of an older format.
        """
        self.schema = BOUND_STORE | schema
        file = directory / DUCKDB_FILE
        if not file.exists():
            raise StoreError(f"{directory} holds no store of the engine duckdb")
        try:
            self._connection = duckdb.connect(str(file), read_only=True)
        except duckdb.Error as error:
            raise StoreError(f"cannot read the store in {directory}: {error}; {ADVICE}") from error
        self._asked, self._prepared = self._connection, PreparedStatements(self._connection)
        self._spilled = tempfile.TemporaryDirectory(prefix="mmqjp-")
        try:
            # In a process that has the store open to read already, this is the same instance.
            if not self._connection.execute("SELECT current_setting('lock_configuration')").fetchall()[0][0]:
                set_up(self._connection)
                self._connection.execute(f"SET temp_directory = '{self._spilled.name}'")
                seclude(self._connection)
            self._check(directory)
        except BaseException:
            self.close()
            raise

    def _check(self, directory: Path) -> None:
        made = set(self._connection.execute("SELECT table_name, column_name FROM duckdb_columns()").fetchall())
        needed = {(name, field.name) for name, schema in self.schema.tables.items() for field in schema}
        views = {name for name, _ in made}
        if not needed <= made or not self.schema.views.keys() <= views:
            raise Outdated(
                f"the store in {directory} is of an older format: let who may write it open it once, "
                "with mmqjp list or any other command"
            )

    def close(self) -> None:
        with suppress(duckdb.ResourceInUseException):  # by a question that ends late
            self._connection.close()
        self._spilled.cleanup()
