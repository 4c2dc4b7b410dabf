"""The times of texts for the oracle, read from left to right, with all ways to go on tried.

It shares nothing with `common.dates`, which is made of regular expressions.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from string import digits

from dateutil import tz

_NAMES_OF_DAYS = """
monday montag maandag mandag lundi lunedi lunes δευτερα понедельник пн hetfo segunda
tuesday dienstag mardi martedi martes dinsdag tirsdag tisdag τριτη вторник kedd terca
wednesday mittwoch mercredi mercoledi miercoles woensdag onsdag τεταρτη среда szerda quarta
thursday donnerstag jeudi giovedi jueves donderdag torsdag πεμπτη четверг чт csutortok quinta
friday freitag vendredi venerdi viernes vrijdag fredag παρασκευη пятница пт pentek sexta
saturday samstag sonnabend samedi sabato sabado zaterdag lordag lørdag σαββατο суббота сб szombat
sunday sonntag dimanche domenica domingo zondag sondag søndag κυριακη воскресенье вс vasarnap
"""
_DAYS = _NAMES_OF_DAYS.split()
_MONTHS = [
    line.split()
    for line in """
        january januari janvier gennaio enero janeiro января ιανουαριου
        february februari fevrier febbraio febrero fevereiro февраля φεβρουαριου
        march marz maerz mrz maart mrt mars marzo marco marcius марта μαρτιου
        april avril aprile abril aprilis апреля απριλιου
        may mai maj mei maggio mayo maio majus мая μαιου
        june juni juin giugno junio junho junius июня ιουνιου
        july juli juillet luglio julio julho julius июля ιουλιου
        august augusti augustus aout agosto augusztus августа αυγουστου
        september septembre settembre septiembre setembro szeptember сентября σεπτεμβριου
        october oktober octobre ottobre octubre outubro октября οκτωβριου
        november novembre noviembre novembro ноября νοεμβριου
        december dezember desember decembre dicembre diciembre dezembro декабря δεκεμβριου
    """.strip().splitlines()
]
_HOURS = """
ut 0 utc 0 gmt 0 z 0 wet 0 cet 1 met 1 mez 1 bst 1 west 1 wat 1 cest 2 mest 2 mesz 2 eet 2 sast 2 cat 2 eest 3 msk 3
eat 3 idt 3 trt 3 msd 4 pkt 5 ist 5.5 npt 5.75 wib 7 ict 7 hkt 8 sgt 8 pht 8 awst 8 wita 8 jst 9 kst 9 wit 9 acst 9.5
aest 10 acdt 10.5 aedt 11 nzst 12 nzdt 13 ndt -2.5 adt -3 brt -3 art -3 nst -3.5 ast -4 edt -4 est -5 cdt -5 cst -6
mdt -6 mst -7 pdt -7 pst -8 akdt -8 akst -9 hst -10
"""
_HOURS_AHEAD = _HOURS.split()
_ZONES = dict(zip(_HOURS_AHEAD[::2], map(float, _HOURS_AHEAD[1::2]), strict=True))
_AMERICAN = {"et": "New_York", "ct": "Chicago", "mt": "Denver", "pt": "Los_Angeles"}
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND

Zone = float | str
"""Hours ahead of UTC, or a place."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The value of `date(...)`: microseconds since 1970 in UTC; None if the text says no time."""

    at: int | None

    def text(self) -> str:
        if self.at is None:
            return ""
        days, rest = divmod(self.at, _DAY)
        seconds, micro = divmod(rest, _SECOND)
        fraction = f".{micro:06}" if micro else ""
        day = date.fromordinal(date(1970, 1, 1).toordinal() + days).isoformat()
        return f"{day}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}Z"


def moment(text: str) -> Moment:
    text = text.strip()
    if len(text) > 80:
        return Moment(None)
    whole, point, fraction = text.partition(".")
    if len(text) == 10 and _all_digits(text) and 1970 <= int(text[:4]) < 2100 and _is_day_and_hour(text[4:]):
        return Moment(None)
    if len(whole) == 10 and _all_digits(whole) and (not point or _all_digits(fraction)):
        return Moment(int(whole) * _SECOND + _micro(fraction))
    if text[8:9] == "T" and _all_digits(text[:8] + text[9:15]) and len(text) > 14:
        text = f"{text[:4]}-{text[4:6]}-{text[6:8]}T{text[9:11]}:{text[11:13]}:{text[13:]}"
    found = {at for at in _read(_folded(text)) if at is not None}
    first, last = (date(year, 1, 1).toordinal() - date(1970, 1, 1).toordinal() for year in (1, 9999))
    at = found.pop() if len(found) == 1 else None
    return Moment(at if at is not None and first * _DAY <= at < (last + 365) * _DAY else None)


def _is_day_and_hour(text: str) -> bool:
    month, day, hour = (int(text[at : at + 2]) for at in (0, 2, 4))
    return 1 <= month <= 12 and 1 <= day <= 31 and hour < 24


def _folded(text: str) -> str:
    apart = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFC", "".join(one for one in apart if unicodedata.combining(one) == 0))


def _all_digits(text: str) -> bool:
    return text != "" and set(text) <= set(digits)


def _micro(fraction: str) -> int:
    return int((fraction + "000000")[:6])


def _read(text: str) -> Iterator[int | None]:
    for start in _weekday(text):
        for day, rest in _day(text[start:]):
            if not rest or _is_remark(rest):
                yield _at(day, 0, 0.0)
            read = text[start : len(text) - len(rest)]
            whole = _all_digits(read[-4:]) or (
                set(read[-6:-5] + read[-3:-2]) <= set("-/.") and _all_digits(read[-5:-3] + read[-2:])
            )
            if rest[:1] in tuple(digits) and not (whole or read[-1:] in ("日", "일")):
                continue
            for clock in _between(rest):
                for time, after in _clock(clock):
                    for zone, left in _zone(after):
                        if not left or _is_remark(left):
                            yield _at(day, time, zone)
        yield from _unix(text[start:])


def _unix(text: str) -> Iterator[int | None]:
    """`Jul 16 08:30:00 UTC 2026`"""
    words = text.split()
    if len(words) not in (4, 5) or not _all_digits(words[-1]) or len(words[-1]) != 4:
        return
    for day, rest in _day(f"{words[0]} {words[1]} {words[-1]}"):
        if not rest and words[1].strip(",")[:1] in digits:
            for time, after in _clock(" ".join(words[2:-1])):
                for zone, left in _zone(after):
                    if not left:
                        yield _at(day, time, zone)


def _weekday(text: str) -> Iterator[int]:
    """The places behind a day of the week, and 0."""
    yield 0
    end = _letters(text)
    if end > 1 and any(name.startswith(text[:end].lower()) for name in _DAYS):
        if text[end:].startswith("-feira"):
            end += len("-feira")
        end += text[end : end + 1] == "."
        rest = text[end:].lstrip()
        if rest.startswith(","):
            rest = rest[1:].lstrip()
        elif len(rest) == len(text) - end:
            return
        yield len(text) - len(rest)


def _letters(text: str) -> int:
    return next((at for at, char in enumerate(text) if not char.isalpha()), len(text))


def _numbers(text: str, *lengths: int) -> Iterator[tuple[int, str]]:
    for length in lengths:
        if _all_digits(text[:length]) and len(text) >= length:
            yield int(text[:length]), text[length:]


_Day = tuple[int, int, int]


def _day(text: str) -> Iterator[tuple[_Day, str]]:
    for year, rest in _numbers(text, 4):
        if rest[:1] in tuple("-/."):
            for month, more in _numbers(rest[1:], 2, 1):
                if more[:1] == rest[:1]:
                    for day, end in _numbers(more[1:], 2, 1):
                        yield (year, month, day), end
        if rest[:1] in tuple("-/.") or rest[:1].isspace():
            for month, more in _month(rest[1:].lstrip()):
                if more[:1] in tuple("-/.") or more[:1].isspace():
                    for day, end in _of_month(more[1:].lstrip()):
                        yield (year, month, day), end
        for marks in ("年月日", "년월일"):
            words = rest.lstrip().replace(" ", "")
            if rest.lstrip()[:1] == marks[0] and marks[1] in words and marks[2] in words:
                month_text, more = rest.lstrip()[1:].split(marks[1], 1)
                day_text, end = more.split(marks[2], 1)
                if all(_all_digits(one.strip()) and len(one.strip()) < 3 for one in (month_text, day_text)):
                    yield (year, int(month_text), int(day_text)), end or ""
    for day, rest in _of_month(text):
        for gap in _gap(rest):
            for month, more in _month(gap):
                for after in _gap(more):
                    for year, end in _numbers(after, 4):
                        yield (year, month, day), end
                    for year, end in _numbers(after, 2):
                        if end[:1] not in tuple(digits):
                            yield (year + (2000 if year < 50 else 1900), month, day), end
    for month, rest in _month(text):
        for gap in _gap(rest):
            for day, more in _of_month(gap):
                after = more.lstrip()
                after = after[1:].lstrip() if after[:1] == "," else after if after != more else more[1:]
                if after != more and (more[:1] in ("-", ",") or more[:1].isspace()):
                    for year, end in _numbers(after, 4):
                        yield (year, month, day), end
    for one, rest in _numbers(text, 2, 1):
        if rest[:1] in tuple("-/."):
            for other, more in _numbers(rest[1:], 2, 1):
                for year, end in _numbers(more[1:], 4):
                    if more[:1] == rest[:1]:
                        if rest[0] == "." or one > 12 or one == other:
                            yield (year, other, one), end
                        elif other > 12:
                            yield (year, one, other), end


def _of_month(text: str) -> Iterator[tuple[int, str]]:
    for day, rest in _numbers(text, 2, 1):
        yield day, rest
        for mark in ("st", "nd", "rd", "th", "er", "º", "."):
            if rest.lower().startswith(mark):
                yield day, rest[len(mark) :]


def _month(text: str) -> Iterator[tuple[int, str]]:
    if text[:3].lower() == "de ":
        text = text[3:].lstrip()
    end = _letters(text)
    name = text[:end].lower()
    found = [at for at, names in enumerate(_MONTHS, 1) if any(one.startswith(name) for one in names)]
    if 3 <= end <= 12 and len(found) == 1:
        rest = text[end:].removeprefix(".")
        yield found[0], rest
        if rest.lstrip().lower().startswith("de ") and rest[:1].isspace():
            yield found[0], rest.lstrip()[2:]


def _gap(text: str) -> Iterator[str]:
    yield text.lstrip()
    if text.lstrip()[:1] in tuple("-/.,"):
        yield text.lstrip()[1:].lstrip()


def _between(text: str) -> Iterator[str]:
    rest = text.lstrip()
    if text[:1] in ("T", "t"):
        yield text[1:]
    if rest[:1] in tuple(",@|"):
        yield rest[1:].lstrip()
    if rest != text:
        yield rest
        for mark in ("-", "–", "at"):
            if rest.lower().startswith(mark) and rest[len(mark) :][:1].isspace():
                yield rest[len(mark) :].lstrip()
    if rest == text and _all_digits(text[:2]) and text[2:3] == ":":
        yield text


def _clock(text: str) -> Iterator[tuple[int, str]]:
    before = next((mark for mark in ("오전", "오후", "午前", "午後", "上午", "下午") if text.startswith(mark)), "")
    if before:
        text = text[2:].lstrip()
    for hour, rest in _numbers(text, 2, 1):
        if rest[:1] != ":":
            yield from _with_half(hour, [], 0, rest, before)
            continue
        for minute, more in _numbers(rest[1:], 2):
            if more[:1] != ":":
                yield from _with_half(hour, [minute], 0, more, before)
                continue
            for second, after in _numbers(more[1:], 2, 1):
                fraction = ""
                if after[:1] in (".", ",") and after[1:2] in tuple(digits):
                    count = next((at for at, one in enumerate(after[1:]) if one not in digits), len(after) - 1)
                    fraction, after = after[1 : count + 1], after[count + 1 :]
                yield from _with_half(hour, [minute, second], _micro(fraction), after, before)


def _with_half(hour: int, rest: list[int], micro: int, text: str, before: str) -> Iterator[tuple[int, str]]:
    half, after = {"오": before[1:] == "후", "午": before[1:] == "後", "上": False, "下": True}.get(before[:1]), text
    mark = text.lstrip().lower()
    for spelling in ("am", "pm", "a.m.", "p.m.", "a.m", "p.m", "a m", "p m"):
        if mark.startswith(spelling) and not mark[len(spelling) :][:1].isalpha():
            half, after = spelling[0] == "p", text.lstrip()[len(spelling) :]
            if not spelling.endswith(".") and after[:1] == ".":
                after = after[1:]
            break
    minute, second = (*rest, 0, 0)[:2]
    if half is None and not rest:
        return
    if half is not None:
        if (hour > 12 and not half) or hour > 23 or (hour == 0 and half):
            return
        hour = {0: 0, 12: 12 if half else 0}.get(hour, hour + 12 if half and hour < 12 else hour)
    at = (hour * 3600 + minute * 60 + second) * _SECOND + micro
    if minute > 59 or second > 60 or hour > 24 or (hour == 24 and minute + second + micro):
        return
    yield at, after


def _zone(text: str) -> Iterator[tuple[Zone, str]]:
    yield 0.0, text
    rest = text.lstrip()
    end = _letters(rest)
    name = rest[:end].lower()
    after = rest[end:].lstrip() if name in ("utc", "gmt") else rest
    if after[:1] in ("+", "-"):
        sign = 1 if after[0] == "+" else -1
        for hours, more in _numbers(after[1:], 2):
            for minutes, left in ((0, more), *_numbers(more.removeprefix(":"), 2)):
                if hours < 24 and minutes < 60:
                    ahead = sign * (hours + minutes / 60)
                    yield ahead, left
                    word = left.lstrip()[: _letters(left.lstrip())]
                    if left[:1].isspace() and 3 <= len(word) <= 5 and word.isascii():
                        yield ahead, left.lstrip()[len(word) :]
        if name in ("utc", "gmt") and rest[end : end + 1] == after[:1]:
            for hours, more in _numbers(after[1:], 1):
                yield sign * hours, more
                for minutes, left in _numbers(more[1:], 2) if more[:1] == ":" else ():
                    yield sign * (hours + minutes / 60), left
    elif name in _ZONES:
        yield _ZONES[name], rest[end:]
    elif name in _AMERICAN:
        yield f"America/{_AMERICAN[name]}", rest[end:]
    elif rest[end : end + 1] == "/":
        place = rest.split("[")[0].split("(")[0].strip()
        yield place, rest[len(place) :]


def _is_remark(text: str) -> bool:
    inside = text.lstrip()
    if inside[:1] == "(" and inside[-1:] == ")":
        return not set("()") & set(inside[1:-1])
    return text[:1] == "[" and text[-1:] == "]" and text[1:-1].replace("/", "").replace("_", "").isalpha()


def _at(day: _Day, time: int, zone: Zone) -> int | None:
    try:
        days = date(*day).toordinal() - date(1970, 1, 1).toordinal()
        if isinstance(zone, float | int):
            return days * _DAY + time - round(zone * 60) * 60 * _SECOND
        place = tz.gettz(zone)
        if place is None:
            return None
        local = datetime(*day, *divmod(time // _SECOND // 60, 60))
    except ValueError:
        return None
    if tz.datetime_ambiguous(local, place) or not tz.datetime_exists(local, place):
        return None
    offset = place.utcoffset(local)
    assert offset is not None
    return int(days * _DAY + time - round(offset.total_seconds()) * _SECOND)
