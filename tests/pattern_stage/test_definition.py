"""Statements that differ only in constants and order have one normal form (what it means: test_agreement.py)."""

from __future__ import annotations

from pattern_stage.definition import StatementForms
from xscl.algebra.events import (
    ALWAYS,
    AllOf,
    AnyOf,
    Arithmetic,
    Attribute,
    Comparison,
    Constant,
    Duration,
    EventCondition,
    Events,
    Filter,
    Next,
    Part,
    Schema,
    Select,
    Stream,
    Union,
    Value,
)

STOCK = Events("Stock", (("name", "string"), ("price", "number")))
NAME, PRICE = Attribute("left", "name", "string"), Attribute("left", "price", "number")


def same(value: Value, constant: str | float) -> EventCondition:
    return Comparison("=", value, Constant(constant))


def more(value: Value, constant: float) -> EventCondition:
    return Comparison(">", value, Constant(constant))


def test_statements_that_differ_in_constants_and_order_have_one_form_and_equal_rows():
    forms = StatementForms()
    ibm = Filter(STOCK, AllOf((same(NAME, "IBM"), more(PRICE, 83))))
    turned = Filter(STOCK, AllOf((Comparison("<", Constant(83.0), PRICE), same(NAME, "IBM"))))
    nested = Filter(Filter(STOCK, more(PRICE, 83)), same(NAME, "IBM"))
    dell = Filter(STOCK, AllOf((same(NAME, "Dell"), more(PRICE, 20))))
    found = [forms.form(stream) for stream in (ibm, turned, nested, dell)]
    definitions = {form.nodes[-1].definition for form, _, _ in found}
    assert len(definitions) == 1
    vectors = [[constants[slot] for slot in form.nodes[-1].slots] for form, constants, _ in found]
    assert vectors == [["IBM", 83.0]] * 3 + [["Dell", 20.0]]
    assert found[0][0] is found[3][0]


def test_alternatives_of_one_shape_may_come_in_any_order():
    forms = StatementForms()

    def sites(*names: str) -> list[str | float]:
        form, constants, _ = forms.form(Filter(STOCK, AnyOf(tuple(same(NAME, name) for name in names))))
        node = form.nodes[-1]
        return node.sorted_values([constants[slot] for slot in node.slots])

    assert sites("b", "c", "a") == sites("c", "a", "b") == ["a", "b", "c"]


def test_a_constant_that_stands_in_two_clauses_is_not_exchanged():
    forms = StatementForms()
    both = AllOf((AnyOf((same(NAME, "p"), same(PRICE, 1.0))), same(NAME, "Q")))
    form, constants, _ = forms.form(Filter(STOCK, both))
    node = form.nodes[-1]
    vector = [constants[slot] for slot in node.slots]
    assert node.sorted_values(vector) == vector


def test_a_chain_becomes_one_selection_and_one_renaming():
    named = Select(
        Filter(STOCK, more(PRICE, 83)),
        (("n", NAME), ("p", Arithmetic("*", PRICE, Constant(2.0)))),
        (("n", "string"), ("p", "number")),
    )
    p = Attribute("left", "p", "number")
    chain = Select(
        Filter(
            named, AllOf((more(Attribute("left", "p", "number"), 200), Comparison(">=", Duration(), Constant(5.0))))
        ),
        (("p", p),),
        (("p", "number"),),
    )
    form, constants, _ = StatementForms().form(chain)
    assert [type(node.definition.operator).__name__ for node in form.nodes if node.definition] == ["Filter", "Select"]
    assert constants == (83.0, 2.0, 200.0, 5.0)
    assert form.nodes[1].slots == (0, 1, 2, 3)  # price > 83, then price * 2 > 200, then DUR
    assert form.nodes[2].slots == (1,)


def test_a_chain_that_would_grow_without_end_stays_in_pieces():
    stream: Stream = STOCK
    for _ in range(40):
        stream = Select(stream, (("name", NAME), ("price", Arithmetic("+", PRICE, PRICE))), STOCK.schema)
    form, _, _ = StatementForms().form(stream)
    assert 2 < len(form.nodes) < 20


def test_windows_are_no_part_of_a_definition_and_equal_parts_of_a_statement_are_one():
    forms = StatementForms()
    names: tuple[tuple[Part, str], ...] = (("left", "name"), ("left", "price"), ("right", "name"), ("right", "price"))
    schema: Schema = (("name_1", "string"), ("price_1", "number"), ("name", "string"), ("price", "number"))
    one, other = (Next(STOCK, STOCK, ALWAYS, window, names, schema) for window in (5_000_000, 9_000_000))
    assert forms.form(one)[0] is forms.form(other)[0]
    assert [forms.form(stream)[2] for stream in (one, other)] == [(5_000_000,), (9_000_000,)]
    twice, _, windows = forms.form(Union(one, one))
    assert len(twice.nodes) == 3 and windows == (5_000_000,)
    assert len(forms.form(Union(one, other))[0].nodes) == 4


def test_a_form_that_is_forgotten_is_made_again():
    forms = StatementForms()
    form = forms.form(Filter(STOCK, more(PRICE, 1)))[0]
    forms.forget(form)
    again = forms.form(Filter(STOCK, more(PRICE, 2)))[0]
    assert again == form and again is not form
