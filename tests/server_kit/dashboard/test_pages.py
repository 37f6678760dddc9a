"""Every page in a real browser: both themes, wide and as narrow as a phone, by keyboard, for a screen reader."""

from __future__ import annotations

from itertools import pairwise
from urllib.parse import urlsplit

import pytest

from tests.server_kit.dashboard.entering import entrance_to

pytestmark = [pytest.mark.browser, pytest.mark.integration]

VIEWS = {
    "federation": "/",
    "cohort": "/cohorts/0.0.0",
    "devices": "/devices",
    "privacy": "/privacy",
    "health": "/health",
}
WIDTHS = {"wide": 1280, "narrow": 360}
MOST_SHIFT = 0.05
"""Half of what Web Vitals calls good."""
SHIFTED = """() => new Promise((done) => {
  let sum = 0;
  const add = (each) => { if (!each.hadRecentInput) sum += each.value; };
  new PerformanceObserver((list) => list.getEntries().forEach(add)).observe({ type: "layout-shift", buffered: true });
  setTimeout(() => done(sum), 100);
})"""


@pytest.fixture
def visit(browser, home, address):
    """Opens a page; what its scripts complain about, and whom they ask, is kept."""
    contexts = []

    def opened(path, width="wide", theme="light"):
        size = {"width": WIDTHS[width], "height": 900}
        context = browser.new_context(viewport=size, color_scheme=theme, reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page.complaints, page.asked = [], []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(entrance_to(address + path, home))
        page.wait_for_selector("main h2", timeout=30_000)
        page.wait_for_selector("#line[data-state=live]", timeout=30_000)
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_fits_stays_in_place_and_asks_nobody_else(visit, pictures, view, width, theme):
    page = visit(VIEWS[view], width, theme)
    page.wait_for_timeout(300)
    page.screenshot(path=pictures / f"dashboard-{view}-{theme}-{width}.png", full_page=True)
    assert page.complaints == []
    assert {urlsplit(url).netloc for url in page.asked} == {urlsplit(page.url).netloc}
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width]
    assert page.evaluate(SHIFTED) <= MOST_SHIFT


@pytest.mark.parametrize("view", VIEWS)
def test_a_screen_reader_finds_its_way(visit, view):
    page = visit(VIEWS[view])
    for landmark in ("header", "nav", "main", "footer"):
        assert page.locator(landmark).count() >= 1
    levels = page.eval_on_selector_all("h1, h2, h3", "all => all.map((each) => Number(each.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("section:not([aria-labelledby])").count() == 0
    nameless = "all => all.filter((each) => !each.getAttribute('aria-label') && !each.querySelector('title')).length"
    assert page.eval_on_selector_all("svg[role=img]", nameless) == 0
    assert page.locator("[role=status][aria-live=polite]").count() == 1
    assert page.locator(".chart").count() == page.locator("figure:has(details), figure:has(figcaption)").count()
    assert page.title() not in {"", "Covey"}


def test_a_phone_reads_rows_that_are_still_tables(visit):
    page = visit("/", "narrow")
    snapshot = page.locator("main").aria_snapshot()
    assert "table" in snapshot
    assert 'rowheader "0.0.0"' in snapshot


def test_the_keyboard_reaches_everything_and_shows_where_it_is(visit):
    page = visit("/")
    names = []
    for _ in range(12):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.textContent.trim()"))
        style = "getComputedStyle(document.activeElement)"
        assert page.evaluate(f"{style}.outlineStyle") != "none"
        assert float(page.evaluate(f"{style}.outlineWidth").removesuffix("px")) >= 2
    assert names[:2] == ["Skip to content", "ward monitors"]
    assert {"Federation", "Devices", "Privacy", "Health", "Theme: system", "0.0"} <= set(names)


def test_the_skip_link_leads_past_the_menu(visit):
    page = visit("/devices")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.getElementById('main').contains(document.activeElement)")


def test_a_theme_can_be_chosen_and_is_remembered(visit):
    page = visit("/", theme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.click("#theme")
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme: dark"
    dark = page.evaluate(ground)
    page.reload()
    page.wait_for_selector("main h2")
    assert (page.inner_text("#theme"), page.evaluate(ground)) == ("Theme: dark", dark)
    assert light != dark


def test_a_cohort_can_be_linked_to(visit):
    page = visit("/cohorts/0.1")
    assert page.inner_text("h1") == "Cohort 0.1"
    assert page.get_attribute("header nav a[aria-current]", "data-page") == "federation"
    page.click("nav.trail >> text='0'")
    page.wait_for_selector("h1:has-text('Cohort 0')")
    assert urlsplit(page.url).path == "/cohorts/0"
    page.go_back()
    page.wait_for_selector("h1:has-text('Cohort 0.1')")


def test_a_cohort_that_never_was_says_so(browser, home, address):
    page = browser.new_page()
    page.goto(entrance_to(f"{address}/cohorts/7.7", home))
    page.wait_for_selector("text=There is no cohort of this name")
    page.close()


def test_the_figures_behind_a_chart_stay_unfolded_while_the_page_lives(visit):
    page = visit("/cohorts/0.0.0")
    page.click("#accuracy ~ figure summary")
    page.wait_for_timeout(2500)
    assert page.is_visible("#accuracy ~ figure table")


def test_devices_can_be_chosen_by_state_and_leafed_through(visit):
    page = visit("/devices")
    page.click("nav.choice >> text='revoked'")
    page.wait_for_selector("#list ~ .scroll tbody:not(:has(tr:nth-child(3)))", timeout=30_000)
    page.click("nav.choice >> text='All'")
    page.click("text='Later'")
    page.wait_for_selector("text='Page 2 of 2'")
