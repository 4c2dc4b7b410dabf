"""Recipes: sentences with fields, from which the text of a query is built. Field values become only string literals,
windows and numbers, so that no value can change the query around it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from string import Template
from types import MappingProxyType

from common.bounds import duration_us
from common.errors import InputError, InvalidValue
from xscl.parser import parse_script
from xscl.text import XsclErrors

MOST_PARTS, LONGEST_PART = 50, 500
"""Maximum number of words or feeds in a field, and the maximum length of one, in characters."""

LONGEST_FIELD = 4_000  # maximum length of a field's value, in characters

WEEK_US = 7 * 24 * 3600 * 1_000_000

Read = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class RecipeField:
    """A field. `read` converts the value into its piece of the query, and raises InvalidValue. `choices` are values and
    their labels. If a query finds nothing, `widens` has the kinds of funnel stages that another value may pass, and
    `advice` says which value."""

    name: str
    label: str
    read: Read
    default: str = ""
    hint: str = ""
    advice: str = ""
    widens: Sequence[str] = ()
    choices: Mapping[str, str] = field(default_factory=dict)
    size: int = 16


class BadRecipe(InputError, ValueError):
    """There is no such recipe or field, or values are invalid: `fields` has the mistake in each."""

    def __init__(self, message: str, fields: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.fields = dict(fields)

    def __reduce__(self) -> tuple[type[BadRecipe], tuple[str, dict[str, str]]]:
        return BadRecipe, (str(self), self.fields)


def literal(text: str) -> str:
    """Returns a string literal of XSCL.

    >>> literal('a "b" c')
    '"a ""b"" c"'
    """
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def _clean(text: str) -> str:
    """Returns a text with single spaces. Raises InvalidValue if it has characters that no document can have."""
    if len(text) > LONGEST_FIELD:
        raise InvalidValue(f"write at most {LONGEST_FIELD:,} characters")
    text = " ".join(text.split())
    if any(unicodedata.category(one) in ("Cc", "Cs") for one in text):
        raise InvalidValue("it has a control character, which feeds cannot contain: remove it")
    return text


def _parts(text: str) -> list[str]:
    parts = [part for one in text.replace("\n", ",").split(",") if (part := _clean(one))]
    if len(parts) > MOST_PARTS or any(len(one) > LONGEST_PART for one in parts):
        raise InvalidValue(f"write at most {MOST_PARTS}, of {LONGEST_PART} characters each, with commas between them")
    return parts


def _feed(part: str) -> str:
    if re.match(r"https?://", part):
        return f"./feed_url = {literal(part)}"
    if re.search(r"[./]", part) and " " not in part:
        return f"contains(./feed_url, {literal(part)}) or contains(./channel_url, {literal(part)})"
    return f"contains(lower-case(./feed_title), {literal(part.lower())})"


def _only(text: str) -> str:
    _clean(text.replace("\n", " "))
    return f"[{' or '.join(map(_feed, parts))}]" if (parts := _parts(text)) else ""


def _without(text: str) -> str:
    return f"[not({only[1:-1]})]" if (only := _only(text)) else ""


def _words(text: str) -> str:
    _clean(text.replace("\n", " "))
    parts = _parts(text)
    if not any(one.isalnum() for one in "".join(parts)):
        raise InvalidValue("write at least one word")
    if lacking := [one for one in parts if not any(map(str.isalnum, one))]:
        raise InvalidValue(f"{lacking[0]} is not a word: leave it out")
    return ", ".join(map(literal, parts))


def _author(text: str) -> str:
    if not (name := _clean(text)):
        raise InvalidValue("write the name of an author, as the feed spells it")
    if len(name) > LONGEST_PART:
        raise InvalidValue(f"write at most {LONGEST_PART} characters")
    return literal(name.lower())


_LENGTH = re.compile(r"([0-9]{1,6}) ?([a-z]+)", re.ASCII)


def _duration(text: str) -> str:
    text = _clean(text)
    if (found := _LENGTH.fullmatch(text)) is None or duration_us(text) == 0:
        raise InvalidValue("write a number and a unit, such as 12 h or 3 d")
    return f"{found[1]} {found[2]}"


def _count(least: int, most: int) -> Read:
    def read(text: str) -> str:
        text = _clean(text)
        if not (text.isascii() and text.isdecimal() and len(text) < 6 and least <= int(text) <= most):
            raise InvalidValue(f"write a number from {least} to {most}")
        return str(int(text))

    return read


def _name(text: str) -> str:
    text = _clean(text)
    try:
        if re.fullmatch(r"[^\W\d][\w.-]{0,99}", text) is None:
            raise InvalidValue(text)
        parse_script(f"FROM S//item->a PUBLISH {text}")
    except (InvalidValue, XsclErrors):
        raise InvalidValue(
            "write a name of letters, digits, - and _ that begins with a letter and is not a word of the language"
        ) from None
    return text


_EQUAL = ("equality", "together", "words", "residual", "pattern")


def _choice(name: str, label: str, pieces: Mapping[str, tuple[str, str]], *, advice: str) -> RecipeField:
    """A field with choices: `pieces` are labels and pieces by value."""

    def read(text: str) -> str:
        if text not in pieces:
            raise InvalidValue(f"choose one of: {', '.join(shown for shown, _ in pieces.values())}")
        return pieces[text][1]

    choices = {value: shown for value, (shown, _) in pieces.items()}
    return RecipeField(name, label, read, next(iter(pieces)), advice=advice, widens=_EQUAL, choices=choices)


_FEEDS_HINT = "Addresses of feeds, parts of them such as example.org, or parts of names, with commas between."


def _feeds(name: str = "feed", label: str = "Feeds", *, excluded: bool = False) -> RecipeField:
    hint = f"{_FEEDS_HINT} Empty: {'none is left out' if excluded else 'all'}."
    advice = "Leave fewer feeds out." if excluded else "Name more feeds, or leave it empty for all."
    return RecipeField(name, label, _without if excluded else _only, hint=hint, advice=advice, size=22)


def _within(
    default: str, *, label: str = "Within", advice: str = "Give it a longer time.", alone: bool = False
) -> RecipeField:
    kinds = ("alone",) if alone else ("window",)
    return RecipeField("within", label, _duration, default, "Such as 12 h or 3 d.", advice, kinds, size=6)


_SITES = RecipeField(
    "sites", "Number of sites", _count(2, 100), "2", "From 2 on.", "Ask for fewer sites.", ("found",), size=3
)
_WITHOUT = _feeds("without", "Feeds left out", excluded=True)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe. `sentence` and `text` have placeholders for the fields, like $within. The text also has `lasting`, the
    time for which a story is open, and `join`."""

    name: str
    title: str
    sentence: str
    text: str
    fields: tuple[RecipeField, ...]

    @property
    def all_fields(self) -> tuple[RecipeField, ...]:
        hint = "Another query of this name is replaced."
        return (*self.fields, RecipeField("name", "Name of the query", _name, self.name, hint))

    @property
    def sentence_parts(self) -> list[str | RecipeField]:
        fields = {one.name: one for one in self.fields}
        parts = enumerate(re.split(r"\$(\w+)", self.sentence))
        return [fields[part] if number % 2 else part for number, part in parts]

    @property
    def defaults(self) -> dict[str, str]:
        return {one.name: one.default for one in self.all_fields}

    def pieces(self, values: Mapping[str, str]) -> dict[str, str]:
        """Returns the piece of each field, with defaults for missing values. Raises BadRecipe."""
        found, wrong = dict[str, str](), dict[str, str]()
        for one in self.all_fields:
            try:
                found[one.name] = one.read(values.get(one.name, one.default))
            except InvalidValue as error:
                wrong[one.name] = str(error)
        if wrong:
            text = "; ".join(f"{name}: {message}" for name, message in wrong.items())
            raise BadRecipe(text, wrong)
        return found

    def script(self, values: Mapping[str, str]) -> str:
        """Returns the text of the query. Raises BadRecipe."""
        found = self.pieces(values)
        length = duration_us(found["within"]) if "within" in found else None
        found["lasting"] = found["within"] if length is not None and length > WEEK_US else "7 d"
        found["join"] = "JOIN UNORDERED" if found.get("feed", "") == found.get("other", "") else "JOIN"
        if "words" in found:
            places = found["where"].split()
            words = re.findall(r'"(?:[^"]|"")*"', found["words"])
            found["words"] = " or ".join(f"has-phrase(./{place}, {word})" for word in words for place in places)
        return Template(self.text).substitute(found) + "\n"

    def to_widen(self, values: Mapping[str, str], kind: str, part: str) -> list[RecipeField]:
        """Returns the fields that may let a query pass a stage of its funnel that nothing passed."""
        part, pieces = part.rstrip("…"), self.pieces(values)
        in_part = [(one, pieces[one.name]) for one in self.fields]
        named = [one for one, piece in in_part if (part and part in piece) or (len(piece) > 8 and piece in part)]
        return named or [one for one in self.fields if kind in one.widens]


_ANY_NUMBER, _CVE = r"[A-Z]{2,6}-[0-9]{4}-[0-9]{2,}", r"CVE-[0-9]{4}-[0-9]{4,}"

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        one.name: one
        for one in (
            Recipe(
                "same_headline",
                "The same headline on several sites",
                "The same $what on $sites sites within $within, leaving out $without.",
                """FROM S//item->a$without
  JOIN { $what
    AND host(a/channel_url) != host(b/channel_url), $within }
  S//item->b$without
PUBLISH $name STORIES LASTING $lasting HAVING count(DISTINCT ./channel_url) >= $sites""",
                (
                    _choice(
                        "what",
                        "What is the same",
                        {
                            "title": (
                                "headline",
                                "normalize-space(lower-case(a/title)) = normalize-space(lower-case(b/title))",
                            ),
                            "page": ("page", "canonical-url(a/item_url) = canonical-url(b/item_url)"),
                        },
                        advice="Few sites use the same words: a story in other words finds more.",
                    ),
                    _SITES,
                    _within("48 h"),
                    _WITHOUT,
                ),
            ),
            Recipe(
                "in_other_words",
                "A story, in the words of each site",
                "$sure on $sites sites within $within, leaving out $without.",
                """FROM S//item->one$without
  JOIN { similar(concat(one/title, " ", one/description), concat(other/title, " ", other/description), $sure), $within }
  S//item->other$without
PUBLISH $name STORIES LASTING $lasting HAVING count(DISTINCT ./channel_url) >= $sites""",
                (
                    _choice(
                        "sure",
                        "How alike",
                        {"0.12": ("Probably the same story", "0.12"), "0.17": ("Surely the same story", "0.17")},
                        advice="Take what is probably the same story.",
                    ),
                    RecipeField(
                        "sites", "Number of sites", _count(2, 100), "3", "From 2 on.", "Ask for fewer sites.",
                        ("found",), size=3,
                    ),
                    _within("3 d"),
                    _WITHOUT,
                ),
            ),
            Recipe(
                "my_words",
                "My words",
                "Whatever has one of the words $words in its $where, in $feed.",
                """SELECT a/title AS title, a/item_url AS page
FROM S//item->a[$words]$feed
PUBLISH $name""",
                (
                    RecipeField(
                        "words", "Words", _words, "barrier, outage",
                        "Words or phrases with commas between. Capitals do not count.",
                        "Other words, or fewer in a phrase: all words of a phrase must follow one another.",
                        ("pattern", "residual"), size=26,
                    ),
                    _choice(
                        "where",
                        "Where",
                        {
                            "title": ("headline", "title"),
                            "summary": ("headline or summary", "title description"),
                            "text": ("headline, summary or text", "title description content"),
                        },
                        advice="Look into the text, too.",
                    ),
                    _feeds(),
                ),
            ),
            Recipe(
                "by_author",
                "What an author writes",
                "Whatever $author writes, in $feed.",
                """SELECT a/title AS title, a/channel_url AS site
FROM S//item->a[normalize-space(lower-case(./author)) = $author]$feed
PUBLISH $name""",
                (
                    RecipeField(
                        "author", "Author", _author, "Mia Falk", "Capitals do not count.",
                        "Spell the name as the feed does: SQL shows the authors of all items.", ("pattern",),
                    ),
                    _feeds(),
                ),
            ),
            Recipe(
                "first_release",
                "The first release after an advisory",
                "The first release within $within after an advisory with $number, advisories from $feed, releases from"
                " $other.",
                """FROM S//item->advisory[matches(./title, "$number")][./category->project]$feed
  FOLLOWED BY { project = released, $within }
  S//item->release[contains(./item_url, "/releases/")][./category->released]$other
PUBLISH $name ONCE PER (project) WITHIN 30 d""",
                (
                    _within("7 d"),
                    _choice(
                        "number",
                        "Numbers",
                        {"any": ("any number", _ANY_NUMBER), "cve": ("the number of a CVE", _CVE)},
                        advice="Take advisories with any number.",
                    ),
                    _feeds("feed", "Feeds of advisories"),
                    _feeds("other", "Feeds of releases"),
                ),
            ),
            Recipe(
                "retitled",
                "A page that came back with another headline",
                "A page of $feed that came back with another headline within $within.",
                """SELECT t1 AS was, t2 AS became
FROM S//item[./item_url->u1][./title->t1]$feed
  FOLLOWED BY { u1 = u2 AND t1 != t2, $within }
  S//item[./item_url->u2][./title->t2]
PUBLISH $name""",
                (_feeds(), _within("14 d")),
            ),
            Recipe(
                "silent",
                "A feed that fell silent",
                "A feed of $feed that had nothing new for $within.",
                """FROM S//item->last[./feed_url->f1]$feed
  NOT FOLLOWED BY { f1 = f2, $within }
  S//item->next[./feed_url->f2]
PUBLISH $name""",
                (
                    _feeds(),
                    _within("6 d", label="For", advice="Something always came in time: give it less.", alone=True),
                ),
            ),
            Recipe(
                "who_was_first",
                "Who was first",
                "Who told a story first that another site took up within $within, leaving out $without.",
                """FROM S//item->one$without
  JOIN { similar(concat(one/title, " ", one/description), concat(other/title, " ", other/description), 0.12)
    AND host(one/channel_url) != host(other/channel_url), $within }
  S//item->other$without
PUBLISH ${name}_retold HIDDEN STORIES LASTING $lasting TELL opened;

SELECT s/first/item/feed_title AS first, s/latest/item/feed_title AS then, s/first/item/title AS headline
FROM ${name}_retold/story->s
PUBLISH $name""",
                (_within("3 d"), _WITHOUT),
            ),
            Recipe(
                "named",
                "An advisory that two kinds of feeds name",
                "$number that both $feed and $other name within $within.",
                """SELECT one/title AS one, other/title AS other
FROM S//item->one$feed
  $join { extract(concat(one/title, " ", one/content), "$number")
      = extract(concat(other/title, " ", other/content), "$number")
    AND host(one/channel_url) != host(other/channel_url), $within }
  S//item->other$other
PUBLISH $name""",
                (
                    _choice(
                        "number",
                        "Number",
                        {"any": ("The number of any advisory", _ANY_NUMBER), "cve": ("A CVE", _CVE)},
                        advice="Take the numbers of all advisories.",
                    ),
                    _feeds("feed", "Feeds of one kind"),
                    _feeds("other", "Feeds of the other kind"),
                    _within("7 d"),
                ),
            ),
        )
    }
)  # fmt: skip
"""The recipes of the page that builds queries; docs/recipes.md shows what each finds in `examples/feeds`."""


def recipe_named(name: str) -> Recipe:
    """Raises BadRecipe."""
    if (found := RECIPES.get(name)) is None:
        raise BadRecipe(f"no recipe is named {name[:100]!r}; there are {', '.join(RECIPES)}")
    return found


def fitting_recipe(given: Mapping[str, str]) -> Recipe | None:
    """Returns the recipe for what is known of an item: its author, words, or feed."""
    order = (("author", "by_author"), ("words", "my_words"), ("feed", "silent"))
    return next((RECIPES[name] for key, name in order if given.get(key)), None)
