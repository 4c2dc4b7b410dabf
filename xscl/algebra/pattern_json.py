"""Tree patterns as JSON, for stores: a node is `[axis, kind, uri, name, conditions, children, functions]`.

A condition is `["=", literal]` or `["?", xpath]`. Variables are left out: what queries share has none.
"""

from __future__ import annotations

import json
from functools import lru_cache
from json.encoder import encode_basestring as _quoted
from typing import Any

from common.errors import InvalidValue
from common.remembered import Remembered
from xscl.algebra.functions import chained
from xscl.algebra.pattern import Condition, PatternNode, Test

_AXES = ("/", "//", ".")
_KINDS = ("element", "attribute")

# Many patterns test for few names, and tests that are the same object are compared fast.
_test = lru_cache(maxsize=10_000)(Test)


def to_json(node: PatternNode) -> str:
    """A pattern as JSON, without its variables."""
    return _json(node) if node.children else _leaf_json(node)


def from_json(text: str) -> PatternNode:
    """The pattern that `to_json` wrote. Raises InvalidValue for any other text."""
    try:
        return _node(json.loads(text))
    except (TypeError, RecursionError) as error:
        raise InvalidValue(f"{text[:80]!r} is no tree pattern") from error


def _json(node: PatternNode) -> str:
    test = ",".join(map(_quoted, (node.axis, node.test.kind, node.test.uri, node.test.local)))
    conditions = ",".join(map(_condition_json, node.conditions))
    children = ",".join(map(to_json, node.children))
    functions = ",".join(map(_quoted, node.functions))
    return f"[{test},[{conditions}],[{children}],[{functions}]]"


_leaf_json = Remembered(_json)  # very many patterns share their leaves


def _condition_json(condition: Condition) -> str:
    if condition.literal is None:
        return f'["?",{_quoted(condition.xpath or "")}]'
    return f'["=",{_quoted(condition.literal)}]'


def _node(plain: Any) -> PatternNode:
    axis, kind, uri, local, conditions, children, functions = plain
    known = axis in _AXES and kind in _KINDS and isinstance(uri, str) and isinstance(local, str)
    if not known or not all(map(_is_function, functions)):
        raise InvalidValue(f"{str(plain)[:80]!r} is no tree pattern")
    return PatternNode(
        axis,
        _test(kind, uri, local),
        tuple(map(_condition, conditions)),
        tuple(map(_node, children)),
        functions=tuple(functions),
    )


def _is_function(name: str) -> bool:
    try:
        chained(name)
    except KeyError:
        return False
    return True


def _condition(plain: Any) -> Condition:
    sort, text = plain
    if not isinstance(text, str) or sort not in ("=", "?"):
        raise InvalidValue(f"{str(plain)[:80]!r} is no condition")
    return Condition(literal=text) if sort == "=" else Condition(xpath=text)
