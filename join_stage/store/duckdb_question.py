"""A question over a store on DuckDB: on a cursor of its own, in a read-only transaction.

DuckDB refuses writes in such a transaction, and after `seclude` an instance cannot reach any file but its own. The rest
is judged from the question as the parser of DuckDB reads it: only SELECT, only relations of the store, only table
functions of a list, no functions that read the state of the process or do more than compute.
"""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from typing import Any

import duckdb
import pyarrow as pa

from join_stage.store.duckdb_damage import telling_damage
from join_stage.store.duckdb_threads import Threads
from join_stage.store.reading import (
    ONLY_READ,
    Bounds,
    QuestionInterrupted,
    QuestionRefused,
    check_known,
    measured,
    parts_of,
    short_enough,
)
from join_stage.store.schema import StoreSchema

CHUNK = 2048
"""The number of rows after which the size of an answer is checked: a vector of DuckDB."""

MEMORY = "512MB"
"""The memory that the sorts and hash tables of a question use before they spill."""

TABLE_FUNCTIONS = frozenset(("generate_series", "json_each", "json_tree", "range", "unnest"))

_REFUSED_FUNCTIONS_NAMES = """
current_connection_id current_query current_query_id current_setting current_transaction_id currval getenv getvariable
json_deserialize_sql json_execute_serialized_sql json_serialize_plan json_serialize_sql nextval query query_table
set_config setseed setval sleep_ms stats txid_current vector_type which_secret write_log
"""

REFUSED_FUNCTIONS = frozenset(_REFUSED_FUNCTIONS_NAMES.split())
"""Functions that read the state of the process, or do more than compute."""

_UNBOUNDED_FUNCTIONS_NAMES = """
array_resize bitstring damerau_levenshtein editdist3 format from_json from_json_strict generate_series json_pretty
json_transform json_transform_strict levenshtein list_resize lpad printf range repeat rpad
"""

UNBOUNDED_FUNCTIONS = frozenset(_UNBOUNDED_FUNCTIONS_NAMES.split())
"""Functions of values that take any memory, time or depth of the stack, whatever a question may use, and do not notice
when it is interrupted. In FROM, `range` and `generate_series` make rows, and are answered."""

MOST_NAMES = 20
"""The most names in a chain like a.b.c: what DuckDB needs to look them up grows with the square."""

_NODES = frozenset(("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"))
"""The nodes that a query, or a query in WITH, may consist of. All others write."""

_SOURCES = frozenset(
    ("BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "EMPTY", "SHOW_REF", "PIVOT", "CTE")
)
"""The nodes that may stand in FROM."""

_SHOWN = frozenset(("tables", "__show_tables_expanded"))
"""The names that SHOW may be given."""

_SCHEMAS = frozenset(("main", "mmqjp", "memory"))
"""The names that may qualify a table: those of the store."""


def seclude(connection: duckdb.DuckDBPyConnection) -> None:
    """Keeps an instance from here on from reaching other files and Python variables, and locks its settings."""
    connection.execute("SET enable_external_access = false")
    connection.execute("SET allowed_configs = ['operator_memory_limit', 'threads']")
    connection.execute("SET lock_configuration = true")


class RefusedByDuckDB(QuestionRefused, duckdb.Error):
    """A question that DuckDB does not answer, in its words: bad SQL, or a value that cannot be computed."""


@telling_damage
class DuckDBQuestion:
    """A `Question` of the store that a connection has open."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        schema: StoreSchema,
        sql: str,
        bounds: Bounds,
        threads: Threads | None = None,
        *,
        own: bool = False,
    ) -> None:
        """With `own`, the SQL is ours: that it is a single SELECT is all that is checked."""
        self._cursor, self._schema, self._sql, self._bounds = connection.cursor(), schema, sql, bounds
        self._threads, self._own = threads, own
        self._cut = False

    def answer(self) -> pa.Table:
        try:
            with nullcontext() if self._threads is None else self._threads.for_question(self._cursor):
                return self._answer()
        except duckdb.OutOfMemoryException:
            raise QuestionRefused(
                "the question needs more memory than there is: narrow it down, or ask again later"
            ) from None
        except (duckdb.Error, pa.ArrowException) as error:
            if self._cut:
                raise QuestionInterrupted("the question was interrupted") from None
            raise RefusedByDuckDB(str(error)) from error
        except OSError:  # what Arrow makes of some errors while it reads from DuckDB
            if self._cut:
                raise QuestionInterrupted("the question was interrupted") from None
            raise
        finally:
            with suppress(duckdb.Error):
                self._cursor.close()

    def _answer(self) -> pa.Table:
        self._cursor.execute(f"SET operator_memory_limit = '{MEMORY}'")
        if self._own:
            single_select(self._cursor, self._sql)
        else:
            judge(self._cursor, self._sql, self._schema)
        self._cursor.execute("BEGIN TRANSACTION READ ONLY")
        if self._cut:
            raise duckdb.InterruptException
        answer = self._cursor.sql(self._sql)
        if answer is None:
            raise QuestionRefused(ONLY_READ)
        return measured(answer.to_arrow_reader(CHUNK), self._bounds)

    def interrupt(self) -> None:
        self._cut = True
        with suppress(duckdb.Error):  # it is closed by now
            self._cursor.interrupt()


def judge(parser: duckdb.DuckDBPyConnection, sql: str, schema: StoreSchema) -> None:
    """Raises QuestionRefused for anything but a single SELECT over the relations of a schema, and what
    DuckDB raises for bad SQL."""
    short_enough(sql)
    single_select(parser, sql)
    ((text,),) = parser.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    try:
        parsed = json.loads(text)
    except RecursionError:
        raise QuestionRefused("the question is nested too deeply") from None
    if parsed["error"]:  # what DuckDB calls a SELECT and does more than select
        raise QuestionRefused(ONLY_READ)
    parts = list(parts_of(parsed["statements"]))
    made = {entry["key"].lower() for part in parts if "cte_map" in part for entry in part["cte_map"]["map"]}
    making_rows = {id(part["function"]) for part in parts if part.get("type") == "TABLE_FUNCTION"}
    for part in parts:
        _judge(part, schema, made, makes_rows=id(part) in making_rows)


def single_select(parser: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raises QuestionRefused for anything but one statement that DuckDB calls a SELECT, and what DuckDB raises for bad
    SQL."""
    statements = parser.extract_statements(sql)
    if len(statements) > 1:
        raise QuestionRefused(f"one SELECT is answered at a time, and this has {len(statements)} statements")
    if not statements or statements[0].type != duckdb.StatementType.SELECT:
        raise QuestionRefused(ONLY_READ)


def tables_in(parser: duckdb.DuckDBPyConnection, sql: str) -> set[str] | None:
    """The names of the relations, and of WITH, that a SELECT reads, in lower case; None for another statement."""
    try:
        ((text,),) = parser.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
        parsed = json.loads(text)
    except (duckdb.Error, RecursionError):
        return None
    if parsed["error"]:
        return None
    sources = [part for part in parts_of(parsed["statements"]) if part.get("type") in ("BASE_TABLE", "SHOW_REF")]
    if any(part["type"] == "SHOW_REF" for part in sources):
        return None
    return {part["qualified_name"]["path"][-1].lower() for part in sources}


def _judge(part: dict[str, Any], schema: StoreSchema, made: set[str], *, makes_rows: bool) -> None:
    kind = part.get("type")
    if "cte_map" in part and kind not in _NODES:
        raise QuestionRefused(ONLY_READ)
    if "sample" in part and "cte_map" not in part and kind is not None and kind not in _SOURCES:
        raise QuestionRefused(f"{kind} is not answered: ask in other words")
    if kind == "BASE_TABLE":
        _judge_table(part["qualified_name"]["path"], schema, made)
    elif kind == "TABLE_FUNCTION":
        name = part["function"].get("function_name", "")
        if name.lower() not in TABLE_FUNCTIONS:
            shown = ", ".join(sorted(TABLE_FUNCTIONS))
            raise QuestionRefused(f"the table function {name!r:.80} is not answered; these are: {shown}")
    elif kind == "SHOW_REF":
        if part["query"] is None and part["table_name"].strip('"').lower() not in _SHOWN:
            raise QuestionRefused(f"{part['table_name']!r:.80} is not shown; SHOW TABLES and DESCRIBE are answered")
    elif part.get("class") == "FUNCTION":
        if (name := part["function_name"].lower()) in REFUSED_FUNCTIONS:
            raise QuestionRefused(f"the function {part['function_name']} is not answered: only what computes is")
        if name in UNBOUNDED_FUNCTIONS and not makes_rows:
            raise QuestionRefused(f"the function {name} is not answered: its values may be of any size")
    elif part.get("class") == "COLUMN_REF" and len(part["column_names"]) > MOST_NAMES:
        raise QuestionRefused(f"a chain of more than {MOST_NAMES} names is not answered")


def _judge_table(path: list[str], schema: StoreSchema, made: set[str]) -> None:
    *before, name = path
    if before and before[0].lower() == "information_schema" and len(path) == 2:
        return
    if not all(part.lower() in _SCHEMAS for part in before):
        raise QuestionRefused(f"there is no table {'.'.join(path)!r:.80}; write its name alone")
    check_known(name, schema, set() if before else made)
