"""Plans as text."""

from pattern_stage.statements import plan_text
from tests.support.event_kernel import Trial
from xscl.algebra.events import Attribute, Comparison, Constant, Events, Filter, Next, Schema

STOCK = Events("Stock", (("name", "string"), ("price", "number")))


def test_a_plan_says_what_its_m_ops_do_and_who_shares_them():
    trial = Trial({})
    for number, name in enumerate(("IBM", "Dell")):
        left = Filter(STOCK, Comparison("=", Attribute("left", "name", "string"), Constant(name)))
        rise = Comparison(">", Attribute("right", "price", "number"), Attribute("left", "price", "number"))
        schema: Schema = (("price_1", "number"), ("price", "number"))
        trial.kernel.add(number, Next(left, STOCK, rise, None, (("left", "price"), ("right", "price")), schema), -1)
    trial.kernel.instances()
    assert plan_text(trial.kernel.plan).splitlines() == [
        "0  Stock, in 1 form",
        "1  FILTER of 0: 2 rows, in 1 form",
        "     FILTER{name = ?1}",
        "2  NEXT of 1 and 0: 2 rows, in 1 form",
        "     NEXT{$1.price < $2.price}",
    ]
