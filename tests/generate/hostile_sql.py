"""Statements that want too much: memory, time, stack or rights. All are short, and most are valid in DuckDB."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

ODD = ("\u202e", "\u200b", "\ufeff", "é", "𝒳", "\U0010ffff", "\x01", "ﷺ", "\u0301" * 50, "'", '"', "\\", "${env:HOME}")


def hostile_statement(seed: int) -> str:
    """The kinds come in turn."""
    random = Random(f"hostile {seed}")
    return KINDS[seed % len(KINDS)](random)


def _deep_text(random: Random) -> str:
    """A text that nests deeply, and is made while the statement runs."""
    opens, closes = random.choice((("[", "]"), ('{"a":', "}"), ("(", ")"), ("<a>", "</a>"), ("-", ""), ("NOT ", "")))
    many = random.choice((1_000, 30_000, 300_000, 3_000_000))
    times = f"(SELECT replace(string_agg('x', ''), 'x', '{{}}') FROM range({many}))"
    return f"({times.format(opens)} || '1' || {times.format(closes)})"


def _nested_values(random: Random) -> str:
    text = _deep_text(random)
    return random.choice((
        f"SELECT json_contains({text}, '1')", f"SELECT json_contains('[1]', {text})", f"SELECT {text}::JSON::VARIANT",
        f"SELECT json({text})", f"SELECT json_structure({text})", f"SELECT json_merge_patch({text}, {text})",
        f"SELECT json_extract({text}, '$..a')", f"SELECT json_valid({text})", f"SELECT json_keys({text})",
        f"SELECT count(*) FROM json_tree({text})", f"SELECT {text}::INTEGER[]", f"SELECT {text}::JSON[]",
        f"SELECT {text}::STRUCT(a INTEGER)", f"SELECT regexp_matches('aaa', {text})",
        f"SELECT json_group_array({text}) FROM range(100)", f"SELECT CAST({text} AS VARIANT)::JSON",
    ))  # fmt: skip


def _nested_text(random: Random) -> str:
    many = random.choice((50, 900, 5_000, 20_000))
    return random.choice((
        "SELECT " + "(" * many + "1" + ")" * many,
        "SELECT " + "[" * many + "1" + "]" * many,
        "SELECT " + "{'a': " * many + "1" + "}" * many,
        "SELECT " + "NOT " * many + "true",
        "SELECT " + "-" * 2 + "1\n" + "- " * many + "1",
        "SELECT " + "CASE WHEN true THEN " * many + "1" + " END" * many,
        "SELECT " + "abs(" * many + "1" + ")" * many,
        "SELECT * FROM " + "(SELECT * FROM " * many + "outputs" + ")" * many,
        "SELECT 1" + " UNION ALL SELECT 1" * many,
        "SELECT 1 WHERE 1" + " + 1" * many + " = 0",
        "SELECT 1 WHERE " + " OR ".join(f"{one} = {one + 1}" for one in range(many)),
        "SELECT 1::INTEGER" + "[]" * many,
        "SELECT (SELECT " * many + "1" + ")" * many,
    ))  # fmt: skip


def _ctes(random: Random) -> str:
    many = random.choice((8, 12, 25, 60))
    first = random.choice(("SELECT query AS n FROM outputs", "SELECT 1 AS n", "SELECT t0 AS n FROM documents"))
    how = random.choice((
        "SELECT a.n FROM {0} a, {0} b", "SELECT n FROM {0} UNION ALL SELECT n FROM {0}",
        "SELECT a.n FROM {0} a JOIN {0} b ON a.n = b.n", "SELECT n FROM {0} WHERE n IN (SELECT n FROM {0})",
        "SELECT n FROM {0} UNION SELECT n FROM {0}", "SELECT (SELECT max(n) FROM {0}) AS n FROM {0}",
    ))  # fmt: skip
    kept = random.choice(("", "NOT MATERIALIZED ", "MATERIALIZED "))
    parts = [f"c0 AS ({first})", *(f"c{n} AS {kept}({how.format(f'c{n - 1}')})" for n in range(1, many))]
    return f"WITH {', '.join(parts)} SELECT count(*) FROM c{many - 1}"


def _values(random: Random) -> str:
    many = random.choice((10_000, 1_000_000, 300_000_000))
    text = f"(SELECT string_agg('x', '') FROM range({min(many, 1_000_000)}))"
    return random.choice((
        f"SELECT length(replace({text}, 'x', {text}))",
        f"SELECT length(list_distinct(list(range))) FROM range({many})",
        f"SELECT length(regexp_replace({text}, 'x', {text}, 'g'))",
        f"SELECT length(concat({', '.join([text] * 40)}))",
        f"SELECT length(flatten(list_transform(list(range), x -> [x, x, x]))) FROM range({many})",
        f"SELECT length(list_sort(list(range))) FROM range({many})", f"SELECT length(string_split({text}, ''))",
        f"SELECT list_reduce(list('x'), (a, b) -> a || a) FROM range({min(many, 60)})",
        f"SELECT length(translate({text}, 'x', 'y')), length(reverse({text} || {text}))", "SELECT 2 ** 999999, 170!",
        f"SELECT length(list_aggregate(list(range), 'string_agg', ',')) FROM range({many})",
        f"SELECT jaccard({text}, {text}), jaro_similarity({text}, {text})",
        f"SELECT length(encode({text})::BLOB::VARCHAR)",
        f"SELECT length(list_concat(list(range), list(range))) FROM range({many})",
        f"SELECT length(to_base64({text}::BLOB))",
        f"SELECT len(list_zip(list(range), list(range))) FROM range({many})", f"SELECT md5({text} || {text})",
    ))  # fmt: skip


def _casts(random: Random) -> str:
    digits = "9" * random.choice((30, 400, 50_000))
    kind = random.choice(
        ("BIGNUM", "DOUBLE", "DECIMAL(38, 10)", "HUGEINT", "INTERVAL", "TIMESTAMP", "BIT", "UUID", "DATE")
    )
    return random.choice((
        f"SELECT '{digits}'::{kind}", f"SELECT {digits[:4000]}::{kind}",
        f"SELECT list(range)::{kind}[] FROM range(1000000)",
        f"SELECT (SELECT string_agg('9', '') FROM range(3000000))::{kind}",
        f"SELECT nodes::JSON::{kind} FROM outputs",
        f"SELECT TRY_CAST(xml AS {kind}), xml::VARIANT FROM documents",
        f"SELECT '{digits}'::{kind}::VARCHAR::VARIANT::JSON",
    ))  # fmt: skip


def _aggregates(random: Random) -> str:
    many = random.choice((100_000, 10_000_000, 1_000_000_000))
    return random.choice((
        f"SELECT list(range) FROM range({many})", f"SELECT histogram(range) FROM range({many})",
        f"SELECT length(string_agg(range, '')) FROM range({many})",
        f"SELECT map(list(range), list(range)) FROM range({many})",
        f"SELECT quantile_cont(range, [0.1, 0.9]), mode(range) FROM range({many})",
        f"SELECT range FROM range({many})",
        f"SELECT range, list(range) OVER () FROM range({min(many, 100_000)})",
        f"SELECT json_group_array(range) FROM range({many})",
        f"SELECT count(DISTINCT range || '{'x' * 100}') FROM range({many})",
        f"SELECT approx_top_k(range, 100000) FROM range({many})",
        f"SELECT range % 999999 AS a, max(range || '{'y' * 300}') FROM range({many}) GROUP BY a ORDER BY 2",
        f"SELECT * FROM range({many}) a, range({many}) b ORDER BY a.range * b.range",
        f"SELECT sum(a.range * b.range) FROM range({many}) a, range({many}) b",
        f"SELECT count(*) FROM (SELECT unnest(list(range)) FROM range({many})) a, outputs, documents",
    ))  # fmt: skip


def _recursion(random: Random) -> str:
    grows = random.choice((
        "SELECT n + 1 FROM t", "SELECT n + 1 FROM t UNION ALL SELECT n + 1 FROM t", "SELECT a.n FROM t a, t b",
        "SELECT n || n FROM t", "SELECT [n] FROM t", "SELECT n FROM t, range(1000)", "SELECT n + 1 FROM t, outputs",
    ))  # fmt: skip
    first = "'x'" if "||" in grows else "1"
    kind = random.choice(("UNION ALL", "UNION"))
    return f"WITH RECURSIVE t(n) AS (SELECT {first} {kind} ({grows})) SELECT {random.choice(('count(*)', '*'))} FROM t"


def _unicode(random: Random) -> str:
    odd = "".join(random.choice(ODD) for _ in range(random.choice((1, 30, 3_000))))
    name, text = odd.replace('"', '""'), odd.replace("'", "''")
    return random.choice((
        f"SELECT 1 AS \"{name}\"", f"SELECT '{text}'", f"SELECT * FROM \"{name}\"", f"SELECT {odd}", odd,
        f"SELECT upper('{text}'), strip_accents('{text}'), nfc_normalize('{text}'), length_grapheme('{text}')",
        f"SELECT '{text}' COLLATE NOCASE LIKE '%{text}%'", f"SELECT '{text}' SIMILAR TO '{text}'",
        f"SELECT $${odd}$$",
        f"WITH \"{name}\" AS (SELECT 1) SELECT * FROM \"{name}\"",
        f"SELECT chr(1114111), unicode('{text}'), E'\\x{odd}'",
    ))  # fmt: skip


def _reaching(random: Random) -> str:
    what = random.choice(
        ("/etc/passwd", "/proc/self/environ", "held://store.duckdb", "http://127.0.0.1:1/x", "s3://a/b")
    )
    return random.choice((
        f"SELECT * FROM read_text('{what}')", f"SELECT * FROM '{what}'", f"SELECT * FROM read_blob('{what}')",
        f"ATTACH '{what}' AS a", f"COPY outputs TO '{what}'", "INSTALL httpfs", "SELECT getenv('HOME')", "SHUTDOWN",
        f"SELECT * FROM query('SELECT * FROM read_text(''{what}'')')", "DROP TABLE outputs",
        "SELECT * FROM duckdb_secrets()",
        "SET memory_limit = '1TB'", "PRAGMA database_list", "CHECKPOINT", "SELECT current_setting('temp_directory')",
    ))  # fmt: skip


def _cut(random: Random) -> str:
    """Two statements cut and joined anywhere."""
    one, other = (random.choice(KINDS[:-1])(random) for _ in range(2))
    return one[: random.randrange(len(one))] + other[random.randrange(len(other)) :]


KINDS: tuple[Callable[[Random], str], ...] = (
    _nested_values, _ctes, _values, _nested_text, _casts, _aggregates, _recursion, _unicode, _reaching, _cut,
)  # fmt: skip
