"""Operations on columns by the rules of NULL: of strings NULL_TEXT, of numbers NaN, which stands for infinity too.

A single value may stand for a column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pattern_stage.columns import NULL_TEXT
from xscl.algebra.events import ArithmeticOp
from xscl.algebra.expressions import CompareOp


def known_text(codes: Any) -> Any:
    """Returns which codes are not NULL."""
    return np.not_equal(codes, NULL_TEXT)


def is_null(values: Any, is_text: bool) -> Any:
    """Returns which codes of texts, or numbers, are NULL."""
    return np.equal(values, NULL_TEXT) if is_text else np.isnan(values)


def finite(numbers: Any) -> Any:
    """Returns numbers with NULL in place of infinity."""
    return np.where(np.isfinite(numbers), numbers, np.nan)


def same_texts(one: Any, other: Any) -> Any:
    """Returns which texts are equal, and not NULL."""
    return np.equal(one, other) & known_text(one)


def different_texts(one: Any, other: Any) -> Any:
    """Returns which texts differ, and are not NULL."""
    return np.not_equal(one, other) & known_text(one) & known_text(other)


def different_numbers(one: Any, other: Any) -> Any:
    """Returns which numbers differ, and are not NULL."""
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
