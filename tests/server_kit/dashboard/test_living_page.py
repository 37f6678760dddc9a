"""The page follows the federation, says when it cannot, and opens only with the token."""

from __future__ import annotations

import pytest

from server_kit.daemon.dashboard_token import read_token
from server_kit.daemon.federation_home import Home
from server_kit.store.protocol import Happening, TaskState
from tests.server_kit.dashboard.believable import finish_round
from tests.server_kit.dashboard.conftest import free_port, observed
from tests.server_kit.dashboard.entering import entrance_to
from tests.server_kit.store.deliveries import enrolled, update

pytestmark = [pytest.mark.browser, pytest.mark.integration]


@pytest.fixture
def page(browser):
    opened = browser.new_page()
    yield opened
    opened.close()


def test_a_finished_round_shows_without_a_reload(page, home, address):
    page.goto(entrance_to(f"{address}/cohorts/0.1", home))
    page.wait_for_selector("#line[data-state=live]", timeout=30_000)
    store = home.open_store()
    finish_round(store, "0.1", 201, 0.9876)
    store.close()
    page.wait_for_selector("dd:has-text('98.8')", timeout=30_000)


def test_an_arrival_shows_in_the_round_in_progress(page, home, address):
    page.goto(entrance_to(f"{address}/cohorts/0.0.1", home))
    page.wait_for_selector("td:has-text('3 of 5 needed')", timeout=30_000)
    store = home.open_store()
    task = next(each for each in store.tasks("0.0.1") if each.state is TaskState.OUT)
    last = store.last_receipt(enrolled(task.device).ledger_key)
    sequence = 1 if last is None else last.sequence + 1
    assert store.accept([update(task.device, task.task, sequence, last)], 1.0) == [True]
    store.close()
    page.wait_for_selector("td:has-text('4 of 5 needed')", timeout=30_000)


def test_a_split_is_told_to_screen_readers(page, home, address):
    page.goto(entrance_to(address, home))
    page.wait_for_selector("#line[data-state=live]", timeout=30_000)
    store = home.open_store()
    store.note(Happening("split", 1.0, "0.1", {"children": ["0.1.2", "0.1.3"], "why": "they differ"}))
    store.close()
    page.wait_for_selector("#told:has-text('Cohort 0.1 has split.')", state="attached", timeout=30_000)


def test_a_lost_connection_says_so_and_is_found_again(page, tmp_path, pictures):
    home = Home.create(tmp_path / "f", f"[listen]\nstatus = '127.0.0.1:{free_port()}'\n")
    with observed(home) as (url, process):
        page.goto(entrance_to(url, home))
        page.wait_for_selector("text=The server is not running", timeout=30_000)
        process.terminate()
        process.wait(30)
        page.wait_for_selector("#connection:has-text('Connection lost')", timeout=30_000)
        page.wait_for_selector("#told:has-text('is lost')", state="attached")
        page.screenshot(path=pictures / "dashboard-lost-light-wide.png")
    with observed(home):
        page.wait_for_selector("#line[data-state='live'], #line[data-state='ill']", timeout=60_000)
        page.wait_for_selector("#told:has-text('is back')", state="attached")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/", "No round has been opened yet"),
        ("/", "No model has been tested yet"),
        ("/devices", "No device yet"),
        ("/privacy", "No device has released anything yet"),
        ("/health", "supervisor has published nothing"),
    ],
)
def test_an_empty_federation_says_what_is_missing(page, empty, pictures, path, says):
    url, home = empty
    page.goto(entrance_to(url + path, home))
    page.wait_for_selector(f"main :text('{says}')", timeout=30_000)
    name = path.strip("/") or "federation"
    page.screenshot(path=pictures / f"dashboard-{name}-empty-light-wide.png", full_page=True)


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    settings = f"[listen]\nstatus = '127.0.0.1:{free_port()}'\n"
    home = Home.create(tmp_path_factory.mktemp("empty") / "f", settings)
    with observed(home) as (url, _):
        yield url, home


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    """A federation whose status port is open to other machines, and its token."""
    home = Home.create(tmp_path_factory.mktemp("far") / "f", f"[listen]\nstatus = '0.0.0.0:{free_port()}'\n")
    with observed(home) as (url, _):
        yield url, read_token(home.secrets)


def test_a_stranger_meets_a_door(page, far, pictures):
    url, token = far
    page.goto(url)
    page.wait_for_selector("text=A token is needed", timeout=30_000)
    page.screenshot(path=pictures / "dashboard-door-light-wide.png")
    page.fill("#token", "a guess")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=This is not the token.")
    page.fill("#token", token)
    page.keyboard.press("Enter")
    page.wait_for_selector("text=No round has been opened yet", timeout=30_000)


def test_the_printed_address_opens_and_the_token_leaves_it(page, far):
    url, token = far
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{url}/#token={token}")
    page.wait_for_selector("text=No round has been opened yet", timeout=30_000)
    assert token not in page.url
    assert not any(token in each for each in asked)
    assert token not in page.evaluate("document.cookie + JSON.stringify({ ...localStorage, ...sessionStorage })")
