"""The journeys of people through the explorer, in a real browser, by mouse and by keyboard (docs/explorer.md)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import pytest
from axe_playwright_python.async_playwright import Axe
from axe_playwright_python.base import AXE_SCRIPT
from click.testing import CliRunner
from playwright.async_api import BrowserContext, Error, Page, Request, Route, expect

from tests import ROOT
from tests.explore.conftest import EXAMPLES
from tests.labs.browser import PATIENCE_MS, BrowserLab, PageWatch, browser, journey
from tests.labs.explorer_server import ExplorerLab
from tierwall.cli.main import root

pytestmark = pytest.mark.engine
PATHS = (
    "/",
    "/ask?q=shop/web -> shop/db:5432",
    "/ask?q=web -> db",
    "/ask?q=shopper pay",
    "/ask?q=nonsense",
    "/ask?q=what blocks web from db",
    "/network",
    "/network?focus=shop",
    "/tools",
    "/settings",
    "/permissions?user=alice",
    "/findings",
    "/change?object=NetworkPolicy/shop/db-from-api",
    "/policy/NetworkPolicy/shop/db-from-api",
)
SIZES: tuple[tuple[int, Literal["light", "dark"]], ...] = ((1440, "light"), (320, "dark"))
NASTY = "<script>window.stolen=1</script>\"'><img src=x onerror=window.stolen=1>\u202egnp"


@pytest.fixture(scope="module")
def chromium() -> Iterator[BrowserLab]:
    with browser() as running:
        yield running


@pytest.fixture
def context(chromium: BrowserLab) -> Iterator[BrowserContext]:
    opening = chromium.context()
    yield chromium.run(opening.__aenter__())
    chromium.run(opening.__aexit__(None, None, None))


async def opened(context: BrowserContext, lab: ExplorerLab, path: str = "/") -> Page:
    page = await context.new_page()
    await page.goto(f"{lab.server.origin}{path}{'&' if '?' in path else '?'}token={lab.server.access.token}")
    return page


expect.set_options(timeout=PATIENCE_MS)


@journey
async def test_ask_by_keyboard_alone(context: BrowserContext, lab: ExplorerLab) -> None:
    page = await opened(context, lab)
    watch = PageWatch(page)
    assert "token" not in page.url
    await page.keyboard.press("/")
    await expect(page.locator("#ask")).to_be_focused()
    await page.keyboard.type("shop/we")
    await expect(page.locator("#completions option").first).to_have_attribute("value", "shop/web")
    await page.keyboard.type("b -> shop/db:5432")
    await page.keyboard.press("Enter")
    await expect(page.locator(".headline .verdict.deny")).to_have_text("▬ Denied")
    await expect(page.get_by_role("status").first).to_contain_text("NetworkPolicy/shop/db-from-api isolates")
    await expect(page.locator(".walk .station")).to_have_count(3)
    await expect(page.locator(".manifest mark").first).to_contain_text("spec:")
    # A letter in a field is a letter; outside it is a key.
    await page.locator("#ask").focus()
    await page.keyboard.press("?")
    await expect(page.locator("#keys")).not_to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await expect(page.locator("#keys")).to_be_visible()
    await page.locator("#keys-on").uncheck()
    await page.keyboard.press("Escape")
    await expect(page.locator("#keys")).not_to_be_visible()
    await page.keyboard.press("?")
    await expect(page.locator("#keys")).not_to_be_visible()
    await page.locator("[data-keys]").click()
    await page.locator("#keys-on").check()
    await page.get_by_role("button", name="Close").click()
    await page.keyboard.press("g")
    await page.keyboard.press("n")
    await expect(page.locator("h1")).to_have_text("Who reaches whom")
    await page.go_back()
    await expect(page.locator(".headline .verdict")).to_have_text("▬ Denied")
    assert watch.complaints == []


@journey
async def test_choose_look_and_follow_the_reasons(context: BrowserContext, lab: ExplorerLab) -> None:
    page = await opened(context, lab)
    watch = PageWatch(page)
    await page.locator("#ask").fill("web -> db")
    await page.get_by_role("button", name="Ask").click()
    await page.get_by_role("link", name="on TCP port 9090").click()
    await expect(page.locator(".headline .verdict")).to_be_visible()
    await page.get_by_role("link", name="Network", exact=True).click()
    await page.get_by_role("link", name="Unfold shop").click()
    await expect(page.locator("svg")).to_contain_text("shop/db[StatefulSet]")
    svg = page.locator("svg").first
    before = await svg.get_attribute("viewBox")
    await page.get_by_role("button", name="Zoom in").click()
    await expect(svg).not_to_have_attribute("viewBox", before or "")
    await page.get_by_role("button", name="Show everything").click()
    await expect(svg).to_have_attribute("viewBox", before or "")
    rows = page.locator("table").first.locator("tbody tr")
    total = await rows.count()
    await page.locator(".rows-filter input").first.fill("5432")
    await expect(page.locator(".rows-filter [role=status]").first).to_have_text(f"1 of {total} rows")
    await page.locator(".rows-filter input").first.fill("")
    sort = page.locator("thead th:nth-child(2) button").first
    await sort.click()
    texts = await rows.locator("td:nth-child(2)").all_inner_texts()
    await sort.click()
    assert await rows.locator("td:nth-child(2)").all_inner_texts() == list(reversed(texts)) or len(set(texts)) < len(
        texts
    )
    await page.get_by_role("link", name="Why").first.click()
    await expect(page.locator(".answer h1")).to_be_visible()
    await page.locator(".station a.object").last.click()
    await expect(page.locator("h1")).to_contain_text("Policy/")
    await page.get_by_role("link", name="Tools", exact=True).click()
    await page.get_by_role("link", name="Deny: agents/shopper calls refund").first.click()
    await expect(page.locator(".headline .verdict")).to_have_text("▬ Denied")
    await page.get_by_role("link", name="Settings", exact=True).click()
    await expect(page.locator(".levels .loses s").first).to_be_visible()
    await page.get_by_role("link", name="Findings", exact=True).click()
    await page.get_by_role("link", name="by policy").click()
    await expect(page.locator(".findings li").first).to_be_visible()
    await page.locator(".witness a").first.click()
    await expect(page.locator(".headline .verdict")).to_be_visible()
    assert watch.complaints == []


@journey
async def test_a_change_is_compared_as_one_types(context: BrowserContext, lab: ExplorerLab) -> None:
    page = await opened(context, lab, "/change?object=NetworkPolicy/shop/db-from-api")
    watch = PageWatch(page)
    field = page.locator("#manifests")
    text = await field.input_value()
    assert "app: api" in text
    await expect(page.locator("#result h2")).to_have_text("Nothing changes")
    await field.fill(text.replace("app: api", "app: web"))
    await expect(page.locator("#result")).to_contain_text("1 connection opens, 1 closes")
    await expect(page.locator("#result .verdict.allow")).to_have_text("+ opens")
    await page.wait_for_url("**/change#*")
    link = page.url
    await page.get_by_role("button", name="Undo").click()
    await expect(page.locator("#result h2")).to_have_text("Nothing changes")
    await page.get_by_role("button", name="Redo").click()
    await expect(page.locator("#result")).to_contain_text("1 connection opens, 1 closes")
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Download patch").click()
    assert "app: web" in Path(await (await download.value).path()).read_text()
    await context.grant_permissions(["clipboard-read", "clipboard-write"], origin=lab.server.origin)
    for name, told, copied in (
        ("Copy kubectl command", "The command is copied", "kubectl apply"),
        ("Copy link", "The link is copied", page.url),
    ):
        await page.get_by_role("button", name=name).click()
        await expect(page.locator("#told")).to_contain_text(told)
        await expect(page.locator("#told")).to_be_in_viewport(ratio=1)
        assert copied in await page.evaluate("navigator.clipboard.readText()")
    await field.fill("a: [")
    await expect(page.locator("#result .problems")).to_contain_text("change.yaml:1")
    other = await context.new_page()
    await other.goto(link)
    await expect(other.locator("#manifests")).to_have_value(text.replace("app: api", "app: web"))
    await expect(other.locator("#result")).to_contain_text("1 connection opens, 1 closes")
    # Of half a link nothing is left that looks like a result.
    await other.goto("about:blank")
    await other.goto(link[: len(link) - 20])
    await expect(other.locator("#result")).to_have_text(re.compile("The change in this address cannot be read"))
    assert watch.complaints == []


@journey
async def test_the_next_key_ends_a_comparison(context: BrowserContext, lab: ExplorerLab) -> None:
    page = await opened(context, lab, "/change")
    watch = PageWatch(page)
    ended: list[str] = []
    waiting, failed = asyncio.Event(), asyncio.Event()

    def note(request: Request) -> None:
        ended.append(request.failure or "")
        failed.set()

    async def slowly(route: Route) -> None:
        if "first" in (route.request.post_data or ""):
            # No answer until the page waits for none.
            waiting.set()
            await failed.wait()
        with suppress(Error):
            await route.continue_()

    page.on("requestfailed", note)
    await page.route("**/change?format=html", slowly)
    manifest = "{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {a: b}}}"
    await page.locator("#manifests").fill(manifest % "first")
    await waiting.wait()
    await page.locator("#manifests").fill(manifest % "shop")
    await expect(page.locator("#result[aria-busy=false] h2").first).to_have_text("2 connections open")
    assert ended == ["net::ERR_ABORTED"]
    assert watch.complaints == []


@journey
async def test_pages_work_before_scripts_do(chromium: BrowserLab, lab: ExplorerLab) -> None:
    async with chromium.context(java_script_enabled=False) as context:
        page = await opened(context, lab)
        await page.locator("#ask").fill("shop/web -> shop/db:5432")
        await page.keyboard.press("Enter")
        await expect(page.locator(".headline .verdict")).to_have_text("▬ Denied")
        await page.goto(f"{lab.server.origin}/change")
        await page.locator("select[name=object]").select_option("NetworkPolicy/shop/db-from-api")
        await page.get_by_role("button", name="Compare").click()
        field = page.locator("#manifests")
        await expect(field).to_have_value(re.compile("app: api"))
        await field.fill((await field.input_value()).replace("app: api", "app: web"))
        await page.get_by_role("button", name="Compare").click()
        await expect(page.locator("#result")).to_contain_text("1 connection opens, 1 closes")
        await page.goto(f"{lab.server.origin}/network")
        await expect(page.locator("table tbody tr").first).to_be_visible()


# What reaches beyond the window, unless a box around it scrolls.
WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] : [document.documentElement.scrollWidth,
  ...[...document.querySelectorAll("body *")].filter((each) => each.getBoundingClientRect().right > innerWidth)
  .map((each) => each.outerHTML.slice(0, 100))]"""
FRAMES = "new Promise((done) => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done))))"
# What is too small to be hit with a finger.
SMALL = """() => [...document.querySelectorAll("a[href], button, input, select, textarea")]
  .filter((each) => each.checkVisibility() && !each.closest("dialog") && each.type !== "checkbox")
  .map((each) => [each.getBoundingClientRect(), each.outerHTML.slice(0, 100)])
  .filter(([box]) => box.height < 23.9 || box.width < 23.9)
  .map(([box, html]) => `${box.width} x ${box.height}: ${html}`)"""
# What the keyboard must reach: everything that can be chosen and is shown, and boxes that scroll.
STOPS = """() => [...document.querySelectorAll("a[href], button, input, select, textarea, [tabindex='0']")]
  .filter((each) => each.checkVisibility() && !each.closest("dialog")).length"""
# The element with the focus: its number, nothing outside of the page, and whether one can see that it has the focus.
FOCUS = """() => {
  const element = document.activeElement, style = getComputedStyle(element);
  if (element === document.body || element.dataset.met) return null;
  element.dataset.met = "yes";
  const drawn = element.querySelector(":scope > .unit, :scope > .label-box, :scope > .hit");
  const isSeen = drawn ? getComputedStyle(drawn).strokeWidth !== "1.3px" : style.outlineStyle !== "none";
  return isSeen ? "" : element.outerHTML.slice(0, 100);
}"""
# The longest motion of anything on the page, in seconds.
MOTION = """() => Math.max(...[...document.querySelectorAll("*")].map((each) => {
  const style = getComputedStyle(each);
  return Math.max(...`${style.transitionDuration},${style.animationDuration}`.split(",").map(parseFloat));
}))"""


# The rules of axe-core that depend on width or colours; the others find the same on the page at any size.
SIZED = ("color-contrast", "target-size", "scrollable-region-focusable")


async def grave(page: Page, rules: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Return what axe-core finds serious or critical, by all rules or by some."""
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    return [
        (violation["id"], node["html"][:200])
        for violation in (await Axe("" if rules else AXE_SCRIPT).run(page, options=options)).response["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


@journey
async def test_the_keyboard_reaches_everything_and_shows_where_it_is(context: BrowserContext, lab: ExplorerLab) -> None:
    page = await opened(context, lab)
    for path in PATHS:
        await page.goto(f"{lab.server.origin}{path}")
        await expect(page.locator("html.scripted")).to_be_attached()
        await page.evaluate("document.activeElement.blur()")
        count = 0
        while True:
            await page.keyboard.press("Tab")
            unseen = await page.evaluate(FOCUS)
            if unseen is None:
                break
            assert unseen == "", path
            count += 1
        assert count == await page.evaluate(STOPS), path
    await page.goto(lab.server.origin)
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator("#main")).to_be_focused()


@journey
async def test_every_page_fits_and_can_be_used_by_all(chromium: BrowserLab, lab: ExplorerLab) -> None:
    async with chromium.context(reduced_motion="reduce") as context:
        page = await opened(context, lab)
        watch = PageWatch(page)
        for path in PATHS:
            await page.set_viewport_size({"width": 1440, "height": 800})
            await page.emulate_media(color_scheme="light")
            await page.goto(f"{lab.server.origin}{path}")
            for width, scheme in SIZES:
                await page.set_viewport_size({"width": width, "height": 800})
                await page.emulate_media(color_scheme=scheme)
                # A drawing takes a frame or two to fit a window that changed.
                await page.evaluate(FRAMES)
                assert await page.evaluate(WIDE) == [], (path, width)
                assert await page.evaluate(SMALL) == [], (path, width)
                assert await grave(page, SIZED if width == 320 else ()) == [], (path, width)
            assert await page.evaluate(MOTION) == 0, path
        # Motion is short, and never of a colour that text stands on: no letter is faint for a moment.
        await page.emulate_media(reduced_motion="no-preference")
        await page.goto(lab.server.origin)
        assert 0 < await page.evaluate(MOTION) < 0.2
        await page.emulate_media(color_scheme="light")
        assert await grave(page) == []
        # Dialogs, a wrong change and a result with findings are states of their own.
        await page.goto(f"{lab.server.origin}/change")
        for text, heading in (
            ("a: [", "It cannot be read yet"),
            ("{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {a: b}}}", "2 connections open"),
        ):
            await page.locator("#manifests").fill(text)
            await expect(page.locator("#result[aria-busy=false] h2").first).to_have_text(heading)
            assert await grave(page) == [], text
            # What is shown while the next result is computed can be read just as well.
            await page.evaluate("document.getElementById('result').setAttribute('aria-busy', 'true')")
            assert await grave(page) == [], text
            await page.evaluate("document.getElementById('result').setAttribute('aria-busy', 'false')")
        await page.locator("[data-keys]").click()
        assert await grave(page) == []
        assert watch.complaints == []


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


@journey
async def test_names_are_text_wherever_they_are_shown(context: BrowserContext, tmp_path: Path) -> None:
    hostile_world(tmp_path)
    lab = ExplorerLab(tmp_path)
    try:
        page = await opened(context, lab)
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
            await page.goto(f"{lab.server.origin}{path}")
            assert await page.evaluate("window.stolen === undefined"), path
            assert await page.locator("main img, main script").count() == 0, path
            assert "\u202e" not in await page.inner_text("body"), path
        seen = set()
        for reference in names:
            if reference.kind not in seen:
                seen.add(reference.kind)
                await page.locator("#ask").fill(reference.name)
                async with page.expect_navigation():
                    await page.keyboard.press("Enter")
                assert await page.evaluate("window.stolen === undefined"), reference.kind
        assert watch.complaints == []
    finally:
        lab.close()


POD = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: team-%d}\nspec: {containers: []}\n"


@journey
async def test_a_page_follows_the_files_and_keeps_its_place(context: BrowserContext, tmp_path: Path) -> None:
    file = tmp_path / "pods.yaml"
    policy = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: own, namespace: team-%d}\n"
    policy += "spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}], ports: [{port: %d}]}]}\n"
    before = "".join(POD % ("a", n) + POD % ("b", n) + policy % (n, 8000 + n) for n in range(30))
    file.write_text(before)
    lab = ExplorerLab(tmp_path)
    try:
        page = await opened(context, lab, "/network")
        box = page.locator(".scroll").first
        # Thirty namespaces are a matrix, at a size that can be read; its names stay when it is moved.
        svg = page.locator(".drawing.large svg")
        await page.set_viewport_size({"width": 800, "height": 900})
        await page.reload()
        assert (
            float((await svg.get_attribute("viewBox") or "").split()[2])
            < 800
            < int(await svg.get_attribute("width") or 0)
        )
        await box.evaluate("box => { box.scrollTop = 300; }")
        await page.get_by_role("button", name="Move right").click()
        await expect(svg.locator("[data-axis=beside]")).not_to_have_attribute("transform", "translate(0 0)")
        seen = await svg.get_attribute("viewBox")
        await page.get_by_role("button", name="Ports", exact=True).click()
        await page.locator("input[name=focus]").fill("team-7")
        await page.locator(".rows-filter input").first.fill("team-2")
        await page.evaluate("window.kept = 1")
        file.write_text(before.replace("port: 8025", "port: 9025"))
        await expect(page.locator("table").first).to_contain_text("9025")
        assert await page.evaluate("window.kept") == 1
        await expect(page.locator(".rows-filter input").first).to_have_value("team-2")
        await expect(page.locator(".rows-filter input").first).to_be_focused()
        await expect(page.locator("input[name=focus]")).to_have_value("team-7")
        await expect(page.locator("th[aria-sort=ascending]")).to_have_text("Ports")
        await expect(svg).to_have_attribute("viewBox", seen or "")
        await expect(page.locator("#badge")).to_be_hidden()
        file.write_text("a: [")
        await expect(page.locator("#badge")).to_contain_text("may be old")
        await expect(page.locator("table").first).to_contain_text("9025")
        file.write_text(before)
        await expect(page.locator("#badge")).to_be_hidden()
        file.unlink()
        await expect(page.locator(".summary")).to_contain_text("between 0 namespaces")
    finally:
        lab.close()


@journey
async def test_a_tab_says_that_its_explorer_ended_or_was_started_again(context: BrowserContext, tmp_path: Path) -> None:
    (tmp_path / "pods.yaml").write_text(POD % ("a", 1))
    lab = ExplorerLab(tmp_path)
    page = await opened(context, lab, "/change")
    await expect(page.locator("#result h2")).to_have_count(1)
    port, asked = lab.server.access.port, []
    page.on("request", lambda request: asked.append(request.url))
    lab.close()
    badge, retry = page.locator("#badge"), page.get_by_role("button", name="Try again")
    await expect(badge).to_contain_text("The explorer does not answer. If it has ended, start it again")
    again = ExplorerLab(tmp_path, port=port)
    try:
        await expect(badge).to_contain_text("was started again. Open the address that it printed")
        await expect(retry).to_be_visible()
        assert await grave(page) == []
        # Nobody tries for ever: only who is asked to.
        asked.clear()
        await page.locator("#manifests").fill("a: 1")
        await expect(page.locator("#result")).to_contain_text("This was not compared. The explorer was started again")
        assert [url for url in asked if "follow" in url] == []
        async with page.expect_request("**/follow"):
            await retry.click()
        await expect(retry).to_be_visible()
        await page.goto(f"{again.server.origin}/?token={again.server.access.token}")
        await expect(badge).to_be_hidden()
    finally:
        again.close()


@journey
async def test_one_file_opens_without_a_server(context: BrowserContext, tmp_path: Path) -> None:
    page = await context.new_page()
    watch = PageWatch(page)
    listed = CliRunner().invoke(root, ["list", str(ROOT / "examples/shop/manifests"), "-o", "html"])
    (tmp_path / "list.html").write_text(listed.stdout)
    await page.goto((tmp_path / "list.html").as_uri())
    everything = await page.locator("tbody tr:visible").count()
    await page.locator("#units").select_option("sandbox")
    await expect(page.locator("#told")).to_contain_text("from or to sandbox")
    assert 0 < await page.locator("tbody tr:visible").count() < everything
    await expect(page.locator("svg")).to_contain_text("sandbox/toolbox")
    sides = [str(ROOT / "examples/compare" / side) for side in ("old", "new")]
    (tmp_path / "diff.html").write_text(CliRunner().invoke(root, ["diff", *sides, "-o", "html"]).stdout)
    await page.goto((tmp_path / "diff.html").as_uri())
    total = await page.locator(".changes li:visible").count()
    assert total > 3
    # Every word must be there, in whatever order.
    await page.get_by_label("Filter these changes").fill("NOW opens")
    await expect(page.locator(".rows-filter [role=status]")).to_contain_text(f"of {total} changes")
    assert 0 < await page.locator(".changes li:visible").count() < total
    for item in await page.locator(".changes li:visible").all():
        assert "opens" in await item.inner_text()
    assert await grave(page) == []
    assert watch.complaints == []
