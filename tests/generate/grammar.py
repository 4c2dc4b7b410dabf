"""Random texts by a grammar, with words that are keywords elsewhere, whether they mean anything or not."""

from __future__ import annotations

from math import inf
from random import Random

from lark.grammar import Rule

from tests.generate.documents import chance
from xscl.lalr import lark_of
from xscl.text import SyntaxKind

XML_NAMES = ("a", "item", "x-", "a--b", "a.b", "é", "from", "by", "not", "next", "union", "fold", "text", "xml", "i1")
NAMES = ("a", "b", "x1", "_y", "i", "s", "h", "number", "count", "true", "inf", "len")
CLAUSES = ("seq", "where", "having", "return", "errors", "budget", "all", "matches", "earliest", "maximal", "set")
"""Keywords of a PATTERN alone: attributes may be called so."""
WORDS = ("S", "a", "b-", "x.y", "é", "selected", "union", "filter", "fold", "within", "once", "per", "event", "in")
NUMBERS = ("0", "7", "7.", ".5", "1.50", "007")
STRINGS = ('""', "'u'", '"a ""quoted"" text"', '"it\'s"', "'it''s'", "'a; b'", '"-- no comment"', "'(: nor this :)'")
TEXTS = ("text", " ", "&lt;b>", "{{x}}", "a &amp; b", "&amp;amp;", "\n\t\r", "; (: no :) --", "}}", "東", "&#65;")
TERMINALS = {
    "NAME": (*NAMES, *NAMES, *CLAUSES),
    "VARIABLE": ("A", *NAMES),
    "ATTRIBUTE": (*NAMES, "from", "by", "AS", "next", "null", "not", "dur", "within"),
    "SIDE": ("$1", "$2", "$"),
    "WORD": WORDS,
    "VAR": (*WORDS, "x'", "y''"),
    "FUNCTION": (
        *("count", "sum", "argmax", "abs", "lower-case", "contains", "matches", "coalesce", "host", "unknown"),
        *("substring-after", "words", "number", "string", "date", "near", "similar", "median"),
    ),
    "STRING": (*STRINGS, "'{x}'", '"50% RETURN"', "'é\t東'"),
    "NUMBER": NUMBERS,
    "PERCENTAGE": tuple(f"{number}%" for number in NUMBERS),
    "DURATION": ("0 s", "1 us", "1500us", "1.5 s", "1 h", "7 d", f"{2**62 - 1} us"),
    "UNIT": ("us", "ms", "s", "min", "h", "d", "w"),
    "INF": ("INF", "infinity", "∞"),
    "COMPARE": ("=", "!=", "<", "<=", ">", ">="),
    "AXIS": ("/", "//"),
    "CURRENT": ("i",),
    "PREVIOUS": ("i-1", "i - 1"),
    "LAST": ("a.len",),
    "EARLIER": ("..i-1",),
    "TEXT": (*TEXTS, "\"'"),
    "DQUOTED": (*TEXTS, "'"),
    "SQUOTED": (*TEXTS, '"'),
}
"""Texts of terminals. Others are one word or sign."""


class TextMaker:
    """Makes texts of one kind of statements."""

    def __init__(self, rng: Random, kind: SyntaxKind) -> None:
        self._rng, self._kind, lark = rng, kind, lark_of(kind)
        self._terminals: dict[str, tuple[str, ...]] = {
            one.name: (one.pattern.value,) for one in lark.terminals if one.pattern.type == "str"
        }
        self._terminals |= TERMINALS
        if kind in ("xscl", "definition"):
            self._terminals |= {"NAME": XML_NAMES, "NUMBER": (*NUMBERS, "-1.50")}
            self._terminals["FUNCTION"] += ("not", "not", "and")
        elif kind == "pattern":
            self._terminals["NUMBER"] = ("0", "1", "2", "30", *NUMBERS)
        self._rules: dict[str, list[Rule]] = {}
        for rule in lark.rules:
            self._rules.setdefault(rule.origin.name, []).append(rule)
        self._least: dict[str, float] = dict.fromkeys(self._rules, inf)
        while inf in self._least.values():
            self._least |= {name: min(map(self._depth, rules)) for name, rules in self._rules.items()}

    def _depth(self, rule: Rule) -> float:
        return 1 + max((0 if one.is_term else self._least[one.name] for one in rule.expansion), default=0)

    def statement(self, depth: int) -> str:
        """A statement; `depth` is the number of levels of the grammar below those that it has to have."""
        if self._kind == "pattern":
            return self._pattern(depth)
        return self._text("definition" if self._kind == "definition" else "query", depth)

    def _text(self, start: str, depth: int) -> str:
        words = " ".join(self._of(start, self._least[start] + depth, publishes=True))
        # Without an argument these two are of the context node, which operands do not have.
        return words.replace("number ( )", "number ( 7 )").replace("string ( )", "string ( 7 )")

    def _pattern(self, depth: int) -> str:
        """A pattern whose clauses stand in their order, which is that of the grammar."""
        words = ["pattern seq (", self._text("components", depth), ")"]
        for alias in dict.fromkeys(rule.alias for rule in self._rules["clause"]):
            if chance(self._rng, 40):
                rule = self._rng.choice([rule for rule in self._rules["clause"] if rule.alias == alias])
                clause = self._expanded(rule, self._depth(rule) + depth, publishes=False)
                if alias == "errors":
                    clause[1] = "<="
                words += clause
        return " ".join(words)

    def _of(self, name: str, depth: float, publishes: bool) -> list[str]:
        """The words of a rule. Only a whole statement publishes."""
        rules = [rule for rule in self._rules[name] if self._depth(rule) <= max(depth, self._least[name])]
        if not publishes:
            rules = [rule for rule in rules if "publish" not in {one.name for one in rule.expansion}] or rules
        return self._expanded(self._rng.choice(rules), depth, publishes and name != "query")

    def _expanded(self, rule: Rule, depth: float, publishes: bool) -> list[str]:
        made: list[str] = []
        tag: list[str] = []
        for one in rule.expansion:
            if one.is_term:
                made.append(self._rng.choice(self._terminals.get(one.name, (one.name.lower(),))))
            elif one.name == "qname":  # an end tag has the name of its start
                tag = tag or self._of(one.name, depth - 1, publishes)
                made += tag
            else:
                made += self._of(one.name, depth - 1, publishes)
        return made
