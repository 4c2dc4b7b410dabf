"""Conditions that are not compiled into the automaton: lxml evaluates their XPath on one node."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from lxml import etree

from xpath_stage.parse import text_of
from xscl.algebra.expressions import CompareOp
from xscl.algebra.functions import DERIVED, compare, ends_with, matches, number_text, xpath_number
from xscl.algebra.pattern import EXTENSION_PREFIX
from xscl.algebra.regex.search import PatternLimit
from xscl.algebra.regex.syntax import PatternError
from xscl.algebra.times import compare_times

_Value = list[etree._Element | str] | str | float

_NAMESPACE = "urn:mmqjp:functions"
_functions = etree.FunctionNamespace(_NAMESPACE)


def _compare(_context: object, left: _Value, op: CompareOp, right: _Value) -> bool:
    return any(compare(op, one, two) for one in _atoms(left) for two in _atoms(right))


def _atoms(value: _Value) -> list[str | float]:
    """The operands of a comparison: the string value of each node, or the one string or number."""
    if not isinstance(value, list):
        return [value]
    return [text_of(node) if isinstance(node, etree._Element) else str(node) for node in value]


def _compare_times(_context: object, left: _Value, op: CompareOp, right: _Value) -> bool:
    return any(compare_times(op, str(one), str(two)) for one in _atoms(left) for two in _atoms(right))


def _of_text(derive: Callable[[str], str]) -> Callable[[object, str], str]:
    return lambda _context, text: derive(text)


for _name in DERIVED:
    _functions[_name] = _of_text(DERIVED[_name])
_functions["ends-with"] = lambda _context, text, end: ends_with(text, end)
_functions["matches"] = lambda _context, text, pattern, flags="": matches(text, pattern, flags)
_functions["number"] = lambda _context, text: xpath_number(text)
_functions["compare"] = _compare
_functions["compare-times"] = _compare_times
_functions["string"] = lambda _context, value: number_text(value)


_TOKEN = re.compile(r"""("[^"]*"|'[^']*'|[A-Za-z_][\w.-]*)|([0-9]+\.?[0-9]*|\.[0-9]+)""")
_EXACT_DIGITS = 15


def _exact(xpath: str) -> str:
    """The condition with our number() around each number that libxml2 may read inexactly: it reads 1.64 as the double
    after the nearest one. It reads short integers exactly.

    >>> _exact('count(./a1.5) = 2 and string(.) != "0.5" or number(.) > -1.64')
    'count(./a1.5) = 2 and string(.) != "0.5" or number(.) > -mmqjp:number("1.64")'
    """

    def token(found: re.Match[str]) -> str:
        number = found[2]
        if number is None or (number.isdigit() and len(number) <= _EXACT_DIGITS):
            return found[0]
        return f'{EXTENSION_PREFIX}:number("{number}")'

    return _TOKEN.sub(token, xpath)


@lru_cache(maxsize=65536)
def _compiled(xpath: str, on_attribute: bool) -> etree.XPath:
    # lxml cannot take an attribute as the context node. It is selected from its element by position.
    xpath = _exact(xpath)
    text = f"boolean(@*[$place][{xpath}])" if on_attribute else f"boolean({xpath})"
    return etree.XPath(text, namespaces={EXTENSION_PREFIX: _NAMESPACE}, smart_strings=False)


def holds(xpath: str, element: etree._Element, attribute: int = 0) -> bool:
    """Whether a condition in XPath is true at an element, or at its attribute at a position from 1.

    A condition is false if its regular expression takes too long, or if libxml2 runs out of resources.
    """
    try:
        if attribute:
            return bool(_compiled(xpath, True)(element, place=attribute))
        return bool(_compiled(xpath, False)(element))
    except (PatternError, PatternLimit, etree.XPathError):
        return False
