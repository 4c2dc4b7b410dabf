"""Explains syntax errors in the language's terms, with a remedy; also spellings of SQL, XQuery or JSONPath."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from lark import UnexpectedInput, UnexpectedToken
from lark.lexer import PatternStr

from common.bounds import UNITS
from xscl import text as texts
from xscl.algebra.values import Span
from xscl.event_forms import RESERVED, RESERVED_IN_PATTERNS
from xscl.event_patterns import STRATEGIES
from xscl.lalr import lark_of

_WORDS = {
    name: word
    for word, names in {
        "a name": "NAME WORD ATTRIBUTE VARIABLE",
        "a variable": "VAR",
        "a function": "FUNCTION",
        "a string": "STRING",
        "a number": "NUMBER PERCENTAGE",
        "a unit of time": "UNIT",
        "a comparison": "COMPARE",
        "/": "AXIS",
        "a comma": "COMMA",
        "an element": "TAG_OPEN",
        "an end tag": "END_OPEN",
        "a quoted value": "DQUOTE SQUOTE",
        "text": "TEXT DQUOTED SQUOTED",
        "the end of the query": "$END",
        "$": "SIDE",
        "a window": "DURATION INF",
        "i": "CURRENT",
        "i-1": "PREVIOUS",
        "v.LEN": "LAST",
        "..i-1": "EARLIER",
    }.items()
    for name in names.split()
}
"""Display names of terminals that are not punctuation or are displayed other than as written."""

_ONE_UNIT = "a window has one number and one unit"
_COMPARISON = r"(?:!=|<=|>=|=|<|(?<!-)>)"


@dataclass(frozen=True, slots=True)
class Rule:
    """A common mistake, how to recognise it, and its message.

    `before` and `behind` are regular expressions for the text on either side of the position where the parser stopped.
    The parser must have accepted one of `expects` there, and not `without`. `{0}` in the message and the hint is the
    first group of `before` or `behind`. The span of a `whole` mistake begins where `before` matched, that of others at
    the position."""

    message: str
    hint: str
    behind: str = ""
    before: str = ""
    expects: str = ""
    without: str = ""
    whole: bool = False


_OUTER = "bind the outer node, and write the inner one as its filter"

_COMPUTE = (
    "compare the values as they are, or compute over events: DEFINE EVENT E FROM S//item->i (x := number(i/price)); "
    "SELECT x * 2 AS y FROM E"
)

_LONG_UNITS = "(?:micro|milli)?sec(?:ond)?s?|mins|minutes?|hrs?|hours?|days?|weeks?|months?|years?"
_LENGTH = rf"\s*(?i:{_LONG_UNITS}|{'|'.join(UNITS)}|m)\b"
_MORE = rf"\s*(?:,|\+|(?i:and\b))?\s*[0-9.]+{_LENGTH}"

_SPELLINGS = (
    Rule(_ONE_UNIT, texts.ONE_UNIT_HINT, _MORE, rf"(?<![\w.])[0-9.]+{_LENGTH}\s*(?:,|(?i:and))?", whole=True),
    Rule(_ONE_UNIT, texts.ONE_UNIT_HINT, _LENGTH + _MORE, r"(?<![\w.])[0-9.]+", whole=True),
    Rule("there is no operator ==", "write =", "=", "=", whole=True),
    Rule("there is no operator <>", "write !=", ">", "<", whole=True),
    Rule("there is no operator =<", "write <=", "<", "=", whole=True),
    Rule("there is no operator =>", "write >=", ">", "=", whole=True),
    Rule("strings are written in straight quotes", "write \" or '", "[‘’“”„«»]"),
)
_WITHOUT_SIDE = (
    Rule("{0} has no right side", "write a condition after it, or remove it", r"(?:[,\]})]|$)", r"(?i:\b(and|or))"),
    Rule("{0} has no left side", "write a condition before it, or remove it", r"(?i:(and|or)\b)", expects="FUNCTION"),
    Rule("{0} has no right side", "write what to compare with", r"(?:[,\]})]|(?i:and|or)\b|$)", rf"({_COMPARISON})"),
    Rule("{0} has no left side", "write what to compare", rf"({_COMPARISON})", expects="FUNCTION"),
)  # fmt: skip

_ALONE = "a PATTERN stands alone, and is not an input of another statement"
_AS_STATEMENT = "leave out SELECT and FROM: PATTERN SEQ(A a, B b) WITHIN 7 d RETURN a.x AS x PUBLISH name"
_PATTERN_INSIDE = (
    Rule(_ALONE, _AS_STATEMENT, r"(?i:pattern\s+seq)\b", expects="FILTER"),
    Rule(_ALONE, _AS_STATEMENT, r"(?i:seq)\b|\(", r"(?i:\b(?:pattern|seq))", whole=True),
)

_DOCUMENT_RULES = (
    *_PATTERN_INSIDE,
    # Element constructors.
    Rule("a constructor holds elements and text only", "remove this", r"[!?]", "<", expects="NAME", whole=True),
    Rule("a single } in constructor text", "write }} for a brace", r"\}", expects="TEXT"),
    Rule("a single } in an attribute", "write }} for a brace", r"\}", expects="DQUOTED SQUOTED"),
    Rule("< cannot be used in an attribute", "write &lt;", "<", expects="DQUOTED SQUOTED"),
    Rule("an attribute's value must be quoted", 'write name="value"', expects="DQUOTE"),
    # Spellings of other languages.
    *_SPELLINGS,
    Rule("there is no operator !", "write != between values, and not(...) around a condition of a filter", "!"),
    Rule("there is no operator {0}", "write and", "(&&?)"),
    Rule("there is no operator ||", "write or", r"\|\|"),
    Rule("unions with | are not supported", "write one query for each path", r"\|"),
    Rule("variables are written without $", "write {0}", r"\$([\w.\-]+'*)"),
    Rule("a backslash is not an escape in a string", "write the quote twice", r"\S", r"\\[\"']"),
    Rule("numbers have no exponent", "write the digits out", before=r"[0-9][eE][0-9]*", whole=True),
    Rule("there is no WHERE",
         "write conditions as filters, as in S//item[./price > 5], and of events as in FILTER{price > 5} Offer",
         r"(?i:where)\b"),
    Rule("reverse axes are not supported", _OUTER, r"\.\."),
    Rule("reverse axes are not supported", _OUTER, r"\.", r"\.", whole=True),
    Rule("the axis child:: is not supported", "write / before the name", ":", r"\bchild\s*:", whole=True),
    Rule("the axis {0}:: is not supported", "write // before the name", ":", r"\b(descendant[\w\-]*)\s*:", whole=True),
    Rule("the axis attribute:: is not supported", "write @ before the name", ":", r"\battribute\s*:", whole=True),
    Rule("the axis self:: is not supported", "write . for the node itself", ":", r"\bself\s*:", whole=True),
    Rule("reverse axes are not supported: {0}::", _OUTER, ":",
         r"\b(parent|ancestor|ancestor-or-self|preceding|preceding-sibling)\s*:", whole=True),
    Rule("the axis {0}:: is not supported", "the axes are / and // and @", ":", r"([\w\-]+)\s*:", whole=True),
    Rule("a path stands for its text", "leave out /text()", r"\(\s*\)?", r"/\s*text", whole=True),
    Rule("node() is not a step of a path", "write * for any element", r"\(\s*\)?", r"/\s*node", whole=True),
    Rule("{0}() is not a step of a path", "write the function around the path", r"\(", r"[/@]\s*([\w\-]+)"),
    Rule("{1} is a function", "write {1}({0}, {2})",
         r"(contains|starts-with|ends-with|matches)\b\s*(\"[^\"\n]*\"|'[^'\n]*'|[\w./@*:()\-']+)", r"([\w./@*:()\-']+)",
         expects="AND"),
    Rule("there is no operator {1}", 'write contains({0}, "part"), or matches({0}, "pattern")',
         r"((?i:like|ilike|regexp|rlike|contain)\b|~\*?)", r"([\w./@*:()\-']+)", expects="AND"),
    Rule("there are no types: {0}", 'write the time alone, as in date(./timestamp) >= "2026-07-16"', r"\(",
         r"\b(xs:\w+)", whole=True),
    Rule("times are not subtracted", "compare two times; how far apart two documents may be is the window of the join",
         r"[+-](?!>)", r"\bdate\([^()]*\)", expects="AND"),
    Rule("a time is written in quotes", 'write "{0}{1}"', r"(-[0-9]{2}-[0-9]{2}(?:[Tt][0-9:.]+(?:[Zz]|[+-][0-9:]+)?)?)",
         r"(?<![\w.\-])([0-9]{4})", expects="AND", whole=True),
    Rule("there is no {0}()",
         "the window of a join says how far apart two documents are; mmqjp matches --since shows the newest matches",
         r"[+-](?!>)", r"\b(now|today|current-[a-zA-Z]+)\s*\(\s*\)", expects="AND", whole=True),
    Rule("there is no arithmetic in a query over documents", _COMPUTE, r"(?:[+*]|-(?!>)|div\b|mod\b)", expects="AND",
         without="STAR"),
    Rule("there is no arithmetic in a query over documents", _COMPUTE, r"(?:[+*]|-(?!>)|div\b|mod\b)", expects="AS",
         without="FOLLOWED"),
    # Clauses.
    Rule("a new query begins here", "write ; between two queries",
         r"(?i:from|select|declare|define\s+event|pattern\s+seq)\b", expects="$END"),
    Rule("UNORDERED goes after JOIN", "write JOIN UNORDERED", r"(?i:unordered)\b", expects="FOLLOWED"),
    Rule("UNORDERED goes after JOIN", "write JOIN UNORDERED", r"(?i:unordered)\b", "(?i:by)", expects="LBRACE"),
    Rule("NOT JOIN has no UNORDERED", "leave it out: NOT JOIN looks both ways", r"(?i:unordered)\b",
         r"(?i:not\s+join)"),
    Rule("PRECEDED BY without NOT", "write FOLLOWED BY with the inputs the other way round, or NOT PRECEDED BY",
         r"(?i:preceded)\b", expects="FOLLOWED", without="PRECEDED"),
    Rule("PRECEDED without BY", "write NOT PRECEDED BY", before="(?i:preceded)", expects="BY"),
    Rule("NOT without an operator", "write NOT FOLLOWED BY, NOT JOIN or NOT PRECEDED BY", expects="PRECEDED"),
    Rule("FOLLOWED without BY", "write FOLLOWED BY", expects="BY"),
    Rule("BY without FOLLOWED", "write FOLLOWED BY", r"(?i:by)\b", expects="FOLLOWED"),
    Rule("{0} without a predicate in braces", "write {x = y, 1 h} after it: a condition and a window",
         before=r"(?i:\b(BY|JOIN|UNORDERED))", expects="LBRACE"),
    Rule("this join has no window", "write a comma and a window before }, such as , 7 d or , INF", r"\}",
         expects="COMMA", without="RPAR"),
    Rule("this join has no window", "write a window after the comma, such as 7 d or INF", r"\}", expects="INF"),
    Rule("{0} is not a window", "write a number and a unit, such as 7 d, or INF", r"([^\s,}]+)", expects="INF"),
    Rule("this join has no right input", "write what to join with, such as S//item", "$", r"\}", expects="LPAR"),
    Rule("FROM without an input", "write what to read, such as S//item", "$", "(?i:from)", expects="LPAR"),
    Rule("SELECT without FROM", "write FROM and what to select from", "$", expects="FROM"),
    Rule("FROM is missing", "write FROM before the inputs (or a comma between items)", r"[\w/(]", expects="FROM"),
    Rule("SELECT selects nothing", "write *, variables, paths with AS, or an element", r"(?i:from)\b|$", "(?i:select)"),
    Rule("a SELECT item is missing", "write one after the comma, or remove it", r"(?i:from)\b|$", ",", expects="VAR"),
    Rule("an item's name cannot end in primes", "write AS {0}", "'+", r"(?i:as)\s+([\w.\-]+)"),
    Rule("a stream takes no filter", "write {0}/*[...] to filter its documents' roots", r"\[", r"([\w.\-]+)",
         expects="AXIS"),
    Rule("a stream takes no filter", "write S//{0}[...] to filter the elements of that name", r"\[",
         r"((?<![\w.\-/@:*])[\w.\-]+?\s*(?:->|\b(?i:as)\b)\s*[\w.\-]+'*)", expects="FOLLOWED"),
    Rule("a number is not an input", "write a path, such as S//item", r"-?[.0-9]+", expects="LPAR"),
    Rule("a string is not an input", "write a path, such as S//item", "[\"']", expects="LPAR"),
    # Bindings.
    Rule("names that queries PUBLISH have no prefix", "PUBLISH {0}", r":(\w[\w\-]*)", r"(?i:\bpublish)\s+[\w\-]+"),
    Rule("a path begins with a variable of its block", "write i/{0}:{1} where the block ends in ->i",
         r":([\w*][\w\-]*)", r"\b([\w\-]+)", without="NAME", whole=True),
    Rule("a path in a predicate or in SELECT binds no variable", "bind it in the block", "(?i:as)\\b", expects="AND"),
    Rule("a variable is missing", "write a name after the arrow", r"(?!\w)", "->"),
    Rule("a variable is missing", "write a name after AS", r"(?!\w)", r"(?i:\bas)"),
    Rule("there is no arithmetic in a query over documents", _COMPUTE, r"[0-9]", "/"),
    Rule("a step is missing", "write a name after the /", r"(?!\w)", "/"),
    # Conditions.
    *_WITHOUT_SIDE,
    Rule("a comparison of a comparison", "write and between two comparisons", _COMPARISON, expects="AND",
         without="COMPARE"),
    Rule("an empty filter", "write a condition, or remove the brackets", r"\]", r"\["),
    Rule("an empty predicate", "write an equality, such as x = y", "[,}]", r"\{", expects="FUNCTION"),
    Rule("ONCE without PER", "write ONCE PER and what to report once, in parentheses", expects="PER"),
    Rule("ONCE PER without what to report once", "write it in parentheses, as in ONCE PER (title)",
         before=r"(?i:\bper)", expects="LPAR"),
    Rule("ONCE PER without PUBLISH", "write PUBLISH and a name before it", r"(?i:once)\b", expects="PUBLISH"),
    Rule("WITHIN without ONCE PER", "write ONCE PER (...) before it", r"(?i:within)\b", expects="ONCE"),
    Rule("WITHIN without a window", "write a number and a unit, such as 7 d", r"(?:\)|$)", "(?i:within)"),
    Rule("PUBLISH without a name", "write a name, without quotes", r"\W|$", "(?i:publish)"),
    Rule("HIDDEN goes after the name in PUBLISH", "write PUBLISH name HIDDEN", r"(?i:hidden)\s*$"),
    Rule("a } is missing", "write } before this (for a brace in constructor text, write {{)", r"\S",
         expects="RBRACE", without="AND"),
    Rule("an operator is missing", "write a comparison, and, or or between the two", r"[\w\"'(]", expects="AND"),
)  # fmt: skip


_EVENT_SPELLINGS = (
    Rule("names of attributes have no prefix", "write {1} here, and {1} := i/{0}:{1} where the event is defined",
         r":(\w+)", r"(\w+)", whole=True),
    # Spellings of other languages, in expressions and windows.
    *_SPELLINGS,
    Rule("there is no operator !", "write != between values, and NOT in front of a condition", "!"),
    Rule("there is no operator {0}", "write AND", "(&&?)"),
    Rule("there is no operator ||", "write OR, or concat(x, y)", r"\|\|"),
    Rule("there is no operator {0}", "write /", r"(?i:(div)\b)", expects="AND"),
    Rule("there is no operator {0}", "write %", r"(?i:(mod)\b)", expects="AND"),
    Rule("there is no operator {0}", 'write contains(x, "part"), or matches(x, "pattern")',
         r"(?i:(like|ilike|regexp|rlike)\b)", expects="AND"),
    Rule("there is no IN", 'write x = "a" OR x = "b"', r"(?i:in)\b", expects="AND"),
    Rule("there is no BETWEEN", "write x >= 1 AND x <= 2", r"(?i:between)\b", expects="AND"),
    Rule("there is no {0} BY", "events come in the order of time", r"(?i:(order)\b)"),
    Rule("numbers have no exponent", "write the digits out", r"[0-9.]+[eE][0-9+-]"),
    Rule("unknown unit of time {0}", texts.UNITS_HINT, r"(?:[0-9][0-9.]*|\.[0-9]+)([A-Za-z]\w*)"),
    Rule("unknown unit of time {0}", texts.UNITS_HINT, rf"((?i:{_LONG_UNITS})\b)", r"(?<![\w.])[0-9.]+"),
    Rule("unknown unit of time {0}", texts.UNITS_HINT, rf"((?!(?i:{'|'.join(sorted(RESERVED))})\b)[A-Za-z]\w*)",
         r"(?i:\b(?:within|over|session))\s+[0-9.]+"),
    Rule("IS asks for NULL only", "write IS NULL or IS NOT NULL", before=r"(?i:\bis)", expects="NULL"),
)  # fmt: skip

_EVENT_PARTS = (
    Rule("PUBLISH without a name", "write a name of letters, digits and _", r"\W|$", r"(?i:\bpublish)"),
    Rule("HIDDEN goes after the name in PUBLISH", "write PUBLISH name HIDDEN", r"(?i:hidden)\s*$"),
    Rule("{0} without a window", "write a number and a unit, such as 7 d",
         before=r"(?i:\b(within|over(?:\s+session)?))"),
    Rule("% has no right side", "write a value after it, or 80% without a blank", r"(?:[,})]|$)", r"[0-9]\s+%"),
    Rule("DISTINCT is of one value", 'write count(DISTINCT concat(x, " ", y))', ",", r"(?i:\bdistinct)[^,]*",
         expects="RPAR", without="COMMA"),
    *_WITHOUT_SIDE,
    Rule("a comparison of a comparison", "write AND between two comparisons", _COMPARISON, expects="AND"),
    Rule("a name is missing", "write one behind AS", r"(?!\w)", before=r"(?i:\bas)"),
    Rule("a new statement begins here", "write ; between two statements", r"(?i:from|select|define|pattern)\b",
         expects="$END"),
    Rule("an operator is missing", "write a comparison, AND or OR between the two", r"[\w\"'($]", expects="AND"),
)  # fmt: skip

_QUERY_RULES = (
    *_PATTERN_INSIDE,
    # Syntax of queries over documents.
    Rule("a path reads documents, and an event query reads events",
         "write DEFINE EVENT and a name, FROM the path (x := ...), and the name here", r"/|->|@", expects="NEXT"),
    Rule("a path reads documents, and an event query reads events",
         "write DEFINE EVENT and a name, FROM the path (x := ...), and the name here", r"/", expects="FILTER"),
    Rule("there are no brackets here", "write FILTER{...} in front of the source", r"\[", expects="NEXT"),
    Rule("there are no brackets here", "write $1.x = $2.x", r"\["),
    Rule("an event query has no element constructor",
         "write SELECT x, y AS z: an output has an element for each attribute", "<", "(?i:select)"),
    Rule("{0} joins documents, and this is an event query",
         "write NEXT, or define events from the matches of a join that is PUBLISHed", r"(?i:(join|followed)\b)",
         expects="NEXT"),
    Rule("ONCE PER belongs to queries over documents", "remove it", r"(?i:once)\b", expects="$END"),
    Rule("WITHIN goes before PUBLISH", "write WITHIN 7 d PUBLISH name", r"(?i:within)\b", r"(?i:publish)\s+\w+"),
    *_EVENT_SPELLINGS,
    Rule("there is no {0}", "write FILTER{...} in front of the source", r"(?i:(where|having)\b)"),
    Rule("OVER is missing", "write OVER SESSION 30 min", r"(?i:session)\b", expects="OVER"),
    Rule("there is no GROUP BY", "write AGGREGATE{count() AS n BY x OVER 1 d} in front of the source", r"(?i:group)\b"),
    # References.
    Rule("{0}.{1} is not a reference", "write $1.{1} for the left event, $2.{1} for the right, $.{1} for FOLD's last",
         r"\.\s*(\w*)", r"(\w+)", whole=True),
    Rule("{0} without an attribute", "write a dot and a name after it, as in {0}.x", before=r"(\$\w*)", expects="DOT"),
    # Parts that are missing, or too many.
    Rule("FOLD has three parts in its braces", "write FOLD{which, while, x + 1 AS x}; each part may be empty",
         r"\}", expects="COMMA", without="RBRACE"),
    Rule("empty braces", "leave them out, or write a condition", r"\}", r"(?i:\b(?:next|before))\s*\{"),
    Rule("empty braces", "write a condition", r"\}", r"(?i:\bfilter)\s*\{"),
    Rule("empty braces", "write what to compute, such as count() AS n", r"\}", r"(?i:\baggregate)\s*\{"),
    Rule("{0} has one condition in its braces", "write AND between conditions, and WITHIN with a window at the end",
         ",", r"(?i:\b(next|latest\s+before|filter))\s*\{[^{}]*", expects="RBRACE", without="COMMA"),
    Rule("SELECT without FROM", "write FROM and what to select from", "$", expects="FROM"),
    Rule("SELECT selects nothing", "write *, or attributes", r"(?i:from)\b|$", "(?i:select)"),
    Rule("an item is missing", "write one after the comma, or remove it", r"(?i:from)\b|$", ",", expects="FUNCTION"),
    Rule("FROM is missing", "write FROM before the source", r"(?i:filter|aggregate)\b", expects="FUNCTION"),
    Rule("FROM is missing", "write FROM before the source (or a comma between items)", r"[\w(]", expects="FROM"),
    Rule("{0} has no right side", "write the name of events after it, or a source in parentheses",
         r"(?:\)|(?i:within|publish)\b|$)", r"(?i:\b(union|next|latest\s+before|fold)\b\s*(?:\{[^{}]*\})?)",
         expects="FILTER"),
    Rule("a source is missing", "write the name of events, or a source in parentheses",
         r"(?:[,)}]|(?i:next|fold|union|within|publish)\b|$)", expects="FILTER"),
    Rule("LATEST without BEFORE", "write A LATEST BEFORE{condition} B", expects="BEFORE"),
    *_EVENT_PARTS,
    Rule("this is not an operator of events",
         "the operators between two sources are NEXT, LATEST BEFORE, FOLD and UNION", r"[\w(]", expects="NEXT"),
)  # fmt: skip

_NO_SUMS = "there is no arithmetic in a definition"
_COMPUTE_LATER = "write x := number(i/price) here, and compute in a query over the events: SELECT x * 2 AS y FROM E"

_DEFINITION_RULES = (
    Rule("names of attributes have no prefix", "write {1}, as in {1} := i/{0}:{1}", r":(\w[\w\-]*)", r"([\w\-]+)",
         expects="ASSIGN", whole=True),
    Rule("a path begins with a variable of its block", "write i/{0} where the block ends in ->i",
         r"(?:\.+/*|/+|(?=@))(@?[\w*][\w\-:]*)", r"(?::=|\b(?i:in)\b)", expects="FUNCTION"),
    Rule(_NO_SUMS, _COMPUTE_LATER, r"(?:[+*%/]|-(?!>)|div\b|mod\b)", expects="COMMA"),
    Rule(_NO_SUMS, _COMPUTE_LATER, r"-|\((?=[^;]*(?:[+*%]|\s-\s|\bdiv\b))", ":="),
    Rule(_NO_SUMS, _COMPUTE_LATER, r"[0-9]", "/"),
    Rule("DEFINE EVENT without a name", "write DEFINE EVENT and a name, FROM S//item->i (title := i/title)",
         before=r"(?i:\bevent)", expects="WORD"),
    Rule("FROM is missing", "write FROM and the path of the event, as in FROM S//item->i", expects="FROM"),
    Rule("the block of an event stands without parentheses", "write FROM S//item->i (title := i/title)",
         r"\(", r"(?i:\bfrom)"),
    Rule("an event is defined from one block", "PUBLISH the join, and define the event FROM its name/match->m",
         r"(?i:join|followed)\b", expects="LPAR"),
    Rule("this event has no attributes", "write them in parentheses after the block: (title := i/title)",
         r"$", expects="LPAR"),
    Rule("this event has no attributes", "write one, such as title := i/title", r"\)", r"\("),
    Rule("an attribute is missing", "write one after the comma, or remove it", r"\)", ","),
    Rule("{0} without its value", "write {0} := i/title, or {0} IN i/category for an event for each",
         r"", r"\b([\w\-]+)", expects="ASSIGN"),
    Rule(":= has no right side", "write a path on a variable, as in i/title", r"[,)]|$", ":="),
    Rule("there is no {0} in a definition", "write a query over the events: FROM name {0} ...",
         r"(?i:(publish|within|once|select|where)\b)"),
)  # fmt: skip


_WHERE = re.compile(r"(?i:\bwhere)(?!\w)")
_STRATEGY = re.compile(rf"\s*(?:(?:{'|'.join(STRATEGIES)})(?!\w)\s*(?:\([^()]*\)\s*)?)?")
_CLAUSE = re.compile(r"(?i:\b(?:errors|within|having|return|all|earliest|non|publish))(?![\w.])")

_PATTERN_RULES = (
    # Components.
    Rule("PATTERN SEQ without its components", "write them in parentheses: PATTERN SEQ(A a, B b)",
         before=r"(?i:\bseq)", expects="LPAR"),
    Rule("a component is missing", "write a stream and a variable, such as Post p", r"[,)]|$", expects="TILDE"),
    Rule("there is no {0} in front of a component", "write ~(A a) for no event of A", r"(!|(?i:not\b))",
         expects="TILDE"),
    Rule("{0} in front of a component", "write the name of events, and a variable", r"(?i:(filter|from|select)\b)",
         expects="TILDE"),
    Rule("{1}[] is of a component with +", "write {0}+ {1}[]", r"\[", r"(\w+)\s+(\w+)", expects="COMMA"),
    Rule("a component with + has a variable with brackets", "write {0}[]", r"[,)]", r"\+\s*(\w+)", expects="LSQB"),
    Rule("{0}* is not a component with a variable", "write {0}+ {1}[]: one event or more", r"(\w+)", r"(\w+)\s*\*"),
    # Clauses.
    Rule("BUDGET belongs to ERRORS", "write ERRORS <= 1 BUDGET 100", r"(?i:budget)\b"),
    Rule("ERRORS has an upper bound", "write ERRORS <= 1", before=r"(?i:\berrors)", expects="COMPARE"),
    Rule("there is no {0} in a pattern", "write RETURN a.x AS x after WITHIN", r"(?i:(select)\b)"),
    Rule("there is no {0} in a pattern", "write NON OVERLAPPING for one of those that overlap", r"(?i:(once)\b)"),
    Rule("there is no OR between patterns", "write two patterns that PUBLISH one name", r"(?i:or|union)\b",
         expects="WHERE"),
    Rule("RETURN returns nothing", "write what to return, such as a.x AS x, or leave RETURN out",
         r"(?i:publish|all|earliest|non)\b|$", r"(?i:\breturn)"),
    Rule("an item is missing", "write one after the comma, or remove it",
         r"(?i:publish|all|earliest|non)\b|$", ",", expects="FUNCTION"),
    Rule("HAVING without a condition", "write one, such as a.x > 5, or leave HAVING out",
         r"(?i:return|publish|all|earliest|non)\b|$", r"(?i:\bhaving)"),
    Rule("HAVING without a condition", "write one, such as a.x > 5, or leave HAVING out", r"\w",
         r"(?i:\bhaving\s+(?:return|all|earliest|non))"),
    # References.
    Rule("there is no such event of a variable", "write v[1], v[i], v[i-1], v[v.LEN] or v[]",
         r"(?:[\w.+\- ]+|\.\.[^\]]*)\]", expects="CURRENT"),
    Rule("{0}[...] without an attribute", "write {0}[1].x", before=r"(\w+)\[[^\[\]]*\]", expects="DOT", without="AND"),
    *_EVENT_SPELLINGS,
    *_EVENT_PARTS,
)  # fmt: skip


_JOIN = "JOIN {x = y, 1 h}"
_FILTER = 'S//item[./title = "x"]'

_CLAUSES = {
    "inner": ("every JOIN is an inner one", f"write {_JOIN}"),
    **{
        word: (f"there is no {word.upper()} JOIN: outputs have both sides", f"write {_JOIN}")
        for word in ("left", "right", "full", "outer")
    },
    "cross": ("there is no CROSS JOIN", f"write {_JOIN}"),
    "natural": ("there is no NATURAL JOIN", f"write {_JOIN}"),
    "on": ("there is no ON", f"write the condition and a window in braces after JOIN: {_JOIN}"),
    "using": ("there is no USING", f"write the condition and a window in braces after JOIN: {_JOIN}"),
    "then": ("there is no THEN", "write FOLLOWED BY {x = y, 1 h}"),
    "within": ("there is no WITHIN here", f"write the window after the condition of a join: {_JOIN}"),
    "group": ("there is no GROUP BY", texts.EVENT_ADVICE),
    "having": ("there is no HAVING", texts.EVENT_ADVICE),
    "order": ("there is no ORDER BY", "outputs come in the order of time"),
    "limit": ("there is no LIMIT", "a query is standing: it is answered for every document"),
    "union": ("there is no UNION", "PUBLISH two queries under one name"),
    "into": ("there is no INTO", "write PUBLISH and a name"),
    "return": ("there is no RETURN", "write SELECT in front of FROM"),
    "emit": ("there is no EMIT", "write PUBLISH and a name"),
}
"""Words of other languages after a query's input, with message and hint."""

_OPERATORS = {
    "in": ("there is no IN", './lang = "en" or ./lang = "de" says the same'),
    "is": ("there is no IS", "write ./title for one that is there, and not(./title) for one that is not"),
    "between": ("there is no BETWEEN", "write ./price >= 1 and ./price <= 2"),
    **{
        word: (f"there is no operator {word}", f"write {sign}")
        for word, sign in (("eq", "="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))
    },
    "within": ("there is no WITHIN", "write a comma in front of the window"),
}
"""Words of other languages between the operands of a condition, with message and hint."""

_STARTS = {
    "for": ("there is no FOR", "write FROM S//item->x"),
    "let": ("there is no LET", "bind a variable where it is found: S//item[./title->t]"),
    "create": ("there is no CREATE", "write the query, and PUBLISH and a name after it"),
    "insert": ("there is no INSERT", "write the query, and PUBLISH and a name after it"),
    "with": ("there is no WITH", "PUBLISH a query, and read its name as a stream"),
    "pattern": (
        "a PATTERN begins with SEQ",
        "write PATTERN SEQ(A a, B b) WITHIN 7 d; in any order: SEQ(SET(A a, B b))",
    ),
    "seq": ("SEQ belongs to a PATTERN", "write PATTERN SEQ(A a, B b) WITHIN 7 d"),
    "set": ("SET belongs to a PATTERN", "write PATTERN SEQ(SET(A a, B b)) WITHIN 7 d"),
    "subscribe": ("there is no SUBSCRIBE in a query", "write FROM S//item"),
}
"""Words of other languages at the beginning of a query, which the parser takes for a stream, with message and hint."""


_HABITS = (
    Rule("this is JSONPath", f"write {_FILTER}", r"(?=\$(?:\.|\[|$))", r"^\s*"),
    Rule("conditions of a join are not separated by commas", "write AND; only the window goes after a comma",
         r"(?=[^,{}]*?(?:[=<>]|\b(?:contains|starts-with|ends-with|matches)\s*\())", r",", "INF"),
    Rule("conditions are not separated by commas", "write and between two conditions", ",", "", "RSQB"),
    Rule("inputs are not separated by commas", f"write {_JOIN} between two inputs", ",", "", "FOLLOWED"),
    Rule("a window cannot follow a semicolon", "write a comma in front of the window", ";", "", "COMMA"),
    Rule("a filter is written in brackets", f"write {_FILTER}", r"\{", r"[\w*]\s*", "LSQB"),
    Rule("there is no operator ~", 'write matches(./title, "x")', r"~"),
    Rule("there is no operator :=", "write =", "=", ":"),
    Rule("names are written without backquotes", "remove them", "`"),
    Rule("comments are written otherwise", "write -- for the rest of the line, or (: and :)",
         r"(?s:(?=[^*]*\*/))", r"/\*"),
    Rule("not is a function", "write not(./title)", r"[./@\w]", r"(?i:\bnot)\s*", "RSQB"),
    Rule("a path begins with ./", "write ./{0}", r"(?=([\w\-]+))", r"(?<![.\w])\."),
    Rule("a function goes before what it is applied to", "write {0}(./title, ...)", r"\(",
         r"\.(contains|matches|starts-with|ends-with|lower-case|upper-case)\s*"),
    Rule("a function goes before what it is applied to", "write lower-case(x) or upper-case(x)", r"\(",
         r"\.(?:lower|upper|toLowerCase|toUpperCase)\s*"),
    Rule("the condition of a join goes in braces", f"write {_JOIN} in front of the second input, in place of ON",
         r"(?=[^{;]*\b(?i:on)\b)", r"(?i:\bjoin)", "LBRACE"),
    Rule("there are no aggregates of documents", texts.EVENT_ADVICE,
         r"\*|\w", r"(?i:\b(?:count|sum|max|min|avg))\s*\(\s*(?i:distinct)?"),
    Rule("a quote ends the string", "write it twice, or use the other kind of quotes",
         r"(?!(?i:from|select|declare|define|publish)\b)\w", r"""(?:'[^'\n\\]*'|"[^"\n\\]*")"""),
    Rule("all of a document is selected by its variable", "write {0}", r"\*", r"\b([\w\-]+)\."),
    Rule("DISTINCT is not needed", "remove it: an output is made once", r"\w", r"(?i:\bselect\s+distinct)\s+"),
    Rule("PUBLISH takes a name alone", "write PUBLISH {0}", r"(?=(?i:as)\s+([\w\-]+))", r"(?i:\bpublish)\s+"),
)  # fmt: skip


FAR = 200  # maximum number of characters examined before the position

_EVENT_RULES = {"event query": _QUERY_RULES, "definition": _DEFINITION_RULES, "pattern": _PATTERN_RULES}


def explain_syntax_error(text: str, start: int, lines: texts.Lines, kind: texts.SyntaxKind) -> texts.Problem:
    """Returns the problem of a statement that the grammar rejects. Its `text` begins at `start` in the script."""
    try:
        lark_of(kind).parse(text)
        raise AssertionError(f"Lark accepts what its tables reject: {text}")
    except UnexpectedToken as error:
        expected, ended, place = set(error.accepts), error.token.type == "$END", error.pos_in_stream
    except UnexpectedInput as error:
        expected, ended, place = set(getattr(error, "allowed", ())), False, error.pos_in_stream
    at = len(text) if ended else place or 0
    before, behind = text[:at], text[at:]
    problem = texts.bracket_problem(text, at, ended, expected, start, lines)
    if kind == "pattern":
        problem = problem or _where_without_braces(text, at)
    if kind != "xscl":
        problem = problem or _known_mistake(_EVENT_RULES[kind], before, behind, at, expected)
    if kind in ("xscl", "definition"):
        problem = (
            problem
            or foreign_mistake(before, behind, at, expected)
            or _known_mistake(_DOCUMENT_RULES, before, behind, at, expected)
            or misplaced_word(before, behind, at, expected)
        )
    problem = problem or _keyword_problem(behind, at, expected, kind) or _plain_problem(behind, at, expected, kind)
    return problem.moved(start)


def _known_mistake(
    rules: Iterable[Rule], before: str, behind: str, at: int, expected: set[str]
) -> texts.Problem | None:
    """Returns the problem of the first rule that matches the text `before` and `behind` the position, or None."""
    before = before[-FAR:]
    for rule in rules:
        if (rule.expects and expected.isdisjoint(rule.expects.split())) or rule.without in expected:
            continue
        after = re.match(rule.behind, behind)
        ahead = re.search(rf"(?:{rule.before})\s*$", before)
        if after and ahead:
            groups = [group for found in (ahead, after) for group in found.groups("")]
            start = at - len(before) + ahead.start() if rule.whole else at
            span = Span(start, max(at + len(after[0].rstrip()), start + 1))
            hint = texts.unit_hint(groups[0]) if rule.hint == texts.UNITS_HINT else _filled(rule.hint, groups)
            return texts.Problem(_filled(rule.message, groups), span, hint)
    return None


def _filled(text: str, groups: list[str]) -> str:
    return re.sub(r"\{([0-9])\}", lambda found: groups[int(found[1])], text)


def foreign_mistake(before: str, behind: str, at: int, expected: set[str]) -> texts.Problem | None:
    """Returns the problem of another language's words or signs between the texts `before` and `behind` a position."""
    before = before[-FAR:]
    word = _word(behind)
    meanings = _CLAUSES if "FOLLOWED" in expected else _OPERATORS if "AND" in expected else {}
    if known := meanings.get(word.lower()):
        return texts.Problem(known[0], Span(at, at + len(word)), known[1])
    start = re.search(r"(?:^|;)\s*([A-Za-z]+)\s+[\w$(*]*$", before) if "FOLLOWED" in expected or not expected else None
    start = start or re.search(r"(?:^|;)\s*([A-Za-z]+)\s*$", before)
    cut = at - len(before)
    if start and (not cut or start.start()) and (known := _STARTS.get(start[1].lower())):
        return texts.Problem(known[0], Span(cut + start.start(1), cut + start.end(1)), known[1])
    if habit := _known_mistake(_HABITS, before, behind, at, expected):
        return habit
    possible = [name for name in ("FROM", "FOLLOWED", "JOIN", "PUBLISH", "BY") if name in expected]
    close = get_close_matches(word.upper(), possible, n=1, cutoff=0.7)
    if close and word.upper() != close[0]:
        return texts.Problem(f"there is no {word}", Span(at, at + len(word)), f"did you mean {close[0]}?")
    return None


def _word(behind: str) -> str:
    found = re.match(r"([A-Za-z]+)(?![\w.\-])", behind)
    return found[1] if found else ""


def misplaced_word(before: str, behind: str, at: int, expected: set[str]) -> texts.Problem | None:
    """Returns the problem of a misspelt keyword that was parsed as a stream, or of a variable without an arrow."""
    word = _word(behind)
    first = re.search(r"(?:^|;)\s*([A-Za-z]+)\s*$", before)
    close = get_close_matches(first[1].upper(), ("SELECT", "FROM", "DECLARE"), n=1, cutoff=0.7) if first else []
    if first and close and first[1].upper() not in ("SELECT", "FROM", "DECLARE"):
        return texts.Problem(f"there is no {first[1]}", Span(first.start(1), first.end(1)), f"did you mean {close[0]}?")
    if word and "FOLLOWED" in expected:
        span = Span(at, at + len(word))
        if _BEGINNING.match(behind):
            return texts.Problem("a new query begins here", span, "write ; between two queries")
        hints = [f"to bind a variable, write ->{word} or AS {word}"] if "ARROW" in expected else []
        if re.search(r"\n\s*$", before):
            hints.append("to begin a query, write ; before it")
        return texts.Problem(f"unexpected {word}", span, "; ".join(hints)) if hints else None
    return None


_BEGINNING = re.compile(r"[\w.\-]+\s*//?\s*[\w*@]|[\w.\-]+\s*->")
"""Matches a query without FROM that does not begin with a variable's name."""


_ALIAS = (
    rf"(?!(?i:{'|'.join({*RESERVED, *texts.KEYWORDS})})\b)\w+\s*(?:$|[,)]|(?i:within|publish|next|fold|union|where)\b)"
)
_INPUT = re.compile(rf"(?:\b(?i:from|next|union|join)\b|\}}|^)\s*(\w+)\s*(->|\b(?i:as)\b|\b(?={_ALIAS}))\s*\w*")
_QUOTED = re.compile(r"""(?<!\w)(?:"[^"\n]*"|'[^'\n]*')""")


def variable_of_event(text: str, start: int, events: Container[str]) -> texts.Problem | None:
    """Returns the problem of a statement that binds a variable to one of the `events`, as queries do to documents."""
    text = _QUOTED.sub(lambda quoted: '"' * len(quoted[0]), text)
    for found in _INPUT.finditer(text):
        if (name := found[1]) in events:
            both = re.search(r"\b(?i:next|fold)\b", text)
            hint = f"write {name} alone, and " + ("x, $1.x or $2.x" if both else "x") + " for an attribute x"
            place = Span(start + found.start(2), start + found.end())
            return texts.Problem(f"{name} is an event, and has no variable", place, hint)
    return None


def _where_without_braces(text: str, at: int) -> texts.Problem | None:
    found = _WHERE.search(text, text.rfind("{", 0, at) + 1, at)
    strategy = _STRATEGY.match(text, found.end()) if found else None
    if found is None or strategy is None:
        return None
    begin = strategy.end()
    ending = _CLAUSE.search(text, begin)
    end = ending.start() if ending else len(text)
    condition = text[begin:end].rstrip()
    if "{" in condition or end < at:
        return None
    if not condition:
        return texts.Problem("WHERE without a condition", Span(*found.span()), "write it in braces: WHERE {a.x = b.x}")
    hint = "write WHERE {a.x = b.x}" if "\n" in condition else f"write {{{condition}}}"
    return texts.Problem("the conditions of WHERE go in braces", Span(begin, begin + len(condition)), hint)


def _keyword_problem(behind: str, at: int, expected: set[str], kind: texts.SyntaxKind) -> texts.Problem | None:
    of_documents = kind in ("xscl", "definition")
    found = re.match(r"[A-Za-z]+(?![\w.\-])" if of_documents else r"[A-Za-z]+(?!\w)", behind)
    if found is None or not expected & ({"WORD", "VAR"} if of_documents else {"NAME", "VARIABLE"}):
        return None
    keywords = texts.KEYWORDS if of_documents else RESERVED_IN_PATTERNS if "VARIABLE" in expected else RESERVED
    if found[0].lower() not in keywords:
        return None
    hint = f"choose another name (after {'/ or @' if of_documents else 'a dot'} any name will do)"
    return texts.Problem(f"{found[0]} is a keyword, and a name is needed here", Span(at, at + len(found[0])), hint)


def _plain_problem(behind: str, at: int, expected: set[str], kind: texts.SyntaxKind) -> texts.Problem:
    found = re.match(r"(?:[\w.]|-(?!>))+|\S", behind)
    message = f"unexpected {found[0]}" if found else "the query ends too early"
    signs = {one.name: one.pattern.value for one in lark_of(kind).terminals if isinstance(one.pattern, PatternStr)}
    words = sorted({_WORDS.get(name) or signs.get(name, name) for name in expected} - {"text"})
    hint = f"expected {', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else f"expected {''.join(words)}"
    return texts.Problem(message, Span(at, at + (len(found[0]) if found else 0)), hint)
