"""A question over a Spark store: in its own session, over the files of committed batches. It is checked twice before it
runs. As parsed, it may only select, from relations of the store, with listed functions: those that compute and reach no
files, Java or process, without those that expand small values to large ones (`repeat`, `sequence`), which the driver
would compute. As analysed, with names resolved, its rows must come from those relations."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from threading import get_ident
from typing import Any
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from join_stage.store import protocol
from join_stage.store.spark.manifests import FileTables
from join_stage.store.spark.parquet_store import TableViews

FUNCTIONS = protocol.name_set("""
abs acos acosh add_months aggregate and any any_value approx_count_distinct approx_percentile array array_agg
array_append array_compact array_contains array_distinct array_except array_insert array_intersect array_join
array_max array_min array_position array_prepend array_remove array_size array_sort array_union arrays_overlap
arrays_zip ascii asin asinh assert_true atan atan2 atanh avg base64 between bigint bin binary bit_and bit_count
bit_get bit_length bit_or bit_xor bool_and bool_or boolean bround btrim cardinality cast cbrt ceil ceiling char
char_length character_length chr coalesce collect_list collect_set collect_union concat concat_ws contains conv
convert_timezone corr cos cosh cot count count_if covar_pop covar_samp crc32 csc cume_dist curdate current_date
current_time current_timestamp current_timezone date date_add date_diff date_format date_from_unix_date date_part
date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear decimal decode degrees
dense_rank div double e element_at elt encode endswith equal_null every exists exp explode explode_outer expm1 extract
factorial filter find_in_set first first_value flatten float floor forall format_number from_base32 from_csv from_json
from_unixtime from_utc_timestamp get get_json_object getbit greatest grouping grouping_id hash hex hour hypot if
ifnull ilike in initcap inline inline_outer instr int isnan isnotnull isnull jaro_winkler_similarity json_array_length
json_object_keys json_tuple kurtosis lag last last_day last_value lcase lead least left len length levenshtein like
listagg ln localtime localtimestamp locate log log10 log1p log2 lower ltrim luhn_check make_date make_dt_interval
make_interval make_timestamp make_ym_interval map map_concat map_contains_key map_entries map_filter map_from_arrays
map_from_entries map_keys map_values map_zip_with mask max max_by md5 mean median min min_by minute mod mode month
monthname months_between named_struct nanvl negative next_day not now nth_value ntile nullif nullifzero nvl nvl2
octet_length or overlay parse_url percent_rank percentile percentile_approx percentile_cont percentile_disc pi pmod
posexplode posexplode_outer position positive pow power quarter radians raise_error rand randn random range rank
reduce regexp regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr
regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy replace reverse right rint
rlike round row_number rtrim sec second sentences session_window sha sha1 sha2 shiftleft shiftright shiftrightunsigned
shuffle sign signum sin sinh size skewness slice smallint some sort_array soundex split split_part sqrt stack
startswith std stddev stddev_pop stddev_samp str_to_map string string_agg struct substr substring substring_index sum
tan tanh time timestamp timestamp_micros timestamp_millis timestamp_nanos timestamp_seconds tinyint to_base32
to_binary to_char to_csv to_date to_json to_number to_time to_timestamp to_timestamp_ltz to_timestamp_ntz
to_unix_timestamp to_utc_timestamp to_varchar transform transform_keys transform_values translate trim trunc try_add
try_avg try_divide try_element_at try_make_interval try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz
try_mod try_multiply try_parse_url try_subtract try_sum try_to_binary try_to_date try_to_number try_to_time
try_to_timestamp try_url_decode typeof ucase unbase64 unhex unix_date unix_micros unix_millis unix_nanos unix_seconds
unix_timestamp upper url_decode url_encode uuid var_pop var_samp variance weekday weekofyear width_bucket window
window_time xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short xpath_string
xxhash64 year zeroifnull zip_with
""")

TABLE_FUNCTIONS = protocol.name_set("""
explode explode_outer inline inline_outer json_tuple posexplode range stack
""")
"""Functions allowed in FROM."""


_PLANS = protocol.name_set("""
Aggregate CTERelationDef Cube Distinct Except Filter Generate GlobalLimit Intersect Join LateralJoin LateralSubquery
LimitAll LocalLimit LocalRelation Offset OneRowRelation PipeOperator Project Rollup Sample Sort SubqueryAlias Union
UnresolvedHaving UnresolvedInlineTable UnresolvedRelation UnresolvedSubqueryColumnAliases UnresolvedQualify
UnresolvedTableValuedFunction UnresolvedTVFAliases UnresolvedWith
""")
"""Relations allowed in a parsed question. The plan's JSON has all their parts, but not those of a WINDOW clause."""

_UNRESOLVED = protocol.name_set("""
MultiAlias UnresolvedAlias UnresolvedAttribute UnresolvedExtractValue UnresolvedFunction UnresolvedGenerator
UnresolvedInlineTable UnresolvedNamedLambdaVariable UnresolvedOrdinal UnresolvedRegex UnresolvedStar
UnresolvedStarExcept UnresolvedStarExceptOrReplace
""")
"""Unresolved nodes allowed in a parsed question."""

_SOURCES = frozenset(("CTERelationRef", "LocalRelation", "LogicalRDD", "LogicalRelation", "OneRowRelation", "Range"))
"""Leaves allowed in an analysed question."""

_REACHING = protocol.name_set("""
CallMethodViaReflection CurrentUser InputFileBlockLength InputFileBlockStart InputFileName PythonUDF PythonUDAF
PythonUDTF ScalaAggregator ScalaUDAF ScalaUDF TryReflect UserDefinedPythonTableFunction VariableReference
""")
"""Expressions of an analysed question that reach beyond its rows."""

_CATALYST = "org.apache.spark.sql.catalyst."
_PLAN, _ANALYSIS, _EXPRESSIONS = f"{_CATALYST}plans.logical.", f"{_CATALYST}analysis.", f"{_CATALYST}expressions."

_SETTINGS = {
    # `${env:NAME}` is a text.
    "spark.sql.variable.substitute": "false",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.files.minPartitionNum": "1",
    # No plan of a running question is shown.
    "spark.sql.adaptive.enabled": "true",
}

_RANGE = 3  # number of arguments of `range` without the last, a number of tasks

MOST_REPEATED = 100_000
"""Maximum rows that joins without an equality make from one row: Spark's tasks are cancelled between input rows."""

_TASKS = ("spark.sql.leafNodeDefaultParallelism", "spark.sql.shuffle.partitions", "spark.sql.files.maxPartitionNum")
"""Settings of the number of tasks of a stage."""


class SparkQuestion:
    def __init__(self, session: SparkSession, files: FileTables, sql: str, bounds: protocol.Bounds) -> None:
        self._session, self._files, self._sql, self._bounds = session, files, sql, bounds
        self._tag = f"mmqjp-{uuid4().hex}"
        self._cut = False

    def answer(self) -> pa.Table:
        context = self._session.sparkContext
        context.addJobTag(self._tag)
        context.setInterruptOnCancel(True)
        try:
            with _silent():
                answer = self._judged(_beside(self._session))
                if self._bounds.rows is not None:
                    answer = answer.limit(self._bounds.rows + 1)
                if self._cut:
                    raise protocol.QuestionInterrupted("the question was interrupted")
                rows = answer.toArrow()
        except (PySparkException, Py4JError) as error:
            if self._cut:
                raise protocol.QuestionInterrupted("the question was interrupted") from None
            lines = (line.strip() for line in str(error).splitlines())
            raise protocol.QuestionRefused(next(filter(None, lines), type(error).__name__)) from error
        finally:
            context.removeJobTag(self._tag)
        self._bounds.check(rows.num_rows, rows.nbytes)
        return rows

    def interrupt(self) -> None:
        self._cut = True
        self._session.sparkContext.cancelJobsWithTag(self._tag)

    def _judged(self, session: SparkSession) -> DataFrame:
        """The question as a data frame over its own views. Raises QuestionRefused."""
        protocol.short_enough(self._sql)
        check_spark_plan(json.loads(_parsed(session, self._sql).toJSON()), self._files.schema)
        TableViews(session, self._files).refresh(self._sql)
        frame = session.sql(self._sql)
        execution = frame._jdf.queryExecution()
        judge_analysed(json.loads(execution.analyzed().toJSON()))
        largest = max((sum(file.rows for file in files) for files in self._files.files.values()), default=0)
        judge_joins(session, execution.optimizedPlan(), largest)
        return frame


def _beside(session: SparkSession) -> SparkSession:
    """A session with its own views and settings. Its stages have at most half as many tasks as cores: a running task
    does not yield to those of a batch."""
    other = session.newSession()
    tasks = max(session.sparkContext.defaultParallelism // 2, 1)
    for key, value in _SETTINGS.items():
        other.conf.set(key, value)
    for key in _TASKS:
        other.conf.set(key, str(tasks))
    return other


def _parsed(session: SparkSession, sql: str) -> Any:
    """The plan as the session will parse it: a parser heeds the settings of the thread's active session instead."""
    jvm = session._jvm
    assert jvm is not None
    kept = jvm.SparkSession.getActiveSession()
    jvm.SparkSession.setActiveSession(session._jsparkSession)
    try:
        return session._jsparkSession.sessionState().sqlParser().parsePlan(sql)
    finally:
        if kept.isDefined():
            jvm.SparkSession.setActiveSession(kept.get())
        else:
            jvm.SparkSession.clearActiveSession()


def check_spark_plan(plan: Any, schema: protocol.StoreSchema) -> None:
    """Raises QuestionRefused unless a parsed plan, in JSON, selects from a schema's relations by listed functions."""
    parts = list(protocol.json_objects(plan))
    made = {entry["_1"].lower() for part in parts for entry in part.get("cteRelations", ())}
    for part in parts:
        if "class" in part:
            _judge(part, schema, made)


def _judge(part: Mapping[str, Any], schema: protocol.StoreSchema, made: set[str]) -> None:
    name = _name(part)
    if not part["class"].startswith((_PLAN, _ANALYSIS, _EXPRESSIONS)):
        raise protocol.QuestionRefused(protocol.ONLY_READ)
    if part["class"].startswith(_PLAN) and name not in _PLANS:
        raise protocol.QuestionRefused(f"{protocol.ONLY_READ} ({name} is not answered)")
    if part["class"].startswith(_ANALYSIS) and name not in _PLANS | _UNRESOLVED:
        raise protocol.QuestionRefused(f"{name} is not answered: name tables and functions as they are")
    if name == "UnresolvedRelation":
        protocol.check_known(_inner(part["multipartIdentifier"]), schema, made)
    elif name == "UnresolvedFunction":
        _judge_function(_inner(part["nameParts"]), FUNCTIONS)
    elif name == "UnresolvedTableValuedFunction":
        _judge_function(_inner(part["name"]), TABLE_FUNCTIONS)
        if _inner(part["name"]).lower() == "range" and len(part["functionArgs"]) > _RANGE:
            raise protocol.QuestionRefused("range takes a start, an end and a step, and no number of partitions")
    elif name == "UnresolvedGenerator":
        _judge_function(part["name"]["funcName"], TABLE_FUNCTIONS)


def _judge_function(name: str, allowed: frozenset[str]) -> None:
    if name.lower() not in allowed:
        raise protocol.QuestionRefused(
            f"the function {name!r:.80} is not answered: only functions that compute values of limited size are"
        )


def judge_analysed(plan: Any) -> None:
    """Raises QuestionRefused for an analysed plan, in JSON, whose rows or expressions reach beyond the relations."""
    for part in protocol.json_objects(plan):
        if "class" not in part:
            continue
        name = _name(part)
        if name in _REACHING or ("objects." in part["class"] and name.startswith(("Invoke", "NewInstance"))):
            raise protocol.QuestionRefused(f"{name} is not answered: it reads more than the tables")
        is_plan = not part["class"].startswith(_EXPRESSIONS) and "dataType" not in part
        if is_plan and not part.get("num-children") and "isStreaming" in part and name not in _SOURCES:
            raise protocol.QuestionRefused(f"{name} is not answered: it is not a table of this store")
        if part.get("catalogTable") is not None:
            raise protocol.QuestionRefused("a table of Spark's catalog is not answered: it is not of this store")


def judge_joins(session: SparkSession, plan: Any, largest: int) -> None:
    """Raises QuestionRefused for uninterruptible joins of many rows with many. `largest`: the largest table's rows."""
    planning = session._jvm.org.apache.spark.sql.catalyst.planning  # type: ignore[union-attr]  # it runs
    by_hash = planning.ExtractEquiJoinKeys, planning.ExtractSingleColumnNullAwareAntiJoin
    repeated = 1
    for node, below in _bottom_up(plan, largest):
        if node.nodeName() == "Join" and not any(keys.unapply(node).isDefined() for keys in by_hash):
            repeated *= max(min(below), 1)
        if repeated > MOST_REPEATED:
            raise protocol.QuestionRefused(
                "this compares each row of a table with each of another, which could not be interrupted: say what of "
                "the one equals something of the other, or take fewer rows with LIMIT"
            )


def _bottom_up(plan: Any, largest: int) -> Iterator[tuple[Any, list[int]]]:
    """The nodes of a plan, children first, each with the maximum numbers of rows of its children."""
    waiting: list[tuple[Any, int, bool]] = [(plan, 0, False)]
    done: list[int] = []
    while waiting:
        node, count, is_met = waiting.pop()
        if not is_met:
            children = _sequence(node.children())
            waiting.append((node, len(children), True))
            waiting += [(child, 0, False) for child in reversed(children)]
            for inner in _sequence(node.subqueries()):
                yield from _bottom_up(inner, largest)
            continue
        below = done[len(done) - count :]
        del done[len(done) - count :]
        yield node, below
        if (rows := node.maxRows()).isDefined():
            done.append(int(rows.get()))
        elif node.nodeName() == "Generate":
            done.append(MOST_REPEATED + 1)
        else:  # a leaf is a table
            done.append((prod if node.nodeName() == "Join" else sum)(below) if below else largest)


def _sequence(found: Any) -> list[Any]:
    return [found.apply(place) for place in range(found.length())]


def _name(part: Mapping[str, Any]) -> str:
    return str(part["class"]).rpartition(".")[2]


def _inner(names: str) -> str:
    return names[1:-1]


@contextmanager
def _silent() -> Iterator[None]:
    """Keeps PySpark from logging a page about the errors of a question in this thread: they are answers."""
    # PySpark's own function: a logger from `logging` does not receive PySpark's messages.
    logger, thread = PySparkLogger.getLogger("SQLQueryContextLogger"), get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)
