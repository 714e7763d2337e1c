"""Labels of arrows: each on its own arrow, and on nothing else where there is room."""

from __future__ import annotations

import random
import time
from itertools import combinations

from tierwall.explore.drawing import ROOMY, place_roomily
from tierwall.render.labels import PlacedLabel, place_labels
from tierwall.render.layout import BoxSpec, LinkSpec, PicturePlacement, place

HEIGHT = 26


def picture(seed: int, count: int, links: int) -> tuple[PicturePlacement, list[float]]:
    chance = random.Random(seed)
    boxes = [BoxSpec(chance.randrange(60, 200), 36, 0) for _ in range(count)]
    pairs = chance.sample([(a, b) for a in range(count) for b in range(count) if a != b], links)
    specs = [LinkSpec(*pair, chance.randrange(20, 120)) for pair in pairs]
    return place(boxes, specs, [False]), [spec.width / 2 + 5 for spec in specs]


def covers(left: PlacedLabel, right: PlacedLabel) -> bool:
    return abs(left.x - right.x) < left.half + right.half and abs(left.y - right.y) < HEIGHT


def test_a_label_is_on_its_own_arrow() -> None:
    for seed in range(20):
        placed, halves = picture(seed, 6, 9)
        for label, half, route in zip(
            place_labels(placed.routes, halves, placed.nodes, HEIGHT), halves, placed.routes, strict=True
        ):
            across, down = zip(*route, strict=True)
            assert min(across) - 1 <= label.x <= max(across) + 45 + half
            assert min(down) - 1 <= label.y <= max(down) + 1
            assert label.half == half


def test_labels_cover_neither_each_other_nor_nodes_where_there_is_room() -> None:
    covered = hidden = 0
    for seed in range(40):
        placed, halves = picture(seed, 6, 7)
        labels = place_labels(placed.routes, halves, placed.nodes, HEIGHT)
        covered += sum(covers(*pair) for pair in combinations(labels, 2))
        hidden += sum(
            label.x + label.half > node.x
            and label.x - label.half < node.x + node.width
            and label.y + HEIGHT / 2 > node.y
            and label.y - HEIGHT / 2 < node.y + node.height
            for label in labels
            for node in placed.nodes
        )
    # Of 840 pairs and 1,680; where arrows meet in one gap, some labels have no room.
    assert covered <= 20
    assert hidden <= 2


def test_a_graph_of_two_columns_has_room_for_its_labels() -> None:
    boxes = [BoxSpec(150, 36, 0) for _ in range(4)]
    pairs = [(0, other) for other in (1, 2, 3)] + [(1, 0), (2, 0)]
    specs = [LinkSpec(*pair, 55) for pair in pairs]
    narrow = place(boxes, specs, [False])
    roomy = place_roomily(boxes, specs, [False])
    assert narrow.width < roomy.width <= ROOMY
    halves = [spec.width / 2 + 5 for spec in specs]
    labels = place_labels(roomy.routes, halves, roomy.nodes, HEIGHT)
    assert not [pair for pair in combinations(labels, 2) if covers(*pair)]
    # A graph that fills its place stays as it is, and so does one without arrows.
    wide = [LinkSpec(*pair, 700) for pair in pairs]
    assert place_roomily(boxes, wide, [False]) == place(boxes, wide, [False])
    assert place_roomily(boxes, [], [False]) == place(boxes, [], [False])


def test_the_labels_of_a_full_drawing_are_placed_at_once() -> None:
    placed, halves = picture(7, 24, 240)
    start = time.process_time()
    assert len(place_labels(placed.routes, halves, placed.nodes, HEIGHT)) == 240
    assert time.process_time() - start < 2
