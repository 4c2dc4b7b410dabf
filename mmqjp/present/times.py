"""Times as people read them: in the local time zone, or in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from feeds.dates import EPOCH, from_datetime, parse_iso


@dataclass(frozen=True, slots=True)
class Clock:
    """Shows times of a zone. None is the local one."""

    zone: tzinfo | None = None

    def minute(self, microseconds: int) -> str:
        """Returns a time to the minute: `2026-07-16 14:02`."""
        moment = self._at(microseconds)
        if moment is None:
            return str(microseconds)
        # `strftime` takes much longer, and pages have hundreds of times.
        return f"{moment.year:04}-{moment.month:02}-{moment.day:02} {moment.hour:02}:{moment.minute:02}"

    def iso(self, microseconds: int) -> str:
        """Returns a time as ISO 8601 with its zone: `2026-07-16T14:02:00+02:00`, or with `Z` for UTC."""
        moment = self._at(microseconds)
        return str(microseconds) if moment is None else moment.isoformat().replace("+00:00", "Z")

    def zone_at(self, microseconds: int) -> str:
        """Returns the name of the zone at a time: `CEST`, `UTC`."""
        moment = self._at(microseconds)
        return str(microseconds) if moment is None else moment.strftime("%Z")

    def read(self, text: str) -> int:
        """Returns the microseconds of a date or time as ISO 8601 has it, of this zone if it names none. Raises
        InvalidValue."""
        found = parse_iso(text)
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            return found
        if moment.tzinfo is not None:
            return found
        return from_datetime(moment.astimezone() if self.zone is None else moment.replace(tzinfo=self.zone))

    def _at(self, microseconds: int) -> datetime | None:
        """The moment, or None outside of the years 1 to 9999."""
        try:
            return (EPOCH + timedelta(microseconds=microseconds)).astimezone(self.zone)
        except (OverflowError, ValueError, OSError):
            return None


IN_UTC = Clock(UTC)
