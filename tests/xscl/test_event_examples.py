"""The thesis' examples 11 to 19 of CEL, corrected where they are printed wrong: their schemas, and what 19 finds."""

from __future__ import annotations

import pytest

from tests.oracle.events import event
from tests.support.event_algebra import run
from xscl.algebra.events import Events, Filter, Fold, Next, Select, Union
from xscl.event_lower import lower_event_query
from xscl.event_parser import schemas_of
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.problems import XsclErrors

STOCK = "DEFINE EVENT Stock FROM S//quote->q (Name := q/name, Price := number(q/price), Volume := number(q/volume));\n"
EXAMPLES = {
    "MyStock": "SELECT * FROM Stock PUBLISH MyStock",
    "IBMStock": "SELECT Price AS IBMPrice FROM FILTER{Name='IBM' AND Price > 83}(Stock) PUBLISH IBMStock",
    "IBMStock2": """SELECT Price AS IBMPrice
      FROM FILTER{Name='IBM'}(SELECT * FROM FILTER{Price > 83}(Stock)) PUBLISH IBMStock2""",
    "Ex14": "SELECT IBMPrice, Price AS MSFTPrice FROM IBMStock NEXT{Name='MSFT'} (Stock) PUBLISH Ex14",
    "Ex15": "SELECT IBMPrice, Price, Name FROM IBMStock NEXT{IBMPrice < Price} (Stock) PUBLISH Ex15",
    "Ex16": "SELECT Name FROM (SELECT Price FROM Stock) NEXT{$1.Price = $2.Price} (Stock) PUBLISH Ex16",
    "Ex17": """SELECT * FROM FILTER{cnt > 10}((SELECT *, 1 AS cnt FROM FILTER{Volume > 10000}(Stock))
      FOLD{$2.Name = $.Name, $2.Price > $.Price, $.cnt+1 AS cnt} Stock) PUBLISH Ex17""",
    "Ex18": """SELECT Price_1 AS IBMPrice1, Price AS IBMPrice2 FROM (FILTER{Name='IBM' AND Price > 83}(Stock))
      NEXT{$2.Price > $1.Price} (FILTER{Name='IBM'}(Stock)) PUBLISH Ex18""",
    "Ex19": """SELECT Name, MaxPrice, MinPrice, Price AS FinalPrice FROM FILTER{Price > 1.05*MinPrice}(
      FILTER{DUR >= 10min}(SELECT Name AS N, Price_1 AS MaxPrice, Price AS MinPrice FROM FILTER{Volume > 10000}(Stock)
        FOLD{$2.Name = $.Name, $2.Price < $.Price, } Stock)
      NEXT{$2.Name = $1.N} Stock) PUBLISH Ex19""",
    "Fig41": "SELECT Name FROM (SELECT Name AS N FROM Stock) NEXT{$1.N = $2.Name} Stock PUBLISH Fig41",
}
ATTRIBUTES = {
    "MyStock": "Name Price Volume",
    "IBMStock": "IBMPrice",
    "IBMStock2": "IBMPrice",
    "Ex14": "IBMPrice MSFTPrice",
    "Ex15": "IBMPrice Price Name",
    "Ex16": "Name",
    "Ex17": "Name_1 Price_1 Volume_1 cnt_1 Name Price Volume cnt",
    "Ex18": "IBMPrice1 IBMPrice2",
    "Ex19": "Name MaxPrice MinPrice FinalPrice",
    "Fig41": "Name",
}
SCRIPT = parse_script(STOCK + ";\n".join(EXAMPLES.values()))
SCHEMAS = schemas_of(SCRIPT)


def test_the_examples_have_their_attributes_and_round_trip():
    assert {name: [attribute for attribute, _ in SCHEMAS[name]] for name in EXAMPLES} == {
        name: attributes.split() for name, attributes in ATTRIBUTES.items()
    }
    assert parse_script(to_xscl(SCRIPT)) == SCRIPT


def test_filters_of_a_chain_are_one_and_that_of_a_right_operand_is_part_of_next():
    (one, two) = (lower_event_query(SCRIPT.event_queries[number], SCHEMAS) for number in (1, 2))
    assert isinstance(one, Select) and isinstance(two, Select)
    assert isinstance(one.source, Filter) and isinstance(two.source, Filter)
    assert set(one.source.condition.args) == set(two.source.condition.args)  # type: ignore[union-attr]  # both are AllOf
    lowered = lower_event_query(SCRIPT.event_queries[7], SCHEMAS)
    assert isinstance(lowered, Select) and isinstance(lowered.source, Next)
    assert isinstance(lowered.source.right, Events) and isinstance(lowered.source.left, Filter)


@pytest.mark.parametrize(
    ("condition", "within"),
    [
        *(("DUR <= 10 min", 600_000_000), ("DUR < 10 min", 599_999_999), ("NOT DUR > 10 min", 600_000_000)),
        *(("10 min >= DUR AND $1.Price < $2.Price", 600_000_000), ("DUR = 0.1", 100_000), ("DUR <= 2 * 3", 6_000_000)),
        *(("DUR >= 10 min", None), ("DUR <= 3 OR $1.Price = 1", None), ("DUR <= -1", None)),
    ],
)
def test_upper_bounds_of_dur_are_windows(condition: str, within: int | None):
    braces = f"{{$1.Name = $2.Name AND ({condition})}}"
    for text in (f"Stock NEXT{braces} Stock", f"Stock FOLD{{, {condition},}} Stock"):
        lowered = lower_event_query(parse_script(f"{STOCK}{text}").event_queries[0], SCHEMAS)
        assert isinstance(lowered, Next | Fold) and lowered.within == within


def test_within_bounds_all_inside_its_from():
    text = STOCK + "SELECT Name FROM (Stock NEXT{DUR <= 5} Stock) UNION (Stock NEXT Stock) WITHIN 10 s"
    lowered = lower_event_query(parse_script(text).event_queries[0], SCHEMAS)
    assert isinstance(lowered, Select) and isinstance(lowered.source, Union)
    windows = [side.within for side in (lowered.source.left, lowered.source.right) if isinstance(side, Next)]
    assert windows == [5_000_000, 10_000_000]


QUOTES = [
    *(("IBM", 90, 15000, 910), ("IBM", 85, 7000, 915), ("Dell", 40, 11000, 917)),
    *(("IBM", 81, 8000, 921), ("MSFT", 25, 6000, 923), ("IBM", 91, 9000, 924)),
]


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ((), [("IBM", 90.0, 81.0, 91.0)]),
        ((("IBM", 80, 8000, 924),), [("IBM", 90.0, 81.0, 91.0)]),
        ((("IBM", 99, 8000, 917),), []),
    ],
)
def test_example_19_finds_the_falling_run_and_its_turn(more: tuple[tuple[str, int, int, int], ...], found: object):
    quotes = [
        event({"Name": name, "Price": price, "Volume": volume}, minute * 60_000_000, minute * 60_000_000, [number])
        for number, (name, price, volume, minute) in enumerate([*QUOTES, *more])
    ]
    lowered = lower_event_query(SCRIPT.event_queries[8], SCHEMAS)
    results = run(lowered, {"Stock": frozenset(quotes)})
    assert [tuple(one.values[name] for name in ATTRIBUTES["Ex19"].split()) for one in results] == found


def test_the_printed_example_19_is_refused():
    printed = EXAMPLES["Ex19"].replace("Name AS N", "Name").replace("$1.N", "$1.Name").replace("MinPrice}(", "Min}(")
    with pytest.raises(XsclErrors, match="there is no attribute"):
        parse_script(STOCK + printed)
