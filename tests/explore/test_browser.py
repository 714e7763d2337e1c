"""The journeys of people through the explorer, in a real browser, by mouse and by keyboard (docs/explorer.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from click.testing import CliRunner
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests import ROOT
from tests.explore.conftest import EXAMPLES
from tests.labs.browser import PageWatch, browser
from tests.labs.explorer_server import ExplorerLab
from tests.labs.waiting import PATIENCE_S
from tierwall.cli.main import root

pytestmark = pytest.mark.engine
PATIENCE_MS = PATIENCE_S * 1000
PATHS = (
    "/",
    "/ask?q=shop/web -> shop/db:5432",
    "/ask?q=web -> db",
    "/ask?q=shopper pay",
    "/ask?q=nonsense",
    "/network",
    "/network?focus=shop",
    "/tools",
    "/settings",
    "/permissions?user=alice",
    "/findings",
    "/change?object=NetworkPolicy/shop/db-from-api",
    "/policy/NetworkPolicy/shop/db-from-api",
)
NASTY = "<script>window.stolen=1</script>\"'><img src=x onerror=window.stolen=1>\u202egnp"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as running:
        yield running


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    opened = chromium.new_context(viewport={"width": 1440, "height": 900})
    opened.set_default_timeout(PATIENCE_MS)
    yield opened
    opened.close()


def opened(context: BrowserContext, lab: ExplorerLab, path: str = "/") -> Page:
    page = context.new_page()
    page.goto(lab.server.address)
    if path != "/":
        page.goto(f"{lab.server.origin}{path}")
    return page


expect.set_options(timeout=PATIENCE_MS)


def test_ask_by_keyboard_alone(context: BrowserContext, lab: ExplorerLab) -> None:
    page = opened(context, lab)
    watch = PageWatch(page)
    assert "token" not in page.url
    page.keyboard.press("/")
    expect(page.locator("#ask")).to_be_focused()
    page.keyboard.type("shop/we")
    expect(page.locator("#completions option").first).to_have_attribute("value", "shop/web")
    page.keyboard.type("b -> shop/db:5432")
    page.keyboard.press("Enter")
    expect(page.locator(".headline .verdict.deny")).to_have_text("▬ Denied")
    expect(page.get_by_role("status").first).to_contain_text("NetworkPolicy/shop/db-from-api isolates")
    expect(page.locator(".walk .station")).to_have_count(3)
    expect(page.locator(".manifest mark").first).to_contain_text("spec:")
    # A letter in a field is a letter; outside it is a key.
    page.locator("#ask").focus()
    page.keyboard.press("?")
    expect(page.locator("#keys")).not_to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.locator("#keys-on").uncheck()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).not_to_be_visible()
    page.keyboard.press("?")
    expect(page.locator("#keys")).not_to_be_visible()
    page.locator("[data-keys]").click()
    page.locator("#keys-on").check()
    page.get_by_role("button", name="Close").click()
    page.keyboard.press("g")
    page.keyboard.press("n")
    expect(page.locator("h1")).to_have_text("Who reaches whom")
    page.go_back()
    expect(page.locator(".headline .verdict")).to_have_text("▬ Denied")
    assert watch.complaints == []


def test_choose_look_and_follow_the_reasons(context: BrowserContext, lab: ExplorerLab) -> None:
    page = opened(context, lab)
    watch = PageWatch(page)
    page.locator("#ask").fill("web -> db")
    page.get_by_role("button", name="Ask").click()
    page.get_by_role("link", name="on TCP port 9090").click()
    expect(page.locator(".headline .verdict")).to_be_visible()
    page.get_by_role("link", name="Network", exact=True).click()
    page.get_by_role("link", name="Unfold shop").click()
    expect(page.locator("svg")).to_contain_text("shop/db[StatefulSet]")
    svg = page.locator("svg").first
    before = svg.get_attribute("viewBox")
    page.get_by_role("button", name="Zoom in").click()
    expect(svg).not_to_have_attribute("viewBox", before or "")
    page.get_by_role("button", name="Show everything").click()
    expect(svg).to_have_attribute("viewBox", before or "")
    rows = page.locator("table").first.locator("tbody tr")
    total = rows.count()
    page.locator(".rows-filter input").first.fill("5432")
    expect(page.locator(".rows-filter [role=status]").first).to_have_text(f"1 of {total} rows")
    page.locator(".rows-filter input").first.fill("")
    sort = page.locator("thead th:nth-child(2) button").first
    sort.click()
    texts = rows.locator("td:nth-child(2)").all_inner_texts()
    sort.click()
    assert rows.locator("td:nth-child(2)").all_inner_texts() == list(reversed(texts)) or len(set(texts)) < len(texts)
    page.get_by_role("link", name="Why").first.click()
    expect(page.locator(".answer h1")).to_be_visible()
    page.locator(".station a.object").last.click()
    expect(page.locator("h1")).to_contain_text("Policy/")
    page.get_by_role("link", name="Tools", exact=True).click()
    page.get_by_role("link", name="Deny: agents/shopper calls refund").first.click()
    expect(page.locator(".headline .verdict")).to_have_text("▬ Denied")
    page.get_by_role("link", name="Settings", exact=True).click()
    expect(page.locator(".levels .loses s").first).to_be_visible()
    page.get_by_role("link", name="Findings", exact=True).click()
    page.get_by_role("link", name="by policy").click()
    expect(page.locator(".findings li").first).to_be_visible()
    assert watch.complaints == []


def test_a_change_is_compared_as_one_types(context: BrowserContext, lab: ExplorerLab) -> None:
    page = opened(context, lab, "/change?object=NetworkPolicy/shop/db-from-api")
    watch = PageWatch(page)
    field = page.locator("#manifests")
    text = field.input_value()
    assert "app: api" in text
    expect(page.locator("#result h2")).to_have_text("Nothing changes")
    field.fill(text.replace("app: api", "app: web"))
    expect(page.locator("#result")).to_contain_text("1 connection opens, 1 closes")
    expect(page.locator("#result .verdict.allow")).to_have_text("+ opens")
    page.wait_for_url("**/change#*")
    link = page.url
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#result h2")).to_have_text("Nothing changes")
    page.get_by_role("button", name="Redo").click()
    expect(page.locator("#result")).to_contain_text("1 connection opens, 1 closes")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download patch").click()
    assert "app: web" in Path(download.value.path()).read_text()
    field.fill("a: [")
    expect(page.locator("#result .problems")).to_contain_text("change.yaml:1")
    other = context.new_page()
    other.goto(link)
    expect(other.locator("#manifests")).to_have_value(text.replace("app: api", "app: web"))
    expect(other.locator("#result")).to_contain_text("1 connection opens, 1 closes")
    assert watch.complaints == []


def test_pages_work_before_scripts_do(chromium: Browser, lab: ExplorerLab) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = opened(context, lab)
    page.locator("#ask").fill("shop/web -> shop/db:5432")
    page.keyboard.press("Enter")
    expect(page.locator(".headline .verdict")).to_have_text("▬ Denied")
    page.goto(f"{lab.server.origin}/change?object=NetworkPolicy/shop/db-from-api")
    field = page.locator("#manifests")
    field.fill(field.input_value().replace("app: api", "app: web"))
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#result")).to_contain_text("1 connection opens, 1 closes")
    page.goto(f"{lab.server.origin}/network")
    expect(page.locator("table tbody tr").first).to_be_visible()
    context.close()


# What reaches beyond the window, unless a box around it scrolls.
WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] : [document.documentElement.scrollWidth,
  ...[...document.querySelectorAll("body *")].filter((each) => each.getBoundingClientRect().right > innerWidth)
  .map((each) => each.outerHTML.slice(0, 100))]"""


def grave(page: Page) -> list[tuple[str, str]]:
    """Return what axe-core finds serious or critical."""
    return [
        (violation["id"], node["html"][:200])
        for violation in Axe().run(page).response["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize(("width", "scheme"), [(320, "dark"), (1440, "light")])
def test_every_page_fits_and_can_be_used_by_all(chromium: Browser, lab: ExplorerLab, width: int, scheme: Any) -> None:
    size: Any = {"width": width, "height": 800}
    context = chromium.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    page = opened(context, lab)
    watch = PageWatch(page)
    for path in PATHS:
        page.goto(f"{lab.server.origin}{path}")
        assert page.evaluate(WIDE) == [], path
        assert grave(page) == [], path
    small = page.evaluate(
        """() => [...document.querySelectorAll("header a, button, input:not([type=checkbox])")]
        .filter((each) => each.offsetParent && each.getBoundingClientRect().height < 24)
        .map((each) => each.outerHTML)"""
    )
    assert small == []
    assert watch.complaints == []
    context.close()


def hostile_world(folder: Path) -> None:
    """Write objects of every plane whose every name and text is hostile."""
    for path in EXAMPLES:
        for file in path.glob("*.yaml"):
            text = file.read_text()
            for pattern in (
                r"(?<=name: )(web|db|shopper|payment-service|edge|chat)(?![-\w])",
                r"(?<=description: )[^,}\n]*",
            ):
                text = re.sub(pattern, lambda _: json.dumps(NASTY), text)
            text = re.sub(r"(?<=app: )\w+", lambda word: json.dumps(NASTY + word[0]), text)
            (folder / f"{path.parent.name}-{file.name}").write_text(text)


def test_names_are_text_wherever_they_are_shown(context: BrowserContext, tmp_path: Path) -> None:
    hostile_world(tmp_path)
    lab = ExplorerLab(tmp_path)
    try:
        page = opened(context, lab)
        watch = PageWatch(page)
        world = lab.follower.explored
        assert world is not None
        names = [resource.reference for resource in world.world.objects() if "script" in resource.name]
        assert len({reference.kind for reference in names}) > 3
        given = quote(NASTY)
        paths = [
            *PATHS,
            "/findings?by=policy",
            f"/tools?caller={given}",
            f"/permissions?user={given}",
            f"/ask?q={given}",
        ]
        for path in paths:
            page.goto(f"{lab.server.origin}{path}")
            assert page.evaluate("window.stolen === undefined"), path
            assert page.locator("main img, main script").count() == 0, path
            assert "\u202e" not in page.inner_text("body"), path
        seen = set()
        for reference in names:
            if reference.kind not in seen:
                seen.add(reference.kind)
                page.locator("#ask").fill(reference.name)
                with page.expect_navigation():
                    page.keyboard.press("Enter")
                assert page.evaluate("window.stolen === undefined"), reference.kind
        assert watch.complaints == []
    finally:
        lab.close()


POD = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: team-%d}\nspec: {containers: []}\n"


def test_a_page_follows_the_files_and_keeps_its_place(context: BrowserContext, tmp_path: Path) -> None:
    file = tmp_path / "pods.yaml"
    policy = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: own, namespace: team-%d}\n"
    policy += "spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}], ports: [{port: %d}]}]}\n"
    before = "".join(POD % ("a", n) + POD % ("b", n) + policy % (n, 8000 + n) for n in range(30))
    file.write_text(before)
    lab = ExplorerLab(tmp_path)
    try:
        page = opened(context, lab, "/network")
        box = page.locator(".scroll").first
        box.evaluate("box => { box.scrollTop = 300; }")
        page.locator(".rows-filter input").first.fill("team-2")
        page.evaluate("window.kept = 1")
        file.write_text(before.replace("port: 8025", "port: 9025"))
        expect(page.locator("table").first).to_contain_text("9025")
        assert page.evaluate("window.kept") == 1
        expect(page.locator(".rows-filter input").first).to_have_value("team-2")
        expect(page.locator("#badge")).to_be_hidden()
        file.write_text("a: [")
        expect(page.locator("#badge")).to_contain_text("may be old")
        expect(page.locator("table").first).to_contain_text("9025")
    finally:
        lab.close()


def test_one_file_opens_without_a_server(context: BrowserContext, tmp_path: Path) -> None:
    page = context.new_page()
    watch = PageWatch(page)
    listed = CliRunner().invoke(root, ["list", str(ROOT / "examples/shop/manifests"), "-o", "html"])
    (tmp_path / "list.html").write_text(listed.stdout)
    page.goto((tmp_path / "list.html").as_uri())
    everything = page.locator("tbody tr:visible").count()
    page.locator("#units").select_option("sandbox")
    expect(page.locator("#told")).to_contain_text("from or to sandbox")
    assert 0 < page.locator("tbody tr:visible").count() < everything
    expect(page.locator("svg")).to_contain_text("sandbox/toolbox")
    sides = [str(ROOT / "examples/compare" / side) for side in ("old", "new")]
    (tmp_path / "diff.html").write_text(CliRunner().invoke(root, ["diff", *sides, "-o", "html"]).stdout)
    page.goto((tmp_path / "diff.html").as_uri())
    expect(page.locator(".changes li").first).to_be_visible()
    assert grave(page) == []
    assert watch.complaints == []
