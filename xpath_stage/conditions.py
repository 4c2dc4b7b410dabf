"""Conditions that are not worth compiling, evaluated by lxml's XPath on one node."""

from __future__ import annotations

from functools import lru_cache

from lxml import etree

from xscl.functions import PatternTimeout, ends_with, matches
from xscl.pattern import EXTENSION_PREFIX

_NAMESPACE = "urn:mmqjp:functions"
_functions = etree.FunctionNamespace(_NAMESPACE)
_functions["ends-with"] = lambda _context, text, end: ends_with(text, end)
_functions["matches"] = lambda _context, text, pattern: matches(text, pattern)


@lru_cache(maxsize=65536)
def _compiled(xpath: str, on_attribute: bool) -> etree.XPath:
    # An attribute cannot be lxml's context node: it is found from its owner by its place.
    text = f"boolean(@*[$place][{xpath}])" if on_attribute else f"boolean({xpath})"
    return etree.XPath(text, namespaces={EXTENSION_PREFIX: _NAMESPACE}, smart_strings=False)


def holds(xpath: str, element: etree._Element, attribute: int = 0) -> bool:
    """Whether a condition's XPath is true at an element, or at its attribute with that place (from 1).

    One that runs out of its time, or of what libxml2 allows an evaluation, does not hold.
    """
    try:
        if attribute:
            return bool(_compiled(xpath, True)(element, place=attribute))
        return bool(_compiled(xpath, False)(element))
    except (PatternTimeout, etree.XPathError):
        return False
