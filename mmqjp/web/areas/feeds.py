"""The feeds of a state, read beside the running fetch: their health; adding, retrying and removing them; settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Body, File, Form, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, Response

from common.bounds import EARLIEST
from common.dates import HOUR
from common.errors import InputError
from common.files import SECRETS, make_inside
from feeds.fetch.lists import FeedLists, read_feed_list
from feeds.fetch.settings import (
    FILE_ONLY,
    KEYS,
    NONE,
    NOTHING_SET,
    BadSettings,
    FeedSettings,
    SettingsOf,
    effective_settings,
)
from feeds.fetch.state import (
    STATE_FILE,
    AddedFeed,
    FeedChange,
    FeedState,
    FetchStore,
    SettingsChange,
    SettingsScope,
    change_feeds,
)
from feeds.items import LONGEST_TITLE, folder_paths, one_line
from mmqjp.documents.watermarks import WATERMARKS, FeedTimes, LastVisit
from mmqjp.process import pluralise
from mmqjp.service.drops import (
    DROPS,
    FeedNotes,
    FeedSummary,
    NoSuchFeed,
    as_opml,
    chosen_feeds,
    feed_named,
    known_feeds,
    noted_feeds,
    without_private,
)
from mmqjp.sinks.secrets import SecretError, store_secret
from mmqjp.tables.lookup import latest_setting
from mmqjp.web.site import MOST_CACHED, NO_STORE, Link, Site, cursor, decode_cursor
from mmqjp.web.tallies import FeedItems

ROWS = 100  # feeds per page
WAIT = 3.0  # seconds to wait until a running fetch has applied a change
MOST_NAMED = 100  # new feeds that are listed after a list was added
OVERDUE = 600_000_000  # a feed overdue for this many microseconds shows that no fetch runs

Health = Literal["well", "new", "failing", "stopped"]
WantedFeeds = Literal["", "failing", "late", "unpushed", "stopped"]


@dataclass(frozen=True, slots=True)
class FeedRow(FeedSummary):
    """A feed and its health: `new` before the first visit; `stopped` if it is gone for good and not fetched again.
    `visited_at` is its last complete visit, and `read_to` the last one processed, up to which its time has advanced.
    `late`: that is longer ago than twice its interval. `holds`: the stream waits for this feed, and others are ahead by
    more than its interval. `kept`: its items in the store."""

    health: Health
    visited_at: int | None
    read_to: int | None
    late: bool
    holds: bool
    kept: FeedItems


@dataclass(frozen=True, slots=True)
class FeedPage:
    """A page of feeds. `feeds`, `failing`, `late`, `stopped`, `pushed` (by a hub) and `unpushed` (naming a hub that
    does not push them) count all feeds. `overdue`: feeds have been due for so long that no fetch can be running."""

    rows: tuple[FeedRow, ...]
    next: str | None
    feeds: int
    failing: int
    late: int
    stopped: int
    pushed: int
    unpushed: int
    overdue: bool


@dataclass(frozen=True, slots=True)
class FeedsChanged:
    """The result of a change: the number of feeds, and complaints about ignored ones. `made` is false if the running
    fetch has not applied it yet. `known` counts feeds to add that already existed; `new` has the addresses of the
    others, up to MOST_NAMED."""

    feeds: int
    made: bool
    complaints: tuple[str, ...] = ()
    known: int = 0
    new: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SettingsView:
    """The settings of a feed, or of a folder ("" for all feeds), by key: from the page or the command line (`own`),
    from the configuration file (`configured`), and the resolved ones, including a feed's folders (`effective`). Secrets
    appear by name only."""

    url: str
    folder: str
    own: Mapping[str, Any]
    configured: Mapping[str, Any]
    effective: Mapping[str, Any]


def feed_page(site: Site, wanted: WantedFeeds = "", after: str | None = None) -> FeedPage:
    """Returns feeds with the wanted health, from a cursor on. Raises SourceError."""
    known, notes = noted_feeds(_file(site), site.now()) if _file(site).is_file() else ([], {})
    rows = list(map(partial(_row, site.now(), _visits(site), site.feed_items(), notes), known))
    first, _ = decode_cursor(after, int, str) or (0, "")
    shown = [row for row in rows[max(first, 0) :] if wanted == "" or wanted in _signs(row)]
    place = {row.url: number for number, row in enumerate(rows)}
    due = [row.next_check for row in rows if row.next_check is not None]
    return FeedPage(
        tuple(shown[:ROWS]),
        cursor(place[shown[ROWS].url], "") if len(shown) > ROWS else None,
        len(rows),
        sum(row.health == "failing" for row in rows),
        sum(row.late for row in rows),
        sum(row.health == "stopped" for row in rows),
        sum(row.pushed is True for row in rows),
        sum(row.pushed is False for row in rows),
        bool(due) and min(due) + OVERDUE < site.now(),
    )


def _signs(row: FeedRow) -> Iterator[str]:
    yield row.health
    yield from ["late"] if row.late else []
    yield from ["unpushed"] if row.pushed is False else []


def _added(site: Site, found: FeedLists) -> FeedsChanged:
    """Adds feeds with their settings, except those on private hosts that are not allowed."""
    known = _known(site)
    kept, refused = found.feeds, list[str]()
    if not site.allow_private:
        kept, refused = without_private(found.feeds, known, NONE, site.feed_settings.over(_settings(site)))
    there = {feed.url for feed in known}
    new = [feed for feed in kept if feed.url not in there]
    texts = {url: one.to_json() for url, one in found.settings.items() if one != NONE}
    added = tuple(AddedFeed(feed.url, feed.title, feed.folder, texts.get(feed.url, "")) for feed in kept)
    of_folders = tuple(one for one in found.changes if one.scope == "folder")
    made = _change(site, FeedChange(add=added, settings=of_folders)) if added else True
    named = tuple(feed.shown for feed in new[:MOST_NAMED])
    return FeedsChanged(len(new), made, (*found.complaints, *refused), len(kept) - len(new), named)


def _settings(site: Site) -> SettingsOf:
    if not (file := _file(site)).is_file():
        return NOTHING_SET
    with FetchStore(file) as store:
        return store.settings()


def _unverified(site: Site) -> set[str]:
    """The feeds, as shown, whose certificates are not checked."""
    state, configured = _settings(site), site.feed_settings
    everything = (*state.feeds.values(), *state.folders.values(), *configured.feeds.values())
    if not any(one.verify is False for one in (*everything, *configured.folders.values())):
        return set()
    of = partial(effective_settings, file=configured, state=state)
    return {feed.shown for feed in _known(site) if of(feed.url, feed.folders, shown=feed.shown).verify is False}


def settings_view(site: Site, url: str, folder: str) -> SettingsView:
    """Returns the settings of the feed with an address, else of a folder. Raises NoSuchFeed, SourceError."""
    state, configured = _settings(site), site.feed_settings
    if url:
        (feed,) = _chosen(site, [url])
        own = state.feeds.get(feed.url, NONE)
        fixed = next((configured.feeds[key] for key in (feed.url, feed.shown) if key in configured.feeds), NONE)
        all_of_it = effective_settings(feed.url, feed.folders, configured, state, feed.shown)
        return SettingsView(feed.shown, "", own.to_table(), fixed.to_table(), all_of_it.to_table())
    own, fixed = (source.folders.get(folder, NONE) for source in (state, configured))
    return SettingsView("", folder, own.to_table(), fixed.to_table(), fixed.or_else(own).to_table())


def change_settings(site: Site, url: str, folder: str, table: Mapping[str, object], new_password: str = "") -> bool:
    """Sets keys; None unsets one. Returns whether the change has been applied. Users of the page cannot name secrets,
    which would be sent to the feed's host, other than those already set there; a new password becomes a new secret.
    Raises BadSettings, NoSuchFeed, SecretError, OSError."""
    for key in FILE_ONLY & {key for key, value in table.items() if value is not None}:
        raise BadSettings(f"{key}: only the configuration file and mmqjp feeds set may set this")
    name = _chosen(site, [url])[0].url if url else folder
    state = _settings(site)
    before = (state.feeds if url else state.folders).get(name, NONE)
    made = ""
    if new_password:
        if not url:
            raise BadSettings("new_password: a password goes to one host; set it with the feed")
        made = f"{_PAGE_SECRET}{blake2b(name.encode(), digest_size=4).hexdigest()}-{token_hex(3)}"
        table = {**table, "password": {"secret": made}}
    after = before.changed(table)
    for key in after.to_table():
        if not {made, *_named_in(before)}.issuperset(_named_in(after, key)):
            advice = "only the configuration file and mmqjp feeds set name secrets"
            raise BadSettings(f"{key}: {advice}, since they are sent to the feed's host")
    if made:
        store_secret(site.state, made, new_password)
    scope: SettingsScope = "feed" if url else "folder"
    is_made = _change(site, FeedChange(settings=(SettingsChange(scope, name, json.dumps(table)),)))
    _drop_secrets(site, {*_named_in(before)}.difference(_named_in(after)))
    return is_made


def _drop_secrets(site: Site, names: Iterable[str]) -> None:
    """Removes secrets that the page created."""
    for one in names:
        if one.startswith(_PAGE_SECRET):
            (site.state / SECRETS / one).unlink(missing_ok=True)


_PAGE_SECRET = "feed-"  # prefix of the names of secrets that the page created


def _named_in(settings: FeedSettings, *keys: str) -> Iterator[str]:
    """The names of the secrets in some keys, by default in all."""
    return (one.name for one in settings.secrets(*keys))


def _known(site: Site) -> list[FeedState]:
    file = _file(site)
    return known_feeds(file) if file.is_file() else []


def _chosen(site: Site, addresses: Sequence[str]) -> list[FeedState]:
    return chosen_feeds(_known(site), addresses, "this state")


def _change(site: Site, change: FeedChange) -> bool:
    make_inside(site.state, DROPS)
    return change_feeds(_file(site), change, WAIT)


def _file(site: Site) -> Path:
    return site.state / DROPS / STATE_FILE


VISITS = """SELECT stream, feed, arg_max(visited, batch) AS visited, arg_max(earlier, batch) AS earlier,
  arg_max(outcome, batch) AS outcome
FROM feeds GROUP BY stream, feed"""
"""SQL for the last complete visit of each feed, and the last outcome."""

SECONDS = 10.0  # time limit of a SELECT


class _FeedTime(NamedTuple):
    """A feed in the store: its last complete visit (None if it had none), that of the most advanced feed, and whether
    the stream waits for it."""

    visited: int | None
    furthest: int
    is_waited_for: bool


def _visits(site: Site) -> dict[str, _FeedTime]:
    rows = site.look_up(VISITS, MOST_CACHED, SECONDS).to_pylist()
    if not rows:
        return {}
    noted = latest_setting(lambda sql: site.look_up(sql, 1, SECONDS), WATERMARKS)
    idle_after: int | None = json.loads(noted or "{}").get("idle_after")
    streams: dict[str, FeedTimes] = {}
    for row in rows:
        streams.setdefault(row["stream"], FeedTimes()).put(
            row["feed"], LastVisit(row["visited"], row["earlier"], row["outcome"])
        )
    found: dict[str, _FeedTime] = {}
    for feeds in streams.values():
        least = feeds.least(idle_after)
        for feed, state in feeds.states.items():
            visited, _, outcome = state
            waits = visited == least if outcome == "complete" else state.is_live(idle_after, feeds.greatest)
            found[feed] = _FeedTime(visited if visited > EARLIEST else None, feeds.greatest, waits)
    return found


def _row(
    now: int,
    visits: Mapping[str, _FeedTime],
    items: Mapping[str, FeedItems],
    notes: Mapping[str, FeedNotes],
    feed: FeedState,
) -> FeedRow:
    summary = FeedSummary.of(feed, notes)
    signs: dict[Health, object] = {
        "stopped": summary.stopped,
        "failing": summary.errors,
        "new": summary.checked_at is None,
    }
    health: Health = next((health for health, has in signs.items() if has), "well")
    interval = summary.interval or HOUR
    read_to, furthest, is_waited_for = visits.get(summary.url, _FeedTime(None, 0, False))
    visited_at = summary.checked_at if health == "well" else read_to
    late = read_to is not None and not summary.stopped and now - read_to > 2 * interval
    holds = is_waited_for and furthest - (read_to or 0) > interval
    kept = items.get(summary.url, FeedItems())
    return FeedRow(
        **asdict(summary), health=health, visited_at=visited_at, read_to=read_to, late=late, holds=holds, kept=kept
    )


LINKS = (Link("/feeds", "Feeds", 30),)

LONGEST = 4_000  # maximum length of an address, in characters

OPML = "text/x-opml; charset=utf-8"

_After = Annotated[str | None, Query(description="The `next` of the previous page.")]
Address = Annotated[str, Form(max_length=LONGEST)]
_Sent = Annotated[str, Body(description="The feed's address, or that of a page that links to it.")]
_Named = Annotated[str, Body(description="Your title for it, or its folder.")]


_Url = Annotated[str, Query(max_length=LONGEST, description="The feed's address.")]
_Folder = Annotated[str, Query(max_length=LONGEST, description='The folder\'s path, or "" for all feeds.')]
_Table = Annotated[dict[str, Any], Body(embed=True, description="Keys as in the configuration file.")]
_Password = Annotated[str, Body(max_length=LONGEST, description="A password, which is stored as a secret.")]

FORM_KEYS = tuple(key for key in KEYS if key not in FILE_ONLY)
NEW_PASSWORD = "new_password"
_LINES = frozenset({"keep", "block"})
_NAMED = {"headers": ": ", "cookies": "="}
"""Keys whose values are lines of name and value, and the separator between these."""

_SECRET = re.compile(r"\{\s*secret\s*=\s*[\"']?([^\"'{}\s]*)[\"']?\s*\}")


def _shown_value(key: str, value: object) -> str:
    """Formats a value for the form."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case {"secret": str(name)}:
            return name if key == "password" else f'{{ secret = "{name}" }}'
        case Mapping():
            return "\n".join(f"{name}{_NAMED.get(key, '=')}{_shown_value('', one)}" for name, one in value.items())
        case list():
            return "\n".join(map(str, value))
    return str(value)


def _table_of_form(form: Mapping[str, str]) -> dict[str, object]:
    """The inverse of `_shown_value`, for all fields. An empty field unsets its key. Raises BadSettings."""
    table: dict[str, object] = {}
    for key, text in form.items():
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if key in _NAMED:
            table[key] = dict(_named_line(key, line) for line in lines) or None
        elif key in _LINES:
            table[key] = lines or None
        elif key == "hub":
            table[key] = {"true": True, "false": False, "": None}.get(text, text)
        else:
            table[key] = text.strip() or None
    return table


def _named_line(key: str, line: str) -> tuple[str, object]:
    mark = _NAMED[key].strip()
    name, found, value = line.partition(mark)
    if not found:
        raise BadSettings(f"{key}: write NAME{_NAMED[key]}VALUE, one per line")
    secret = _SECRET.fullmatch(value.strip())
    return name.strip(), {"secret": secret[1]} if secret else value.strip()


def _first_of(what: str, texts: Sequence[str], count: int | None = None) -> str:
    """The first few texts as a sentence that follows another one; "" if there are none."""
    count = len(texts) if count is None else count
    more = f" and {count - 3:,} more" if count > 3 else ""
    return f". {what}: {', '.join(texts[:3])}{more}" if texts else ""


def feeds_router(site: Site, routes: APIRouter) -> None:
    def page(
        request: Request,
        wanted: WantedFeeds = "",
        after: str | None = None,
        status: int = 200,
        address: str = "",
        error: str = "",
        list_error: str = "",
    ) -> Response:
        found = feed_page(site, wanted, after)
        return site.render(
            request, "feeds.html", status, changes=True, found=found, wanted=wanted, unverified=_unverified(site),
            address=address, error=error, list_error=list_error,
        )  # fmt: skip

    @routes.get("/feeds", response_class=HTMLResponse)
    def feeds_page(request: Request, health: WantedFeeds = "", after: _After = None) -> Response:
        return page(request, health, after)

    def changed(done: str, made: FeedsChanged) -> Response:
        text = f"{pluralise(made.feeds, 'feed')} {done}"
        if made.known:
            text += f"; {made.known:,} {'was' if made.known == 1 else 'were'} there already"
        text += f"; {len(made.complaints):,} left out or changed" if made.complaints else ""
        if len(made.new) + len(made.complaints) + made.known > 1:  # of a list
            text += _first_of("New", made.new, made.feeds) + _first_of("Left out", made.complaints)
        return site.show("/feeds", f"{text}." if made.made else f"{text}. The running fetch will apply it in a moment.")

    def edit_page(
        request: Request, url: str, folder: str, form: Mapping[str, str] = {}, status: int = 200, error: str = ""
    ) -> Response:
        found = settings_view(site, url, folder)
        folders = folder_paths(_chosen(site, [url])[0].folders)[::-1] if url else ()
        given = form or {key: _shown_value(key, found.own.get(key)) for key in FORM_KEYS}
        key, _, cause = error.partition(": ")
        at = {key: cause} if key in (*FORM_KEYS, NEW_PASSWORD) else {"": error} if error else {}
        fixed = {key: _shown_value(key, value) for key, value in found.effective.items() if key in FILE_ONLY}
        around = {key: _shown_value(key, found.effective[key]) for key in found.effective.keys() - found.own.keys()}
        return site.render(
            request, "feed_edit.html", status, changes=True, found=found, form=given, errors=at, fixed=fixed,
            around=around, folders=folders,
        )  # fmt: skip

    @routes.get("/feeds/edit", response_class=HTMLResponse)
    def edit(request: Request, url: _Url = "", folder: _Folder = "") -> Response:
        return edit_page(request, url, folder)

    @routes.post("/feeds/edit", response_class=HTMLResponse)
    async def edit_form(request: Request, url: _Url = "", folder: _Folder = "") -> Response:
        keys = (*FORM_KEYS, NEW_PASSWORD)
        given = {key: str(value) for key, value in (await request.form()).items() if key in keys}
        return await run_in_threadpool(edited, request, url, folder, given)

    def edited(request: Request, url: str, folder: str, given: Mapping[str, str]) -> Response:
        try:
            table = _table_of_form({key: value for key, value in given.items() if key != NEW_PASSWORD})
            made = change_settings(site, url, folder, table, given.get(NEW_PASSWORD, "").strip())
        except (BadSettings, SecretError) as error:
            return edit_page(request, url, folder, given, 400, str(error))
        later = "The next fetch uses them." if made else "The running fetch will apply them in a moment."
        return site.show("/feeds/edit", f"The settings are saved. {later}", url=url, folder=folder)

    @routes.post("/feeds", response_class=HTMLResponse)
    def add_form(request: Request, address: Address = "", folder: Address = "") -> Response:
        try:
            return changed("added", add(address, folder=folder))
        except InputError as error:
            return page(request, status=400, address=address, error=str(error))

    @routes.post("/feeds/list", response_class=HTMLResponse)
    def list_form(request: Request, opml: Annotated[bytes, File()] = b"") -> Response:
        if not opml:
            return page(request, status=400, list_error="choose a file first")
        try:
            return changed("added", add_list(opml))
        except InputError as error:
            return page(request, status=400, list_error=str(error))

    @routes.post("/feeds/remove")
    def remove_form(address: Address) -> Response:
        return changed("removed", remove(address))

    @routes.post("/feeds/retry")
    def retry_form(address: Address = "") -> Response:
        return changed("due now", retry([address] if address else []))

    @routes.get("/feeds/feeds.opml", include_in_schema=False)
    @routes.get("/api/v1/feeds.opml", tags=["feeds"], summary="Download the feeds as OPML", response_class=Response)
    def download() -> Response:
        named = {"Content-Disposition": 'attachment; filename="feeds.opml"'}
        return Response(as_opml(_known(site), _settings(site)), media_type=OPML, headers=NO_STORE | named)

    @routes.get("/api/v1/feeds", tags=["feeds"], summary="List the feeds")
    def feeds(response: Response, health: WantedFeeds = "", after: _After = None) -> FeedPage:
        response.headers.update(NO_STORE)
        return feed_page(site, health, after)

    @routes.post("/api/v1/feeds", tags=["feeds"], summary="Add a feed")
    def add(address: _Sent, title: _Named = "", folder: _Named = "") -> FeedsChanged:
        feed = feed_named(address.strip())
        feed = replace(feed, title=one_line(title)[:LONGEST_TITLE], folder=one_line(folder)[:LONGEST_TITLE])
        made = _added(site, FeedLists([feed], [], {}, {}))
        if made.complaints:
            raise NoSuchFeed(made.complaints[0])
        return made

    @routes.post(
        "/api/v1/feeds.opml", tags=["feeds"], summary="Add the feeds of a list, in OPML or with one address per line"
    )
    def add_list(opml: Annotated[bytes, Body(media_type="text/x-opml")]) -> FeedsChanged:
        return _added(site, read_feed_list(opml, "the list"))

    @routes.get("/api/v1/feeds/settings", tags=["feeds"], summary="Show the settings of a feed or folder")
    def settings(response: Response, url: _Url = "", folder: _Folder = "") -> SettingsView:
        response.headers.update(NO_STORE)
        return settings_view(site, url, folder)

    @routes.put("/api/v1/feeds/settings", tags=["feeds"], summary="Set keys of a feed or folder; null unsets one")
    def put_settings(table: _Table, url: _Url = "", folder: _Folder = "", new_password: _Password = "") -> FeedsChanged:
        return FeedsChanged(1, change_settings(site, url, folder, table, new_password))

    @routes.delete("/api/v1/feeds", tags=["feeds"], summary="Remove a feed")
    def remove(address: Annotated[str, Query(max_length=LONGEST)]) -> FeedsChanged:
        urls = tuple(feed.url for feed in _chosen(site, [address]))
        named = [name for url in urls for name in _named_in(_settings(site).feeds.get(url, NONE))]
        made = _change(site, FeedChange(remove=urls))
        _drop_secrets(site, named)
        return FeedsChanged(len(urls), made)

    @routes.post(
        "/api/v1/feeds/retry", tags=["feeds"], summary="Make feeds due now; without an address, all failing ones"
    )
    def retry(address: Annotated[list[str] | None, Query()] = None) -> FeedsChanged:
        failing = [feed for feed in _known(site) if feed.errors and not feed.stopped]
        urls = tuple(feed.url for feed in (_chosen(site, address) if address else failing))
        return FeedsChanged(len(urls), _change(site, FeedChange(retry=urls)) if urls else True)


ROUTERS = (feeds_router,)
