"""Conditions that are not compiled into the automaton: lxml evaluates their XPath on one node."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from lxml import etree

from xpath_stage.existential import compare_times_of, compare_values
from xscl.algebra.functions import DERIVED, ends_with, matches, number_text, xpath_number
from xscl.algebra.near import near
from xscl.algebra.pattern import EXTENSION_PREFIX
from xscl.algebra.regex.search import PatternLimit
from xscl.algebra.regex.syntax import PatternError

_NAMESPACE = "urn:mmqjp:functions"
_functions = etree.FunctionNamespace(_NAMESPACE)


def _of_text(derive: Callable[[str], str]) -> Callable[[object, str], str]:
    return lambda _context, text: derive(text)


for _name in DERIVED:
    _functions[_name] = _of_text(DERIVED[_name])
_functions["ends-with"] = lambda _context, text, end: ends_with(text, end)
_functions["matches"] = lambda _context, text, pattern, flags="": matches(text, pattern, flags)
_functions["near"] = lambda _context, text, other, threshold: near(text, other, threshold)
_functions["number"] = lambda _context, text: xpath_number(text)
_functions["compare"] = lambda _context, left, op, right: compare_values(op, left, right)
_functions["compare-times"] = lambda _context, left, op, right: compare_times_of(op, left, right)
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


_SIGN = re.compile(r"""\"[^\"]*\"|'[^']*'|[()\[\],]|[ ]!?=[ ]|[ ]""")


def _by_sets(xpath: str) -> str:
    """The condition with our compare() for each `=` and `!=` of two paths, for which libxml2 takes quadratic time.

    It is done here because the texts of conditions are stored.

    >>> _by_sets('not(./a[boolean(./b = ./c)] != ./d) and (./a = "./b")')
    'not(mmqjp:compare(./a[boolean(mmqjp:compare(./b, "=", ./c))], "!=", ./d)) and (./a = "./b")'
    """
    parts: list[str] = []
    starts, operators = [0], [0]  # of each open bracket; an operator is 0 if none has been met, -1 if it does not count
    place = 0

    def end() -> None:
        start, middle = starts[-1], operators[-1]
        if middle > 0:
            left, right = "".join(parts[start:middle]), "".join(parts[middle + 1 :])
            if all(side == "." or side.startswith(("./", ".//")) for side in (left, right)):
                parts[start:] = [f'{EXTENSION_PREFIX}:compare({left}, "{parts[middle].strip()}", {right})']

    for found in _SIGN.finditer(xpath):
        parts.append(xpath[place : found.start()])
        place, sign = found.end(), found[0]
        if sign in ")],":
            end()
            starts.pop()
            operators.pop()
        elif "=" in sign and sign[0] == " ":
            operators[-1] = -1 if operators[-1] else len(parts)
        elif sign == " ":
            operators[-1] = -1
        parts.append(sign)
        if sign in "([,":
            starts.append(len(parts))
            operators.append(0)
    parts.append(xpath[place:])
    end()
    return "".join(parts)


@lru_cache(maxsize=65536)
def _compiled(xpath: str, on_attribute: bool) -> etree.XPath:
    # lxml cannot take an attribute as the context node. It is selected from its element by position.
    xpath = _exact(_by_sets(xpath))
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
