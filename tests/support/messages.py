"""Messages of sinks, for tests of what receivers make of them."""

from collections.abc import Sequence

from common.dates import SECOND, iso_utc
from mmqjp.answers.output import Output
from mmqjp.present.item import ShownItem, ShownMatch, read_story, shown_members
from mmqjp.sinks.sink import ID_PREFIX, Message

TIME = 1_778_068_800_000_000  # 2026-05-06T12:00:00Z


def output(seq: int, query: str = "q1", xml: str = "<match/>") -> Output:
    return Output(query, TIME, TIME + seq, (f"d{seq}",), ("S",), {"x": 0}, xml, f"{seq:032x}", seq)


def match(seq: int, title: str = "A title", xml: str = "<match/>", query: str = "q1") -> ShownMatch:
    item = ShownItem(f"d{seq}", "S", TIME, "item", title, "a.example", "A feed", f"https://a.example/{seq}")
    return ShownMatch(output(seq, query, xml), (item,))


def told(seq: int, story: str, members: int, change: str = "grew", merged: Sequence[str] = ()) -> Output:
    """An output of a story, whose documents are a second apart."""
    times = [iso_utc(TIME + number * SECOND) for number in range(members)]
    every = [f'document="d{n}" stream="S" feed="Feed {n}" time="{time}"' for n, time in enumerate(times)]
    counts = f'first="{times[0]}" latest="{times[-1]}" members="{members}" feeds="{members}"'
    inside = [f"<first {every[0]}><item/></first>", f"<latest {every[-1]}><item/></latest>"]
    inside += [*(f'<merged id="{id}"/>' for id in merged), *(f"<member {one}/>" for one in every)]
    head = f'<story query="q1" t0="{TIME}" t1="{TIME + seq}" id="{story}" change="{change}"'
    xml = f"{head} {counts}><words>tram fire</words>{''.join(inside)}</story>"
    documents = tuple(f"d{number}" for number in range(members))
    return Output("q1", TIME, TIME + seq, documents, ("S",) * members, {}, xml, f"{seq:032x}", seq)


def story(seq: int, id: str, members: int, change: str = "grew", merged: Sequence[str] = ()) -> ShownMatch:
    found, several = read_story((output := told(seq, id, members, change, merged)).xml)

    def item(id: str, time: int, feed: str) -> ShownItem:
        title = f"Tram {id.removeprefix('d')} on FIRE"
        return ShownItem(id, "S", time, "item", title, "a.example", feed, f"https://a.example/{id}")

    items = tuple(item(one.id, one.time, one.feed) for one in shown_members(several))
    return ShownMatch(output, items, story=found)


def message(*matches: ShownMatch, sink: str = "alerts", more: int = 0) -> Message:
    ids = [one.output.id for one in matches] or ["test"]
    numbers = [one.output.seq for one in matches] or [-1]
    return Message(ID_PREFIX + "".join(ids)[:32], sink, numbers[0], numbers[-1], matches, more, TIME)
