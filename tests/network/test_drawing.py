"""The drawing of `list` and `diff`: well formed, readable, bounded, and harmless whatever objects are called."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ElementTree
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.network.test_network_list import hostile
from tierwall.cli.main import root
from tierwall.core.verdict import Verdict
from tierwall.network.model.rules import PortRange
from tierwall.network.reach.listing import Arrow, ConnectionFlow, Picture
from tierwall.network.reach.naming import NamedEndpoints
from tierwall.render.formats import View
from tierwall.render.layout import BoxSpec, LinkSpec, place
from tierwall.render.svg import MAX_ARROWS, MAX_NODES, drawing

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*arguments: str, code: int = 0) -> ElementTree.Element:
    done = CliRunner().invoke(root, [*arguments, "-o", "svg"])
    assert done.exit_code == code, done.output
    return ElementTree.fromstring(done.stdout)


def texts(element: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in element.iter(f"{SVG}text")]


def flow(ports: str, verdict: Verdict = Verdict.ALLOW) -> ConnectionFlow:
    return ConnectionFlow(verdict, ports, (PortRange("TCP", 1, 1),))


def picture(names: list[str], *arrows: tuple[int, int, str], ways: int = 0) -> Picture:
    nodes = tuple(NamedEndpoints((), (), (name,)) for name in names)
    return Picture(nodes, tuple(Arrow(source, to, (flow(ports),)) for source, to, ports in arrows), ways)


def render(of: Picture) -> ElementTree.Element:
    return ElementTree.fromstring("\n".join(drawing(of, View())))


def test_a_drawing_names_namespaces_nodes_and_ports() -> None:
    svg = drawn("list", "examples/ways-in")
    assert {"Connections", "ways in from outside", "shop", "infra", "db[StatefulSet]", "TCP 5432"} <= set(texts(svg))
    assert {"Ingress/shop/web", "HTTPRoute/shop/api"} <= set(texts(svg))


def test_a_drawing_has_a_title_and_a_description_for_screen_readers() -> None:
    svg = drawn("list", "examples/shop/manifests")
    title, description = svg.find(f"{SVG}title"), svg.find(f"{SVG}desc")
    assert title is not None
    assert description is not None
    assert svg.get("role") == "img"
    assert svg.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert "shop/api[Deployment] => shop/db[StatefulSet] : TCP 5432." in (description.text or "")


def test_a_drawing_of_changes_marks_what_appears_and_vanishes() -> None:
    svg = drawn("diff", "examples/shop/manifests", "tests/golden/worlds/changed", code=4)
    assert "Changed connections" in texts(svg)
    assert any(text.startswith("+ ") for text in texts(svg))
    assert any(text.startswith("- ") for text in texts(svg))
    assert any("vanishes" in text for text in texts(svg))


def test_names_from_objects_are_only_text(tmp_path: Path) -> None:
    (tmp_path / "world.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": hostile()}))
    svg = drawn("list", str(tmp_path))
    tags = {element.tag.removeprefix(SVG) for element in svg.iter()}
    assert tags <= {"svg", "title", "desc", "style", "defs", "marker", "path", "rect", "text", "g"}
    assert not [key for element in svg.iter() for key in element.attrib if key.startswith("on") or "href" in key]


def test_equal_arrows_in_both_directions_are_one_with_two_heads() -> None:
    svg = render(picture(["a/x", "a/y", "a/z"], (0, 1, "all"), (1, 0, "all"), (1, 2, "TCP 1"), (2, 1, "TCP 2")))
    links = [path for path in svg.iter(f"{SVG}path") if path.get("marker-end")]
    assert sorted(bool(path.get("marker-start")) for path in links) == [False, False, True]
    assert texts(svg).count("all") == 1


def test_what_members_of_a_node_may_among_them_is_in_the_node() -> None:
    assert "↻ TCP 7" in texts(render(picture(["a/x"], (0, 0, "TCP 7"))))


def test_exceptions_have_lines_of_their_own() -> None:
    nodes = (NamedEndpoints(("a/*",), ("a/x", "a/y"), ()), NamedEndpoints(("outside",), ("10.0.0.1",), ("b/z",)))
    shown = texts(render(Picture(nodes, ())))
    assert {"a", "*", "except x", "except y"} <= set(shown)
    assert {"outside", "except 10.0.0.1", "b/z"} <= set(shown)


def test_a_drawing_without_nodes_is_a_drawing() -> None:
    svg = render(picture([]))
    description = svg.find(f"{SVG}desc")
    assert description is not None
    assert description.text == "No connections."


def test_a_large_picture_is_cut_and_says_so() -> None:
    names = [f"n{number // 20}/pod-{number}" for number in range(400)]
    arrows = [(source, to, "TCP 1") for source in range(400) for to in range(source + 1, min(source + 30, 400))]
    begin = time.process_time()
    svg = render(picture(names, *arrows))
    assert time.process_time() - begin < 20
    links = [path for path in svg.iter(f"{SVG}path") if path.get("marker-end")]
    assert len(links) <= MAX_ARROWS
    (note,) = [text for text in texts(svg) if text.startswith("not drawn: ")]
    assert f"{400 - MAX_NODES} groups" in note


@pytest.mark.parametrize("seed", range(8))
def test_nodes_never_overlap_and_arrows_end_at_nodes(seed: int) -> None:
    import random

    chosen = random.Random(seed)
    boxes = [BoxSpec(chosen.randrange(60, 300), chosen.randrange(30, 90), chosen.randrange(4)) for _ in range(18)]
    links = [
        LinkSpec(source, to, chosen.randrange(20, 200), chosen.choice((0, 1, 20)))
        for source, to in chosen.sample([(a, b) for a in range(18) for b in range(18) if a != b], 40)
    ]
    placed = place(boxes, links, [True, False, True, True])
    for node, other in combinations(placed.nodes, 2):
        apart_x = node.x + node.width <= other.x or other.x + other.width <= node.x
        assert apart_x or node.y + node.height <= other.y or other.y + other.height <= node.y
    for box, node in zip(boxes, placed.nodes, strict=True):
        assert placed.lanes[box.lane].top <= node.y
        assert node.y + node.height <= placed.lanes[box.lane].bottom
        assert node.x + node.width <= placed.width
    for link, route in zip(links, placed.routes, strict=True):
        for at, (x, y) in ((link.source, route[0]), (link.destination, route[-1])):
            node = placed.nodes[at]
            assert x in (node.x, node.x + node.width)
            assert node.y <= y <= node.y + node.height


def test_a_chain_leads_from_left_to_right() -> None:
    boxes: list[Any] = [BoxSpec(100, 30, 0) for _ in range(4)]
    links = [LinkSpec(3, 0, 40, 20), LinkSpec(0, 2, 40, 20), LinkSpec(2, 1, 40, 20), LinkSpec(1, 3, 40, 1)]
    places = place(boxes, links, [True]).nodes
    assert places[3].x < places[0].x < places[2].x < places[1].x
