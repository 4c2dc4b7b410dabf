"""The picture of a plan on random plans: lines lead from each operation to those that read it, and cross no box."""

from __future__ import annotations

import random
import re

import pytest
from lxml import etree

from mmqjp.explain.pictures import MOST, MOST_IN_COLUMN, plan_picture
from mmqjp.explain.plan import Operation
from tests.generate.seeds import seeds

Point = tuple[float, float]
Box = tuple[float, float, float, float]


def random_plan(chance: random.Random, most: int) -> list[Operation]:
    """Operations that read some of those before them, near ones more often."""
    found: list[Operation] = []
    for number in range(chance.randint(1, most)):
        count = chance.randint(0, 3) if number else 0
        reads = {max(0, number - int(chance.expovariate(0.2)) - 1) for _ in range(count)}
        found.append(Operation(f"key {number}", f"number {number}", (), 1, (), tuple(f"key {one}" for one in reads)))
    return found


def drawn(before: list[Operation], after: list[Operation]) -> tuple[list[tuple[str, Box]], list[list[Point]]]:
    """The titles and places of boxes, in the order of the picture, and the four points of each curve."""
    root = etree.fromstring(plan_picture(before, after))
    boxes: list[tuple[str, Box]] = []
    for one in root.iter("{*}rect"):
        x, y, width, height = (float(str(one.get(name))) for name in ("x", "y", "width", "height"))
        title = one.getnext()
        assert title is not None
        boxes.append((str(title.text), (x, y, x + width, y + height)))
    curves = []
    for path in root.iter("{*}path"):
        numbers = [float(one) for one in re.findall(r"[-\d.]+", str(path.get("d")))]
        curves.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
    return boxes, curves


def along(points: list[Point]) -> list[Point]:
    """Points of a curve, close to each other."""
    (ax, ay), (bx, by), (cx, cy), (dx, dy) = points
    weights = [((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3) for t in (n / 60 for n in range(61))]
    return [(a * ax + b * bx + c * cx + d * dx, a * ay + b * by + c * cy + d * dy) for a, b, c, d in weights]


def is_inside(point: Point, box: Box) -> bool:
    return box[0] + 0.01 < point[0] < box[2] - 0.01 and box[1] + 0.01 < point[1] < box[3] - 0.01


def shown_reads(boxes: list[tuple[str, Box]], curves: list[list[Point]]) -> set[tuple[str, str]]:
    """Who reads what, as the curves lead: through lanes from the right end of a box to the left one of another."""
    entries = {(box[0], (box[1] + box[3]) / 2): title for title, box in boxes}
    found = set()
    for title, box in boxes:
        waiting = [(box[2], (box[1] + box[3]) / 2)]
        while waiting:
            point = waiting.pop()
            for end in (curve[-1] for curve in curves if curve[0] == point):
                if end in entries:
                    found.add((title, entries[end]))
                else:
                    waiting.append(end)
    return found


@pytest.mark.parametrize("seed", seeds(2, 200))
def test_lines_cross_no_box_and_lead_to_what_reads(seed: int):
    chance = random.Random(seed)
    plan = random_plan(chance, 25)
    boxes, curves = drawn(plan, [])
    names = [title for title, _ in boxes]
    assert len(set(names)) == len(names) <= len(plan)
    titles = {one.key: one.title for one in plan}
    reads = {(titles[key], one.title) for one in plan for key in one.reads}
    assert shown_reads(boxes, curves) == {edge for edge in reads if set(edge) <= set(names)}
    for curve in curves:
        assert not [title for title, box in boxes if any(is_inside(point, box) for point in along(curve))]


def test_boxes_do_not_overlap_and_a_large_plan_is_cut():
    plan = random_plan(random.Random(1), 1) + [Operation(f"w {n}", f"wide {n}", (), 1) for n in range(MOST)]
    boxes, _ = drawn(plan, random_plan(random.Random(2), 40))
    assert sum(title.startswith("wide") for title, _ in boxes) == MOST_IN_COLUMN - 1
    for number, (_, one) in enumerate(boxes):
        for _, other in boxes[number + 1 :]:
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
