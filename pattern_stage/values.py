"""Values of event statements as columns: texts as codes, NULL logic, and compiled expressions.
What derives from texts is computed once per distinct text, by `xscl.algebra.functions`. NULL is NULL_TEXT for strings
and NaN, also for infinity, for numbers; a single value may stand for a column. Arithmetic and functions of NULL are
NULL, except `coalesce`; atoms with NULL are false, except IS NULL. Conditions and values compile once per template to
functions over arrays. Saved values have texts as strings, so that any process can restore them."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import Any, Generic, TypeVar, assert_never

import numpy as np
import pyarrow as pa

from common.arrays import Ints, Mask, distinct
from pattern_stage.columns import NULL_TEXT, Column, Columns, Floats, number_distinct
from xscl.algebra import events as algebra
from xscl.algebra.regex import PatternError, PatternLimit
from xscl.algebra.values import MOST_TEXT, NUMERIC, TESTS, chained, number_text, xpath_number

C = TypeVar("C", bound=Column)

CHARACTERS = 100  # what waits counts once more towards limits for this many characters of the texts that functions made

FALSE, TRUE, UNDECIDED = 0, 1, -1
"""Outcomes of a test. UNDECIDED for NULL, and for an invalid or too slow regular expression."""


class Texts:
    """Texts of events and parameters, by code: of this process, never stored, stable until `keep` drops the text."""

    def __init__(self) -> None:
        self._code_of = _Codes()
        self._kept = self._kept_size = 0
        self._forget_derived()

    def __len__(self) -> int:
        """Number of texts, derived ones included."""
        return len(self._code_of) - 1

    def codes(self, texts: Iterable[str | None]) -> Ints:
        """Returns the codes of texts, adding new ones."""
        return np.fromiter(map(self._code_of.__getitem__, texts), np.int64)

    def code(self, text: str | None) -> int:
        return self._code_of[text]

    def text(self, code: int) -> str | None:
        return None if code == NULL_TEXT else self._code_of.texts[code]

    def texts(self, codes: Ints) -> list[str | None]:
        """Returns the texts of codes; None for NULL."""
        return list(map(self.text, codes.tolist()))

    # ------------------------------------------------------------ derived values

    def derived_numbers(self, name: str, codes: Ints) -> Floats:
        """Returns `name(text)` of each text, `name` in NUMERIC; NaN if invalid or infinite."""
        of = NUMERIC[name]
        return self._numbers[name].of(codes, self._code_of.texts, lambda new: [finite_or_nan(of(text)) for text in new])

    def derived(self, name: str, codes: Ints) -> Ints:
        """Returns the codes of `name(text)` of each text, for functions of chains."""
        return self._derived[name].of(codes, self._code_of.texts, lambda new: self.codes(map(chained(name), new)))

    def lengths(self, codes: Column) -> Ints:
        """Returns the number of characters of each text; 0 for NULL."""
        return np.nan_to_num(self.derived_numbers("string-length", codes.astype(np.int64))).astype(np.int64)

    def sizes(self, codes: Column) -> Ints:
        """Returns what texts count for beside their event: 1 for each CHARACTERS."""
        return self.lengths(codes) // CHARACTERS

    def written(self, numbers: Floats) -> Ints:
        """Returns the codes of numbers written as texts; NULL for NaN."""
        found, at = np.unique(numbers, return_inverse=True)
        return self.codes(None if math.isnan(number) else number_text(number) for number in found.tolist())[at]

    def concatenated(self, parts: Sequence[Ints]) -> Ints:
        """Returns the codes of row-wise concatenations; NULL if a part is NULL or the result exceeds MOST_TEXT."""
        first, at = number_distinct(parts)
        texts = zip(*(self.texts(part[first]) for part in parts), strict=True)
        return self.codes(map(_concatenated, texts))[at]

    def tested(self, name: str, args: Sequence[Ints]) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
        """Returns whether `name(*args)` holds, by row: TRUE, FALSE or UNDECIDED. `name` is in TESTS."""
        first, at = number_distinct(args)
        rows = zip(*(arg[first].tolist() for arg in args), strict=True)
        return np.array([self.outcome(name, row) for row in rows], np.int8)[at]

    def outcome(self, name: str, args: Iterable[int]) -> int:
        texts = [self.text(code) for code in args]
        if None in texts:
            return UNDECIDED
        try:
            return TRUE if TESTS[name](*texts) else FALSE
        except (PatternError, PatternLimit):
            return UNDECIDED

    # ------------------------------------------------------------ forgetting

    @property
    def crowded(self) -> bool:
        """Whether texts have grown enough, in number or size, since the last `keep` to call it again."""
        return len(self) > 2 * self._kept + 10_000 or self._code_of.size > 2 * self._kept_size + 16_000_000

    def keep(self, used: Iterable[Ints]) -> None:
        """Drops all texts without a code in `used`; their codes are reused. `used` must have every code still held: in
        events, operator state and parameters. Compiled conditions hold texts, not codes."""
        texts = self._code_of.texts
        kept = np.zeros(len(texts) + 1, np.bool_)  # the last is NULL's
        for codes in used:
            kept[codes] = True
        count = int(kept[:-1].nonzero()[0].max(initial=-1)) + 1
        self._code_of.forget((~kept[:-1]).nonzero()[0].tolist(), count)
        self._forget_derived()
        self._kept, self._kept_size = len(self), self._code_of.size

    def _forget_derived(self) -> None:
        self._numbers = defaultdict[str, _Cache[Floats]](lambda: _Cache(np.float64, unknown=math.inf, null=math.nan))
        self._derived = defaultdict[str, _Cache[Ints]](lambda: _Cache(np.int64, NULL_TEXT - 1, NULL_TEXT))


class _Codes(dict[str | None, int]):
    """The codes of texts. New texts get a free code, or the next."""

    def __init__(self) -> None:
        super().__init__({None: NULL_TEXT})
        self.texts: list[str] = []
        self.size = 0  # number of characters
        self._free: list[int] = []

    def __missing__(self, text: str) -> int:
        if self._free:
            code = self._free.pop()
            self.texts[code] = text
        else:
            code = len(self.texts)
            self.texts.append(text)
        self[text] = code
        self.size += len(text)
        return code

    def forget(self, codes: list[int], count: int) -> None:
        """Frees all codes but those in use, which are all below `count`."""
        free = set(self._free)
        for code in codes:
            if code not in free:
                del self[self.texts[code]]
                self.size -= len(self.texts[code])
                self.texts[code] = ""
        del self.texts[count:]
        self._free = [code for code in reversed(codes) if code < count]


class _Cache(Generic[C]):
    """A lazily computed value per code. The last place is that of NULL, code -1."""

    def __init__(self, dtype: type, unknown: float, null: float) -> None:
        self._unknown, self._null = unknown, null
        self._values: C = np.array([null], dtype)  # type: ignore[assignment]  # of the type that `dtype` says

    def of(self, codes: Ints, texts: list[str], compute: Callable[[list[str]], Sequence[float] | Ints]) -> C:
        """Returns the values of codes of `texts`."""
        if len(texts) >= len(self._values):
            values = np.full(2 * len(texts) + 2, self._unknown, self._values.dtype)
            values[: len(self._values) - 1] = self._values[:-1]
            values[-1] = self._null
            self._values = values  # type: ignore[assignment]  # of the same type
        found = self._values[codes]
        unknown = found == self._unknown
        if unknown.any():
            new = distinct(codes[unknown])
            self._values[new] = compute([texts[code] for code in new.tolist()])
            found = self._values[codes]
        return found  # type: ignore[return-value]  # of the same type


def finite_or_nan(number: float) -> float:
    return number if math.isfinite(number) else math.nan


def _concatenated(texts: tuple[str | None, ...]) -> str | None:
    known = [text for text in texts if text is not None]
    return "".join(known) if len(known) == len(texts) and sum(map(len, known)) <= MOST_TEXT else None


def plain_values(column: Column, texts: Texts) -> list[Any]:
    """Returns the values of a column: texts, numbers, None for NULL."""
    if column.dtype == np.float64:
        return [None if value != value else value for value in column.tolist()]
    return texts.texts(column.astype(np.int64, copy=False))


to_json = json.JSONEncoder(ensure_ascii=False).encode


def json_arrays(
    values: Sequence[Any], ends: Sequence[int], to_text: Callable[[Sequence[Any]], str] = to_json
) -> Iterator[str]:
    """Yields JSON arrays of consecutive values, up to each of `ends`.

    >>> list(json_arrays(["a", 2.5, None], [1, 1, 3]))
    ['["a"]', '[]', '[2.5, null]']
    """
    for begin, end in pairwise([0, *ends]):
        yield to_text(values[begin:end])


MICROSECONDS = 1e6  # per second, the unit of DUR and GAP


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of events, or single events, each with a row of parameters, to test a condition on. Pair i has event
    `left_at[i]` of `left` and of `latest`, FOLD's latest values; `right_at[i]` of `right`; and the parameters at
    `rows[i]`. What the condition does not mention may be None."""

    left: Columns
    left_at: Ints
    rows: Ints
    parameters: tuple[Column, ...] = ()
    right: Columns | None = None
    right_at: Ints | None = None
    latest: Columns | None = None

    def __len__(self) -> int:
        return len(self.left_at)

    def at(self, places: Ints) -> Pairs:
        right_at = None if self.right_at is None else self.right_at[places]
        return replace(self, left_at=self.left_at[places], rows=self.rows[places], right_at=right_at)


def every_event(events: Columns, parameters: tuple[Column, ...] = ()) -> Pairs:
    """Returns each event once; the row of an event is its place."""
    at = np.arange(len(events))
    return Pairs(events, at, at, parameters)


def compile_condition(
    condition: algebra.EventCondition, left: algebra.Schema, right: algebra.Schema | None, texts: Texts
) -> Callable[[Pairs], Mask]:
    return np.errstate(all="ignore")(_ColumnWriter(left, right, texts).test(condition))


def compile_value(
    value: algebra.Value, left: algebra.Schema, right: algebra.Schema | None, texts: Texts
) -> Callable[[Pairs], Column]:
    """Compiles a value to a column; that of a string has codes."""
    writer = _ColumnWriter(left, right, texts)
    evaluate = writer.compiled("pairs", writer.value(value, writer.place))
    dtype = np.int64 if algebra.value_kind(value) == "string" else np.float64

    @np.errstate(all="ignore")
    def computed(pairs: Pairs) -> Column:
        found = evaluate(pairs)
        return _whole(found, len(pairs)).astype(dtype, copy=np.shape(found) != (len(pairs),))  # type: ignore[no-any-return]  # NumPy has no type here

    return computed


@lru_cache(maxsize=4096)
def _code(source: str) -> CodeType:
    return compile(source, "<expression>", "eval")


_CodeOf = Callable[[Any], str]  # the Python expression of an attribute, DUR or GAP


_DEEP = 40  # an expression this deep in another is a function of its own: Python allows 200 nested parentheses


_CALLS = {
    ("=", "string"): "same_text",
    ("!=", "string"): "other_text",
    ("!=", "number"): "other_number",
    ("coalesce", "string"): "first_text",
    ("coalesce", "number"): "first_number",
    ("concat", "string"): "concatenated",
}


class Writer:
    """Writes expressions as Python, over `functions`, and compiles them. `parameter` is the code of a parameter, given
    its number. With `arguments`, of all functions that are compiled, expressions may be of any depth."""

    def __init__(
        self, functions: Mapping[str, Callable[..., Any]], parameter: str = "P[{}]", arguments: str = ""
    ) -> None:
        self._names: dict[str, Any] = dict(functions)
        self._parameter, self._arguments = parameter, arguments

    def compiled(self, arguments: str, body: str) -> Callable[..., Any]:
        return eval(_code(f"lambda {arguments}: {body}"), self._names)  # type: ignore[no-any-return]  # eval has none

    def condition(self, condition: algebra.EventCondition, place: _CodeOf) -> str:
        match condition:
            case algebra.AllOf(args=args) | algebra.AnyOf(args=args):
                word, none = (" and ", "True") if isinstance(condition, algebra.AllOf) else (" or ", "False")
                return f"({word.join(self.condition(arg, place) for arg in args)})" if args else none
            case algebra.Comparison(op=op, left=left, right=right):
                are_texts = op in ("=", "!=") and algebra.value_kind(left) == algebra.value_kind(right) == "string"
                kind: algebra.Kind = "string" if are_texts else "number"
                one, other = self.value(left, place, kind), self.value(right, place, kind)
                if (op, kind) in _CALLS:
                    return f"{_CALLS[op, kind]}({one}, {other})"
                return f"({one} {'==' if op == '=' else op} {other})"
            case algebra.NullTest(value=value, negated=negated):
                call = "null_text" if algebra.value_kind(value) == "string" else "null_number"
                return f"({call}({self.value(value, place)}) != {negated})"
            case algebra.TextTest(name=name, args=args, negated=negated):
                texts = ", ".join(self.value(arg, place, "string") for arg in args)
                return f"tested({name!r}, {FALSE if negated else TRUE}, {texts})"
        assert_never(condition)

    def value(self, value: algebra.Value, place: _CodeOf, kind: algebra.Kind | None = None, depth: int = 0) -> str:
        """Returns Python for a value's number, or the code of its text: by default, what it is."""
        own = algebra.value_kind(value)
        kind = kind or own
        if depth == _DEEP and self._arguments:
            code = self.value(value, place, kind)
            return f"{self._named(self.compiled(self._arguments, code))}({self._arguments})"
        if kind == "string" and own == "number":
            return f"written({self.value(value, place, 'number', depth)})"
        if kind == "number" and own == "string" and not isinstance(value, algebra.Constant):
            return f"number_of('number', {self.value(value, place, 'string', depth)})"

        depth += 1
        match value:
            case algebra.Constant(value=constant):
                if kind == "string":
                    return f"code({self._named(str(constant))})"
                number = xpath_number(constant) if isinstance(constant, str) else float(constant)
                return self._named(finite_or_nan(number))
            case algebra.Arithmetic(op=op, left=left, right=right):
                one, other = self.value(left, place, "number", depth), self.value(right, place, "number", depth)
                if op in "/%":
                    return f"{'divided' if op == '/' else 'rest'}({one}, {other})"
                return f"finite({one} {op} {other})"
            case algebra.Function(name="coalesce" | "concat" as name, args=args):
                return f"{_CALLS[name, kind]}({', '.join([self.value(arg, place, kind, depth) for arg in args])})"
            case algebra.Function(name="abs", args=(arg,)):
                return f"abs({self.value(arg, place, 'number', depth)})"
            case algebra.Function(name="number", args=(arg,)):
                return self.value(arg, place, "number", depth)
            case algebra.Function(name=name, args=(arg,)):
                call = "derived" if kind == "string" else "number_of"
                return f"{call}({name!r}, {self.value(arg, place, 'string', depth)})"
            case algebra.Parameter(index=index):
                return self._parameter.format(index)
        return place(value)

    def _named(self, constant: object) -> str:
        name = f"c{len(self._names)}"
        self._names[name] = constant
        return name


class _ColumnWriter(Writer):
    def __init__(self, left: algebra.Schema, right: algebra.Schema | None, texts: Texts) -> None:
        super().__init__(_column_functions(texts), "pairs.parameters[{}][pairs.rows]", "pairs")
        self._left = {name: place for place, (name, _) in enumerate(left)}
        self._right = {name: place for place, (name, _) in enumerate(right or ())}

    def test(self, condition: algebra.EventCondition) -> Callable[[Pairs], Mask]:
        """Compiles a condition; tests cheap atoms first, others only where these are inconclusive."""
        match condition:
            case algebra.AllOf(args=args):
                return _all_of([(self.test(arg), cost(arg) >= COSTLY) for arg in sorted(args, key=cost)])
            case algebra.AnyOf(args=args):
                return _any_of([self.test(arg) for arg in sorted(args, key=cost)])
        atom = self.compiled("pairs", self.condition(condition, self.place))
        return lambda pairs: _whole(atom(pairs), len(pairs))

    def place(self, leaf: algebra.Value) -> str:
        match leaf:
            case algebra.Attribute(part="right", name=name):
                return f"pairs.right.values[{self._right[name]}][pairs.right_at]"
            case algebra.Attribute(part=part, name=name):
                return f"pairs.{part}.values[{self._left[name]}][pairs.left_at]"
        return "duration(pairs)" if isinstance(leaf, algebra.Duration) else "gap(pairs)"


def _column_functions(texts: Texts) -> dict[str, Callable[..., Any]]:
    def rows(*columns: Any) -> list[Any]:
        return list(map(np.atleast_1d, np.broadcast_arrays(*columns)))

    def known(codes: Any) -> Any:
        return np.not_equal(codes, NULL_TEXT)

    def finite(numbers: Any) -> Any:
        return np.where(np.isfinite(numbers), numbers, np.nan)

    return {
        "same_text": lambda one, other: np.equal(one, other) & known(one),
        "other_text": lambda one, other: np.not_equal(one, other) & known(one) & known(other),
        "other_number": lambda one, other: np.less(one, other) | np.greater(one, other),  # which NaN is not
        "null_text": lambda codes: np.equal(codes, NULL_TEXT),
        "null_number": np.isnan,
        "finite": finite,
        "divided": lambda left, right: finite(np.divide(left, right)),
        "rest": lambda left, right: finite(np.fmod(left, right)),  # XPath's mod, with the sign of the left
        "first_text": lambda *codes: _first(codes, known),
        "first_number": lambda *numbers: _first(numbers, np.isfinite),
        "code": texts.code,  # asked for anew each time: the code may have been forgotten
        "written": lambda numbers: texts.written(*rows(numbers)),
        "number_of": lambda name, codes: texts.derived_numbers(name, *rows(codes)),
        "derived": lambda name, codes: texts.derived(name, *rows(codes)),
        "concatenated": lambda *codes: texts.concatenated(rows(*codes)),
        "tested": lambda name, wanted, *codes: texts.tested(name, rows(*codes)) == wanted,
        "duration": _duration,
        "gap": _gap,
    }


# ---------------------------------------------------------------- costs

COSTLY = 10  # tests from this cost on run only where they matter


_COSTS = {algebra.Comparison: 1, algebra.Arithmetic: 1, algebra.Function: COSTLY, algebra.TextTest: 100}


def cost(condition: algebra.EventCondition | algebra.Value) -> int:
    """Returns the approximate cost per pair, in comparisons of numbers."""
    return _COSTS.get(type(condition), 0) + sum(map(cost, algebra.operands(condition)))


# ---------------------------------------------------------------- what functions are made of


def _all_of(parts: list[tuple[Callable[[Pairs], Mask], bool]]) -> Callable[[Pairs], Mask]:
    if len(parts) == 1:
        return parts[0][0]

    def holds(pairs: Pairs) -> Mask:
        mask: Mask = np.ones(len(pairs), np.bool_)
        places, rest = None, pairs  # where all parts held before they were last taken out, and the pairs there
        for evaluate, costly in parts:
            count = np.count_nonzero(mask)
            if count == 0:
                break
            if count < len(mask) and (costly or 2 * count < len(mask)):
                held = np.flatnonzero(mask)
                places, rest = held if places is None else places[held], rest.at(held)
                mask = evaluate(rest)
            else:
                mask = mask & evaluate(rest)
        if places is None:
            return mask
        found = np.zeros(len(pairs), np.bool_)
        found[places] = mask
        return found

    return holds


def _any_of(parts: list[Callable[[Pairs], Mask]]) -> Callable[[Pairs], Mask]:
    def holds(pairs: Pairs) -> Mask:
        mask: Mask = np.zeros(len(pairs), np.bool_)
        for evaluate in parts:
            open_at = np.flatnonzero(~mask)
            if not len(open_at):
                break
            mask[open_at] = evaluate(pairs.at(open_at) if len(open_at) < len(pairs) else pairs)
        return mask

    return holds


def _first(columns: Sequence[Any], known: Callable[[Any], Any]) -> Any:
    value = columns[-1]
    for column in columns[-2::-1]:
        value = np.where(known(column), column, value)
    return value


def _whole(values: Any, size: int) -> Any:
    return values if np.shape(values) == (size,) else np.broadcast_to(np.asarray(values), size)


def _duration(pairs: Pairs) -> Floats:
    latest = pairs.left if pairs.latest is None else pairs.latest
    end = latest.t1[pairs.left_at] if pairs.right is None else pairs.right.t1[pairs.right_at]
    return (end - pairs.left.t0[pairs.left_at]) / MICROSECONDS


def _gap(pairs: Pairs) -> Floats:
    latest = pairs.left if pairs.latest is None else pairs.latest
    assert pairs.right is not None, "GAP is between two events"
    return (pairs.right.t0[pairs.right_at] - latest.t1[pairs.left_at]) / MICROSECONDS


# ---------------------------------------------------------------- tables that any process can read


def saved(columns: Columns, schema: algebra.Schema, texts: Texts, prefix: str) -> dict[str, pa.Array]:
    """Returns events as columns of a table, with prefixed names."""
    found = {
        f"{prefix}t0": pa.array(columns.t0),
        f"{prefix}t1": pa.array(columns.t1),
        f"{prefix}parts": lists(columns.parts.ravel(), np.full(len(columns), columns.parts.shape[1])),
    }
    for place, ((_, kind), column) in enumerate(zip(schema, columns.values, strict=True)):
        found[f"{prefix}{place}"] = saved_values(column, kind == "string", texts)
    return found


def loaded(table: pa.Table, schema: algebra.Schema, texts: Texts, prefix: str) -> Columns:
    parts, sizes = flatten_lists(table, f"{prefix}parts")
    t0, t1 = ints(table, f"{prefix}t0"), ints(table, f"{prefix}t1")
    values = [loaded_values(table, f"{prefix}{at}", kind == "string", texts) for at, (_, kind) in enumerate(schema)]
    return Columns(t0, t1, tuple(values), parts.reshape(len(table), int(sizes[0])))


def saved_values(column: Column, are_texts: bool, texts: Texts) -> pa.Array:
    if not are_texts:
        return pa.array(column, pa.float64())
    codes, numbers = np.unique(column, return_inverse=True)
    return pa.array(texts.texts(codes.astype(np.int64)), pa.string()).take(pa.array(numbers))


def loaded_values(table: pa.Table, name: str, are_texts: bool, texts: Texts) -> Column:
    column = table.column(name).combine_chunks()
    if not are_texts:
        return np.array(column.to_numpy(zero_copy_only=False), np.float64)
    encoded = column.dictionary_encode()
    codes = texts.codes([*encoded.dictionary.to_pylist(), None])
    places: Ints = encoded.indices.fill_null(len(codes) - 1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes[places]


def lists(values: Ints, sizes: Ints) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(sizes)), pa.int32()), pa.array(values, pa.int64()))


def flatten_lists(table: pa.Table, name: str) -> tuple[Ints, Ints]:
    """Returns the concatenated values of a list column, and the size of each list."""
    column = table.column(name).combine_chunks()
    sizes = np.array(column.value_lengths().to_numpy(zero_copy_only=False), np.int64)
    return np.array(column.flatten().to_numpy(zero_copy_only=False), np.int64), sizes


def ints(table: pa.Table, name: str) -> Ints:
    return np.array(table.column(name).to_numpy(), np.int64)
