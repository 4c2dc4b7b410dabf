"""Values of event statements as columns: texts as codes, NULL logic, compiled expressions, and aggregates of ranges.
What derives from texts is computed once per distinct text, by `xscl.algebra.functions`. NULL is NULL_TEXT for strings
and NaN, also for infinity, for numbers; a single value may stand for a column. Arithmetic and functions of NULL are
NULL, except `coalesce`; atoms with NULL are false, except IS NULL. Conditions and values compile once per template to
functions over arrays."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, assert_never

import numpy as np

from common.arrays import Ints, distinct
from pattern_stage.columns import NULL_TEXT, Column, Columns, Floats, Mask
from pattern_stage.windows import counts_in, greatest_in, sums_in
from xscl.algebra.events import (
    AggregateName,
    AllOf,
    AnyOf,
    Arithmetic,
    ArithmeticOp,
    Atom,
    Attribute,
    Comparison,
    Constant,
    Duration,
    EventCondition,
    Function,
    Gap,
    Kind,
    NullTest,
    Parameter,
    Schema,
    TextTest,
    Value,
    value_kind,
)
from xscl.algebra.regex import PatternLimit
from xscl.algebra.regex_syntax import PatternError
from xscl.algebra.values import MOST_TEXT, NUMERIC, TESTS, CompareOp, chained, number_text, xpath_number

C = TypeVar("C", bound=Column)
T = TypeVar("T")

FALSE, TRUE, UNDECIDED = 0, 1, -1
"""Outcomes of a test. UNDECIDED for NULL, and for an invalid or too slow regular expression."""


class Texts:
    """The texts of events and parameters, by code: one per process, never stored, stable until `keep` drops the
    text."""

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

    def numbers(self, codes: Ints) -> Floats:
        """Returns the XPath numbers of texts; NaN if invalid or infinite."""
        return self.derived_numbers("number", codes)

    def derived_numbers(self, name: str, codes: Ints) -> Floats:
        """Returns `name(text)` of each text, `name` in NUMERIC."""
        cache = self._numbers.get(name)
        if cache is None:
            cache = self._numbers[name] = _Cache(np.float64, unknown=math.inf, null=math.nan)
        function = NUMERIC[name]
        return cache.of(codes, len(self._code_of.texts), lambda new: list(map(_finite, map(function, self._of(new)))))

    def derived(self, name: str, codes: Ints) -> Ints:
        """Returns the codes of `name(text)` of each text, for functions of chains."""
        cache = self._derived.get(name)
        if cache is None:
            cache = self._derived[name] = _Cache(np.int64, unknown=NULL_TEXT - 1, null=NULL_TEXT)
        function = chained(name)
        return cache.of(codes, len(self._code_of.texts), lambda new: self.codes(map(function, self._of(new))))

    def written(self, numbers: Floats) -> Ints:
        """Returns the codes of numbers written as texts; NULL for NaN."""
        found, at = np.unique(numbers, return_inverse=True)
        return self.codes(None if math.isnan(number) else number_text(number) for number in found.tolist())[at]

    def concatenated(self, parts: Sequence[Ints]) -> Ints:
        """Returns the codes of row-wise concatenations; NULL if a part is NULL or the result exceeds MOST_TEXT."""
        rows, at = _distinct_rows(parts, len(self._code_of.texts))
        texts = zip(*map(self.texts, rows), strict=True)
        return self.codes(map(_concatenated, texts))[at]

    def tested(self, name: str, args: Sequence[Ints]) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
        """Returns whether `name(*args)` holds, by row: TRUE, FALSE or UNDECIDED. `name` is in TESTS."""
        rows, at = _distinct_rows(args, len(self._code_of.texts))
        outcomes = [_outcome(TESTS[name], row) for row in zip(*map(self.texts, rows), strict=True)]
        return np.array(outcomes, np.int8)[at]

    # ------------------------------------------------------------ forgetting

    @property
    def longest(self) -> int:
        """Upper bound of the characters of a text."""
        return self._code_of.longest

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
        self._numbers: dict[str, _Cache[Floats]] = {}
        self._derived: dict[str, _Cache[Ints]] = {}

    def _of(self, codes: Ints) -> Iterable[str]:
        return map(self._code_of.texts.__getitem__, codes.tolist())


class _Codes(dict[str | None, int]):
    """The codes of texts. New texts get a free code, or the next."""

    def __init__(self) -> None:
        super().__init__({None: NULL_TEXT})
        self.texts: list[str] = []
        self.size = 0
        """Number of characters."""
        self.longest = 0
        """Number of characters that no text has had more of."""
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
        self.longest = max(self.longest, len(text))
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

    def of(self, codes: Ints, size: int, compute: Callable[[Ints], Sequence[float] | Ints]) -> C:
        """Returns the values of codes, all below `size`."""
        if size >= len(self._values):
            values = np.full(2 * size + 2, self._unknown, self._values.dtype)
            values[: len(self._values) - 1] = self._values[:-1]
            values[-1] = self._null
            self._values = values  # type: ignore[assignment]  # of the same type
        found = self._values[codes]
        unknown = found == self._unknown
        if unknown.any():
            new = distinct(codes[unknown])
            self._values[new] = compute(new)
            found = self._values[codes]
        return found  # type: ignore[return-value]  # of the same type


def _finite(number: float) -> float:
    return number if math.isfinite(number) else math.nan


def _distinct_rows(columns: Sequence[Ints], size: int) -> tuple[list[Ints], Ints]:
    key, first, at = columns[0], *np.unique(columns[0], return_index=True, return_inverse=True)[1:]
    for column in columns[1:]:
        key = at * (size + 1) + column
        first, at = np.unique(key, return_index=True, return_inverse=True)[1:]
    return [column[first] for column in columns], at


def _concatenated(texts: tuple[str | None, ...]) -> str | None:
    known = [text for text in texts if text is not None]
    return "".join(known) if len(known) == len(texts) and sum(map(len, known)) <= MOST_TEXT else None


def _outcome(test: Callable[..., bool], args: tuple[str | None, ...]) -> int:
    if None in args:
        return UNDECIDED
    try:
        return TRUE if test(*args) else FALSE
    except (PatternError, PatternLimit):
        return UNDECIDED


def plain_values(column: Column, texts: Texts) -> list[Any]:
    """Returns the values of a column: texts, numbers, None for NULL."""
    if column.dtype == np.float64:
        return [None if value != value else value for value in column.tolist()]
    return texts.texts(column.astype(np.int64, copy=False))


def json_arrays(values: Sequence[Any], ends: Sequence[int]) -> Iterator[str]:
    """Yields JSON arrays of consecutive values, up to each of `ends`.

    >>> list(json_arrays(["a", 2.5, None], [1, 1, 3]))
    ['["a"]', '[]', '[2.5, null]']
    """
    begin = 0
    for end in ends:
        yield json.dumps(values[begin:end], ensure_ascii=False)
        begin = end


def joined_arrays(texts: Sequence[str | None], ends: Sequence[int]) -> Iterator[str]:
    """Yields JSON arrays of consecutive JSON values, up to each of `ends`.

    >>> list(joined_arrays(["[1]", "[2]", "[3]"], [1, 3]))
    ['[[1]]', '[[2], [3]]']
    """
    begin = 0
    for end in ends:
        yield f"[{', '.join(map(str, texts[begin:end]))}]"
        begin = end


def as_json(values: Sequence[Any], kinds: Sequence[Kind], texts: Texts) -> str:
    """Returns an event's values, of these kinds, as a JSON array."""
    found = [
        texts.text(value) if kind == "string" else None if value != value else value
        for value, kind in zip(values, kinds, strict=True)
    ]
    return json.dumps(found, ensure_ascii=False)


def known_text(codes: Any) -> Any:
    return np.not_equal(codes, NULL_TEXT)


def is_null(values: Any, is_text: bool) -> Any:
    return np.equal(values, NULL_TEXT) if is_text else np.isnan(values)


def null_infinities(numbers: Any) -> Any:
    return np.where(np.isfinite(numbers), numbers, np.nan)


def same_texts(one: Any, other: Any) -> Any:
    """Returns which texts are equal and not NULL."""
    return np.equal(one, other) & known_text(one)


def different_texts(one: Any, other: Any) -> Any:
    """Returns which texts differ and are not NULL."""
    return np.not_equal(one, other) & known_text(one) & known_text(other)


def different_numbers(one: Any, other: Any) -> Any:
    """Returns which numbers differ and are not NULL."""
    return np.less(one, other) | np.greater(one, other)  # which NaN is not


TEXT_COMPARISONS: dict[CompareOp, Callable[[Any, Any], Any]] = {"=": same_texts, "!=": different_texts}
NUMBER_COMPARISONS: dict[CompareOp, Callable[[Any, Any], Any]] = {
    "=": np.equal,
    "!=": different_numbers,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
ARITHMETIC: dict[ArithmeticOp, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,  # as XPath's mod: the sign is that of the left number
}


MICROSECONDS = 1e6
"""Per second, the unit of DUR and GAP."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of events, or single events, each with a row of parameters, to test a condition on. Pair i has event
    `left_at[i]` of `left` and of `latest`, FOLD's latest values; `right_at[i]` of `right`; and the parameters at
    `rows[i]`. What the condition does not mention may be None."""

    left: Columns
    left_at: Ints
    right: Columns | None
    right_at: Ints | None
    latest: Columns | None
    rows: Ints
    parameters: tuple[Column, ...]

    def __len__(self) -> int:
        return len(self.left_at)

    def at(self, places: Ints) -> Pairs:
        right_at = None if self.right_at is None else self.right_at[places]
        rows = self.rows[places]
        return Pairs(self.left, self.left_at[places], self.right, right_at, self.latest, rows, self.parameters)


def single_events(events: Columns, at: Ints, rows: Ints, parameters: tuple[Column, ...]) -> Pairs:
    """Returns events without a partner, for operators with one input."""
    return Pairs(events, at, None, None, None, rows, parameters)


def compile_condition(
    condition: EventCondition, left: Schema, right: Schema | None, texts: Texts
) -> Callable[[Pairs], Mask]:
    """Compiles a condition to a mask of pairs; tests cheap atoms first, others only where these are inconclusive."""
    evaluate = _Compiler(left, right, texts).condition(condition)

    def holds(pairs: Pairs) -> Mask:
        with np.errstate(all="ignore"):
            return evaluate(pairs)

    return holds


def compile_value(value: Value, left: Schema, right: Schema | None, texts: Texts) -> Callable[[Pairs], Column]:
    """Compiles a value to a column; that of a string has codes."""
    evaluate = _Compiler(left, right, texts).value(value)
    dtype = np.int64 if value_kind(value) == "string" else np.float64

    def computed(pairs: Pairs) -> Column:
        with np.errstate(all="ignore"):
            found = evaluate(pairs)
        return _whole(found, len(pairs)).astype(dtype, copy=not np.ndim(found))  # type: ignore[no-any-return]  # a column

    return computed


_Evaluate = Callable[[Pairs], Any]
"""An array with a value per pair, or one value for all."""


class _Compiler:
    def __init__(self, left: Schema, right: Schema | None, texts: Texts) -> None:
        self._left = {name: place for place, (name, _) in enumerate(left)}
        self._right = {name: place for place, (name, _) in enumerate(right or ())}
        self._texts = texts

    # ------------------------------------------------------------ conditions

    def condition(self, condition: EventCondition) -> Callable[[Pairs], Mask]:
        match condition:
            case AllOf(args=args):
                ordered = sorted(args, key=cost)
                return _all_of([(self.condition(arg), cost(arg) >= COSTLY) for arg in ordered])
            case AnyOf(args=args):
                return _any_of([self.condition(arg) for arg in sorted(args, key=cost)])
            case _:
                atom = self._atom(condition)
                return lambda pairs: _whole(atom(pairs), len(pairs))

    def _atom(self, atom: Atom) -> _Evaluate:
        match atom:
            case Comparison(op=op, left=left, right=right):
                if op in ("=", "!=") and value_kind(left) == value_kind(right) == "string":
                    compare, one, other = TEXT_COMPARISONS[op], self.text(left), self.text(right)
                else:
                    compare, one, other = NUMBER_COMPARISONS[op], self.number(left), self.number(right)
                return lambda pairs: compare(one(pairs), other(pairs))
            case NullTest(value=value, negated=negated):
                of, is_text = self.value(value), value_kind(value) == "string"
                return lambda pairs: is_null(of(pairs), is_text) != negated
            case TextTest(name=name, args=args, negated=negated):
                columns, wanted, texts = list(map(self.text, args)), FALSE if negated else TRUE, self._texts
                return lambda pairs: (
                    texts.tested(name, [_whole(column(pairs), len(pairs)) for column in columns]) == wanted
                )
        assert_never(atom)

    # ------------------------------------------------------------ values

    def value(self, value: Value) -> _Evaluate:
        return self.text(value) if value_kind(value) == "string" else self.number(value)

    def text(self, value: Value) -> _Evaluate:
        """The codes of a value's texts; numbers are written as XPath does."""
        texts = self._texts
        if value_kind(value) == "number":
            number = self.number(value)
            return lambda pairs: texts.written(_whole(number(pairs), len(pairs)))
        match value:
            case Constant(value=constant):
                # Asked for anew each time: the code may have been forgotten.
                return lambda pairs: texts.code(str(constant))
            case Function(name="coalesce", args=args):
                return _first([self.text(arg) for arg in args], known_text)
            case Function(name="concat", args=args):
                parts = list(map(self.text, args))
                return lambda pairs: texts.concatenated([_whole(part(pairs), len(pairs)) for part in parts])
            case Function(name=name, args=(arg,)) if name not in ("coalesce", "concat"):
                of = self.text(arg)
                return lambda pairs: texts.derived(name, _whole(of(pairs), len(pairs)))
        return self._taken(value)

    def number(self, value: Value) -> _Evaluate:
        """The numbers of a value, NaN for NULL."""
        if value_kind(value) == "string":
            return self._number_of_text(value, "number")
        match value:
            case Constant(value=constant):
                number = np.float64(constant if math.isfinite(float(constant)) else math.nan)
                return lambda pairs: number
            case Duration():
                return _duration
            case Gap():
                return _gap
            case Arithmetic(op=op, left=left, right=right):
                apply, one, other = ARITHMETIC[op], self.number(left), self.number(right)
                return lambda pairs: null_infinities(apply(one(pairs), other(pairs)))
            case Function(name="coalesce", args=args):
                return _first([self.number(arg) for arg in args], np.isfinite)
            case Function(name="abs", args=(arg,)):
                of = self.number(arg)
                return lambda pairs: np.abs(of(pairs))
            case Function(name="number", args=(arg,)):
                return self.number(arg)
            case Function(name=name, args=(arg,)) if name in NUMERIC:
                return self._number_of_text(arg, name)
        return self._taken(value)

    def _number_of_text(self, value: Value, name: str) -> _Evaluate:
        if name == "number" and isinstance(value, Constant):
            found = null_infinities(np.float64(xpath_number(str(value.value))))
            return lambda pairs: found
        of, texts = self.text(value), self._texts
        return lambda pairs: texts.derived_numbers(name, _whole(of(pairs), len(pairs)))

    def _taken(self, value: Value) -> _Evaluate:
        match value:
            case Attribute(part="left", name=name):
                place = self._left[name]
                return lambda pairs: pairs.left.values[place][pairs.left_at]
            case Attribute(part="latest", name=name):
                place = self._left[name]
                return lambda pairs: _given(pairs.latest).values[place][pairs.left_at]
            case Attribute(part="right", name=name):
                place = self._right[name]
                return lambda pairs: _given(pairs.right).values[place][pairs.right_at]
            case Parameter(index=index):
                return lambda pairs: pairs.parameters[index][pairs.rows]
        raise AssertionError(f"no value of events: {value!r}")


# ---------------------------------------------------------------- costs

COSTLY = 10
"""Tests from this cost on run only where they matter."""


def cost(condition: EventCondition | Value) -> int:
    """Returns the approximate cost per pair, in comparisons of numbers."""
    match condition:
        case AllOf(args=args) | AnyOf(args=args):
            return sum(map(cost, args))
        case Comparison(left=left, right=right) | Arithmetic(left=left, right=right):
            return 1 + cost(left) + cost(right)
        case TextTest(args=args):
            return 100 + sum(map(cost, args))
        case Function(args=args):
            return COSTLY + sum(map(cost, args))
        case NullTest(value=value):
            return cost(value)
    return 0


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


def _first(parts: list[_Evaluate], known: Callable[[Any], Any]) -> _Evaluate:
    def found(pairs: Pairs) -> Any:
        value = parts[-1](pairs)
        for part in reversed(parts[:-1]):
            one = part(pairs)
            value = np.where(known(one), one, value)
        return value

    return found


def _whole(values: Any, size: int) -> Any:
    return values if np.ndim(values) else np.broadcast_to(np.asarray(values), size)


def _given(columns: Columns | None) -> Columns:
    assert columns is not None, "the condition mentions events that were not given"
    return columns


def _duration(pairs: Pairs) -> Floats:
    if pairs.right is not None:
        end = pairs.right.t1[pairs.right_at]
    else:
        end = (pairs.left if pairs.latest is None else pairs.latest).t1[pairs.left_at]
    return (end - pairs.left.t0[pairs.left_at]) / MICROSECONDS


def _gap(pairs: Pairs) -> Floats:
    latest = pairs.left if pairs.latest is None else pairs.latest
    return (_given(pairs.right).t0[pairs.right_at] - latest.t1[pairs.left_at]) / MICROSECONDS


def aggregate_ranges(
    name: AggregateName, arguments: Sequence[Column], starts: Ints, ends: Ints, texts: Texts
) -> Column:
    """Returns an aggregate with arguments over non-empty ranges of their rows."""
    all_known = np.logical_and.reduce([known(argument) for argument in arguments])
    if name == "count":
        return counts_in(all_known, starts, ends).astype(np.float64)
    if name in ("sum", "avg"):
        return sums(name, arguments[0], counts_in(all_known, starts, ends), starts, ends)  # type: ignore[arg-type]
    # The greatest by a rank that is different for all rows.
    if name == "argmax":
        order = np.lexsort((_falling(arguments[0], texts), arguments[1]))
    else:
        order = np.argsort(arguments[0] if name == "max" else -arguments[0], kind="stable")
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    ranks[~all_known] = -1
    best = greatest_in(ranks, starts, ends)
    found = arguments[0][order[np.maximum(best, 0)]] if len(order) else arguments[0][:0]
    if arguments[0].dtype == np.int64:
        return np.where(best >= 0, found, NULL_TEXT)
    return np.where(best >= 0, found, np.nan) + 0.0


def _falling(column: Column, texts: Texts) -> Column:
    """Returns keys in descending order of values; strings compare by code points."""
    if column.dtype == np.float64:
        return -column
    codes, numbers = np.unique(column, return_inverse=True)
    of = texts.texts(codes.astype(np.int64))
    ranks = np.empty(len(codes), np.int64)
    ranks[sorted(range(len(codes)), key=lambda place: of[place] or "")] = np.arange(len(codes))
    return -ranks[numbers]


def sums(name: AggregateName, numbers: Floats, counts: Ints, starts: Ints, ends: Ints) -> Floats:
    """Returns the sum or avg of the numbers in each range, given their counts."""
    found = sums_in(numbers, starts, ends)
    found[counts == 0] = np.nan
    result: Floats = found / np.maximum(counts, 1) if name == "avg" else found
    result[~np.isfinite(result)] = np.nan
    return result


def known(column: Column) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Returns which values are not NULL."""
    return column >= 0 if column.dtype == np.int64 else ~np.isnan(column)
