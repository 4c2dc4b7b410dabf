"""Names that the system gives to hidden streams, block roots and ends of paths. They begin with #; no other name does.

Stores keep them, so their spelling cannot change.
"""

from __future__ import annotations

import hashlib

_MARK = "#"
_ROOT = "#b"
_END = "#p"


def hidden_stream(definition: str) -> str:
    """The name of the hidden stream that an inner join makes. Joins with the same definition share it.

    >>> hidden_stream("a join")
    '#f6a765cd4b30211473c21765'
    """
    return _MARK + hashlib.sha256(definition.encode()).hexdigest()[:24]


def is_hidden(stream: str) -> bool:
    """Whether a stream is hidden, by its name.

    >>> is_hidden("#f6a765cd4b30211473c21765"), is_hidden("news")
    (True, False)
    """
    return stream.startswith(_MARK)


def short_name(stream: str) -> str:
    """A stream's name for people: of a hidden stream's digest six digits, which tell it from others.

    >>> short_name("#f6a765cd4b30211473c21765"), short_name("news")
    ('#f6a765', 'news')
    """
    return stream[:7] if is_hidden(stream) else stream


def block_root(block: int) -> str:
    """The variable of a block's root where the query names none. Blocks are numbered from 0.

    >>> block_root(2)
    '#b2'
    """
    return f"{_ROOT}{block}"


def block_of(root: str) -> int:
    """The number of the block whose root has a variable that `block_root` made.

    >>> block_of("#b2")
    2
    """
    return int(root.removeprefix(_ROOT))


def path_end(number: int) -> str:
    """The variable at the end of a path on a variable. The paths of a query are numbered from 1.

    >>> path_end(1)
    '#p1'
    """
    return f"{_END}{number}"


def is_system_variable(variable: str) -> bool:
    """Whether a variable is one that the query does not name.

    >>> is_system_variable("#p1"), is_system_variable("p1")
    (True, False)
    """
    return variable.startswith(_MARK)
