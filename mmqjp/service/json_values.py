"""Values of SQL as JSON has them: whatever a query answers can be written as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal

import pyarrow as pa


def column_values(column: pa.ChunkedArray) -> list[object]:
    """Returns the values of a column: numbers, texts, booleans, None, and lists and objects of these.

    Decimals become numbers if these are equal to them; what else JSON lacks, such as dates, becomes text.

    >>> column_values(pa.chunked_array([[Decimal("3.0"), Decimal("4.5")]])), column_values(pa.chunked_array([[b"a"]]))
    ([3, 4.5], ['a'])
    """
    try:
        values: list[object] = column.to_pylist()
    except OverflowError:  # times that Python has not
        values = column.cast(pa.string()).to_pylist()
    kind = column.type
    while pa.types.is_list(kind):
        kind = kind.value_type
    is_plain = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind)
    return values if is_plain else [_value(value) for value in values]


def _value(value: object) -> object:
    match value:
        case None | str() | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Decimal():
            if value == value.to_integral_value():
                return int(value)
            return float(value) if Decimal(repr(float(value))) == value else str(value)
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case list() | tuple():
            return [_value(one) for one in value]
        case Mapping():
            return {str(name): _value(one) for name, one in value.items()}
    return str(value)
