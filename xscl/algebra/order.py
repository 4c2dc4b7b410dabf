"""The six comparisons of two values of one kind."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from xscl.algebra.expressions import CompareOp

ORDER: dict[CompareOp, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Whether a comparison holds, by its operator."""
