"""Messages of sinks, for tests of what receivers make of them."""

from mmqjp.answers.output import Output
from mmqjp.present.item import ShownItem, ShownMatch
from mmqjp.sinks.sink import ID_PREFIX, Message

TIME = 1_778_068_800_000_000  # 2026-05-06T12:00:00Z


def output(seq: int, query: str = "q1", xml: str = "<match/>") -> Output:
    return Output(query, TIME, TIME + seq, (f"d{seq}",), ("S",), {"x": 0}, xml, f"{seq:032x}", seq)


def match(seq: int, title: str = "A title", xml: str = "<match/>", query: str = "q1") -> ShownMatch:
    item = ShownItem(f"d{seq}", "S", TIME, "item", title, "a.example", "A feed", f"https://a.example/{seq}")
    return ShownMatch(output(seq, query, xml), (item,))


def message(*matches: ShownMatch, sink: str = "alerts", more: int = 0) -> Message:
    ids = [one.output.id for one in matches] or ["test"]
    numbers = [one.output.seq for one in matches] or [-1]
    return Message(ID_PREFIX + "".join(ids)[:32], sink, numbers[0], numbers[-1], matches, more, TIME)
