"""Random crawls of feeds as directories of captures, and what is read of them, computed from what was written."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from random import Random

from common.dates import iso_utc
from feeds.documents import VISITS_STREAM, Document, Visit, VisitOutcome
from feeds.fetch.fetcher import Capture, DropArchive
from feeds.history import NotedVisit
from feeds.readers import Sidecar
from tests.generate.documents import START, chance

HOUR = 3_600_000_000
TITLES = ("storm", "Storm", "calm", "rain", "snow")


@dataclass
class Site:
    """A feed: its entries as (guid, title, date), the newest last, and what was read of it."""

    url: str
    entries: list[tuple[str, str, int | None]] = field(default_factory=list)
    times: dict[str, int] = field(default_factory=dict)
    """When each entry was dated, by its guid."""
    versions: set[tuple[str, str, int | None]] = field(default_factory=set)
    since: int | None = None
    failing: int = 0
    address: str = ""
    first: dict[str, int] = field(default_factory=dict)
    listed: list[str] = field(default_factory=list)
    said: tuple[str, str, int] | None = None
    """What was last said of it: an error, its address, the number of its entries."""

    def changes(self, rng: Random, now: int) -> None:
        """Entries come, of now, of before, of the future or without a date; are dated otherwise; and go."""
        for _ in range(rng.choice((0, 1, 1, 2))):
            ago = rng.choice((0, 0, 1, 1, 2, 5, 30, -1, -100)) * HOUR
            date = None if chance(rng, 10) else now - ago - rng.randrange(3600) * 1_000_000
            self.entries.append((f"g{len(self.times)}-{rng.randrange(1 << 30)}", rng.choice(TITLES), date))
        if self.entries and chance(rng, 15):
            at = rng.randrange(len(self.entries))
            guid, title, _ = self.entries[at]
            self.entries[at] = guid, title, now - rng.choice((-2, 0, 1, 9)) * HOUR - rng.randrange(3600) * 1_000_000
        del self.entries[: rng.choice((0, 0, 0, 1, max(0, len(self.entries) - 6)))]
        if self.entries and chance(rng, 20):
            del self.entries[rng.randrange(len(self.entries))]

    def body(self) -> bytes:
        items = "".join(
            f"<item><title>{title}</title><guid isPermaLink='false'>{guid}</guid>"
            f"{'' if date is None else f'<pubDate>{formatdate(date // 1_000_000, usegmt=True)}</pubDate>'}</item>"
            for guid, title, date in reversed(self.entries)
        )
        return f"<rss version='2.0'><channel><title>C</title><link>{self.url}</link>{items}</channel></rss>".encode()

    def shown(self, now: int) -> list[tuple[str, int]]:
        """The titles and times of what a visit shows anew: its own time, or that of the visit."""
        found = []
        for one in reversed(self.entries):
            guid, title, date = one
            if one not in self.versions:
                self.versions.add(one)
                before = self.times.get(guid)
                in_time = date is not None and date <= now and (before is None or before < date)
                self.times[guid] = date if date is not None and in_time else now
                self.first.setdefault(guid, self.times[guid])
                found.append((title, self.times[guid]))
        return found

    def news(self, now: int, error: str = "", *, is_read: bool = False) -> tuple[Document, ...]:
        """The document about a visit, if it says something new."""
        guids = [guid for guid, *_ in self.entries] if is_read else self.listed
        oldest = min((self.first[guid] for guid in guids), default=now)
        withdrawn = [guid for guid in self.listed if guid not in guids and self.first[guid] > oldest]
        moved = self.address if self.address and self.address != (self.said or ("", self.url))[1] else ""
        count = len(guids) if is_read or self.said is None else self.said[2]
        says = error, self.address or (self.said or ("", self.url))[1], count
        if error and self.said is None:
            says = error, says[1], -1
        self.listed = guids
        if says == self.said and not withdrawn:
            return ()
        self.said = says
        told = {"feed": self.url, "time": iso_utc(now), "status": "404" if error else "200", "error": error}
        told |= {"moved": moved, "entries": "" if error or count < 0 else str(count)}
        parts = [f"<{name}>{text.replace('&', '&amp;')}</{name}>" for name, text in told.items() if text]
        xml = f"<visit>{''.join(parts)}{''.join(f'<withdrawn>{guid}</withdrawn>' for guid in withdrawn)}</visit>"
        return (Document(f"{self.url} {iso_utc(now)}", xml, VISITS_STREAM, now, feed=self.url),)


def crawl(rng: Random, directory: Path) -> list[Document | Visit]:
    """Writes a crawl. Returns what is read of it; of documents, ids and content are titles."""
    sites = [Site(f"https://{name}.example/") for name in "abc"[: rng.choice((1, 2, 3))]]
    archive, found, now = DropArchive(directory), list[Document | Visit](), START
    for _ in range(rng.choice((6, 10, 14))):
        noted: list[NotedVisit] = []
        told: list[Visit] = []

        def note(site: Site, outcome: VisitOutcome, error: str = "") -> None:
            at = now  # noqa: B023  # called within the iteration
            about = 404 if error else 0, error, "" if error else site.address
            noted.append(NotedVisit(site.url, at, outcome, site.since, *about))  # noqa: B023  # the same
            documents = site.news(at, error) if error or outcome == "complete" else ()
            if documents or outcome != "failed":
                told.append(Visit(site.url, at, outcome, documents=documents))  # noqa: B023  # the same

        for site in sites:
            now += rng.randrange(1, 900) * 1_000_000
            if site.failing or chance(rng, 10):
                site.failing = (site.failing or rng.choice((1, 2, 6))) - 1
                if site.since is None and chance(rng, 50):
                    note(site, "awaited")
                elif chance(rng, 70):
                    note(site, "ended" if site.since is None else "failed", rng.choice(("not there", "404 & gone")))
                continue
            if chance(rng, 10):
                site.address = rng.choice((site.url, f"{site.url}new"))
            known = site.body()
            site.changes(rng, now)
            if site.since is not None and site.body() == known:
                note(site, "complete")
                continue
            site.since, content = now, site.body()
            digest = hashlib.sha256(content).hexdigest()
            about = Sidecar(site.url, now, site.url, content_type="text/xml", sha256=digest, address=site.address)
            archive.keep(Capture(about, site.url.split("/")[2], (), content))
            found += [Document(title, title, "S", time, feed=site.url) for title, time in site.shown(now)]
            found.append(Visit(site.url, now, documents=site.news(now, is_read=True)))
        now += 1_000_000
        if noted:
            archive.note(noted, now)
            found += told
        now += rng.choice((1, 1, 2)) * HOUR
    return found
