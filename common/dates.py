"""The one reader of dates: those of feeds, `--time-xpath` and the function `date(...)` of queries.

It reads ISO 8601, RFC 3339, RFC 822 and what feeds write instead, or nothing: a date that can be read in two ways, has
an unknown zone, or ends in other words is none.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

MOST_CHARACTERS = 80  # maximum length of a text that is a date, stripped

_MONTHS = tuple(
    frozenset(names.split())
    for names in (
        "january januar januari janvier gennaio enero janeiro января ιανουαριου",
        "february februar februari fevrier febbraio febrero fevereiro февраля φεβρουαριου",
        "march marz maerz mrz maart mrt mars marzo marco marcius марта μαρτιου",
        "april avril aprile abril aprilis апреля απριλιου",
        "may mai maj mei maggio mayo maio majus мая μαιου",
        "june juni juin giugno junio junho junius июня ιουνιου",
        "july juli juillet luglio julio julho julius июля ιουλιου",
        "august augusti augustus aout agosto augusztus августа αυγουστου",
        "september septembre settembre septiembre setembro szeptember сентября σεπτεμβριου",
        "october oktober octobre ottobre octubre outubro октября οκτωβριου",
        "november novembre noviembre novembro ноября νοεμβριου",
        "december dezember desember decembre dicembre diciembre dezembro декабря δεκεμβριου",
    )
)
"""The names of each month, without accents. The first three letters and more stand for a name."""

_DAYS = (
    " monday tuesday wednesday thursday friday saturday sunday montag dienstag mittwoch donnerstag freitag samstag"
    " sonnabend sonntag lundi mardi mercredi jeudi vendredi samedi dimanche lunedi martedi mercoledi giovedi venerdi"
    " sabato domenica lunes martes miercoles jueves viernes sabado domingo segunda terca quarta quinta sexta maandag"
    " dinsdag woensdag donderdag vrijdag zaterdag zondag mandag tirsdag tisdag onsdag torsdag fredag lordag lørdag"
    " sondag søndag hetfo kedd szerda csutortok pentek szombat vasarnap понедельник вторник среда четверг пятница"
    " суббота воскресенье пн чт пт сб вс δευτερα τριτη τεταρτη πεμπτη παρασκευη σαββατο κυριακη"
)
"""The names of days. The first two letters and more stand for a name."""

_ZONES = {
    name: minutes
    for minutes, names in {
        0: "z ut utc gmt wet", 60: "cet met mez bst west wat", 120: "cest mest mesz eet sast cat",
        180: "eest msk eat idt trt", 240: "msd", 300: "pkt", 330: "ist", 345: "npt", 420: "wib ict",
        480: "hkt sgt pht awst wita", 540: "jst kst wit", 570: "acst", 600: "aest", 630: "acdt", 660: "aedt",
        720: "nzst", 780: "nzdt", -150: "ndt", -180: "adt brt art", -210: "nst", -240: "ast edt", -300: "est cdt",
        -360: "cst mdt", -420: "mst pdt", -480: "pst akdt", -540: "akst", -600: "hst",
    }.items()
    for name in names.split()
}  # fmt: skip
"""Minutes ahead of UTC. Of names with several meanings, those of RFC 822, else the one that feeds mean."""

_PLACES = {"et": "America/New_York", "ct": "America/Chicago", "mt": "America/Denver", "pt": "America/Los_Angeles"}

_LATER = {"a": False, "p": True, "오전": False, "오후": True, "午前": False, "午後": True, "上午": False, "下午": True}
"""Whether marks of a clock of 12 hours mean the second half of the day."""

_WORD = r"[^\W\d_]"
_NUMBER = r"[0-9]{1,2}"
_DAY = rf"(?P<day>{_NUMBER})(?:st|nd|rd|th|er|º|\.)?"
_MONTH = rf"(?:de\s+)?(?P<name>{_WORD}{{3,12}})\.?(?:\s+de(?=\s))?"
_YEAR = r"(?P<year>[0-9]{4})"
_GAP = r"(?:\s*[-/.,]\s*|\s*)"
_CLOCK = rf"""
    (?:(?P<before>오전|오후|午前|午後|上午|下午)\s*)?
    (?P<hour>{_NUMBER})(?::(?P<minute>[0-9]{{2}})(?::(?P<second>{_NUMBER})(?:[.,](?P<fraction>[0-9]+))?)?)?
    (?:\s*(?P<half>[ap])\.?\s?m(?!{_WORD})\.?)?
"""
_ZONE = r"""
    (?:\s*(?:
        (?:(?:utc|gmt)\s*(?=[-+]))?(?P<offset>[-+][0-9]{2}(?::?[0-9]{2})?)(?:\s+[a-z]{3,5}(?=\s|$))?
      | (?:utc|gmt)(?P<hours>[-+][0-9](?::[0-9]{2})?)
      | (?P<place>[a-z]+(?:/[a-z0-9_+-]+)+)
      | (?P<zone>[a-z]{1,5})
    ))?
"""
_BETWEEN = r"""
    (?:t|\s*[,@|]\s*|\s+(?:(?:-|–|at)\s+)?|(?<=[日일])
    |(?<=[0-9]{4})(?=[0-9]{2}:)|(?<=[-/.][0-9]{2}[-/.][0-9]{2})(?=[0-9]{2}:))
"""
_END = rf"(?:{_BETWEEN}{_CLOCK}{_ZONE})?(?P<comment>\s*\([^()]*\)|\[[a-z/_]+\])?"
_FIRST = rf"(?:(?P<weekday>{_WORD}{{2,14}})(?:-feira)?\.?(?:\s*,\s*|\s+))?"
_FORMS = tuple(
    re.compile(f"{_FIRST}{form}", re.VERBOSE | re.IGNORECASE)
    for form in (
        rf"{_YEAR}(?P<mark>[-/.])(?P<month>{_NUMBER})(?P=mark)(?P<day>{_NUMBER}){_END}",
        rf"{_DAY}{_GAP}{_MONTH}{_GAP}(?P<year>[0-9]{{4}}|[0-9]{{2}}(?![0-9])){_END}",
        rf"{_MONTH}{_GAP}{_DAY}(?:\s*,\s*|\s+|-){_YEAR}{_END}",
        rf"{_MONTH}\s+{_DAY},?\s+{_CLOCK}{_ZONE}\s+{_YEAR}",
        rf"{_YEAR}[-/.\s]\s*{_MONTH}[-/.\s]\s*{_DAY}{_END}",
        rf"{_YEAR}\s*[年년]\s*(?P<month>{_NUMBER})\s*[月월]\s*(?P<day>{_NUMBER})\s*[日일]{_END}",
        rf"(?P<one>{_NUMBER})(?P<mark>[-/.])(?P<other>{_NUMBER})(?P=mark){_YEAR}{_END}",
    )
)
_COMPACT = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})T([0-9]{2})([0-9]{2})([0-9]{2})")
_SECONDS = re.compile(r"([0-9]{10})(?:\.([0-9]+))?")
_DAY_AND_HOUR = re.compile("(?:19[7-9][0-9]|20[0-9]{2})(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])(?:[01][0-9]|2[0-3])")
"""Digits that look like a day and its hour; as seconds they are times of 2032 and later."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
SECOND, MINUTE, HOUR, DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000  # in microseconds


def parse_timestamp(text: str) -> int | None:
    """The time of a text in microseconds since 1970; None if it tells none of the years 1 to 9999 of UTC.

    A date alone is its midnight. Without a zone it is UTC. A leap second is the first second of the next minute.
    Fractions are cut after six digits. Ten digits are seconds since 1970, unless they look like a day and its hour.

    >>> parse_timestamp("2026-07-16") == parse_timestamp("Thu, 16 Jul 2026 02:00:00 +0200") == 1784160000000000
    True
    """
    text = text.strip()
    return _parsed(text) if len(text) <= MOST_CHARACTERS else None


def iso_utc(microseconds: int) -> str:
    """ISO-8601 with `Z`, and a fraction only if it is not zero."""
    return (EPOCH + microseconds * MICROSECOND).isoformat().removesuffix("+00:00") + "Z"


@lru_cache(maxsize=4096)
def _parsed(text: str) -> int | None:
    if _DAY_AND_HOUR.fullmatch(text):
        return None
    if (seconds := _SECONDS.fullmatch(text)) is not None:
        return int(seconds[1]) * 1_000_000 + _microseconds(seconds[2])
    text = _COMPACT.sub(r"\1-\2-\3T\4:\5:\6", text, count=1)
    if not text.isascii():
        letters = (char for char in unicodedata.normalize("NFD", text) if not unicodedata.combining(char))
        text = unicodedata.normalize("NFC", "".join(letters))
    for form in _FORMS:
        if (found := form.fullmatch(text)) is not None:
            try:
                return _time(found.groupdict())
            except (ValueError, OverflowError):
                return None
    return None


def _time(parts: dict[str, str | None]) -> int:
    """Raises ValueError or OverflowError if the parts are not a date."""
    day_name, year = parts["weekday"], parts["year"] or ""
    if day_name is not None and f" {day_name.lower()}" not in _DAYS:
        raise ValueError(day_name)
    if len(year) == 2:
        year = f"{'20' if year < '50' else '19'}{year}"  # as RFC 5322 says
    month, day = _month_and_day(parts)
    date = datetime(int(year), month, day)
    clock = timedelta()
    if parts["hour"] is not None:
        clock = _clock(parts)
        # A comment may repeat the zone. If only the comment names one, the time is ambiguous.
        has_zone = any(parts[name] for name in ("offset", "hours", "place", "zone"))
        comment = (parts.get("comment") or "").strip().strip("()[]").lower()
        if comment and not has_zone and comment not in ("z", "ut", "utc", "gmt"):
            raise ValueError(comment)
    zone = _zone(parts)
    if isinstance(zone, tzinfo):
        zone = _offset_at(date + clock, zone)
    return (date.replace(tzinfo=UTC) + clock - timedelta(minutes=zone) - EPOCH) // MICROSECOND


def _month_and_day(parts: dict[str, str | None]) -> tuple[int, int]:
    if parts.get("one") is not None:
        one, other = int(parts["one"] or 0), int(parts["other"] or 0)
        if parts["mark"] == ".":
            return other, one
        if one <= 12 and other <= 12 and one != other:
            raise ValueError("either may be the month")
        return min(one, other), max(one, other)
    day = int(parts["day"] or 0)
    if parts.get("month") is not None:
        return int(parts["month"] or 0), day
    return _month((parts["name"] or "").lower()), day


@lru_cache(maxsize=256)
def _month(name: str) -> int:
    (found,) = (number for number, names in enumerate(_MONTHS, 1) if any(full.startswith(name) for full in names))
    return found


def _clock(parts: dict[str, str | None]) -> timedelta:
    half = parts["half"] or parts["before"]
    if parts["minute"] is None and half is None:
        raise ValueError("an hour alone")
    hour, minute, second = (int(parts[name] or 0) for name in ("hour", "minute", "second"))
    microsecond = _microseconds(parts["fraction"])
    if half is not None:
        later = _LATER[half.lower()]  # some write `14:30 PM`, which is clear, and `0:30 AM`
        if (hour > 12 and not later) or hour > 23 or (hour == 0 and later):
            raise ValueError("no hour of that half of the day")
        hour = hour if hour > 12 else hour % 12 + 12 * later
    last_midnight = hour == 24 and minute == second == microsecond == 0
    if minute > 59 or second > 60 or (hour > 23 and not last_midnight):
        raise ValueError("no time of day")
    return timedelta(hours=hour, minutes=minute, seconds=second, microseconds=microsecond)


def _microseconds(fraction: str | None) -> int:
    return int((fraction or "")[:6].ljust(6, "0"))


def _zone(parts: dict[str, str | None]) -> int | tzinfo:
    """Minutes ahead of UTC, or the zone of a place."""
    if offset := parts["offset"] or parts["hours"]:
        digits = offset[1:].replace(":", "")
        hours, minutes = (int(digits[:-2]), int(digits[-2:])) if len(digits) > 2 else (int(digits), 0)
        if hours > 23 or minutes > 59:
            raise ValueError(offset)
        return (60 * hours + minutes) * (-1 if offset[0] == "-" else 1)
    name = (parts["zone"] or "z").lower()
    if parts["place"] is None and name not in _PLACES:
        if name not in _ZONES:
            raise ValueError(name)
        return _ZONES[name]
    # Imported here because few dates need it, and the program must start fast.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(parts["place"] or _PLACES[name])
    except (ZoneInfoNotFoundError, OSError):
        raise ValueError(parts["place"]) from None


def _offset_at(local: datetime, zone: tzinfo) -> int:
    """Minutes ahead of UTC. A local time that a change of clocks repeats or leaves out is none."""
    (offset,) = {local.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1)}
    if offset is None or offset % timedelta(minutes=1):
        raise ValueError("no whole minutes")
    return offset // timedelta(minutes=1)
