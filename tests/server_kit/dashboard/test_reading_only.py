"""Whatever is asked of the dashboard, the store stays as it was, and browsers are told to keep to this server."""

from __future__ import annotations

import sqlite3

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from server_kit.dashboard.reading_only import HEADERS
from server_kit.dashboard.routes import STATIC
from server_kit.store.protocol import Happening
from tests.server_kit.observer.asking import ask

PATHS = [
    *("/", "/cohorts/0.1", "/devices", "/privacy", "/health", "/session", "/static/app.js", "/nowhere"),
    *("/api/overview", "/api/tracks", "/api/cohorts/0.1", "/api/cohorts/9", "/api/devices?state=away&page=2"),
    *("/api/privacy", "/api/health", "/metrics", "/healthz", "/readyz"),
]
WRITING = ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"]


def content(home) -> str:
    """Everything in the database but leases, which the daemon renews meanwhile."""
    with sqlite3.connect(f"file:{home.directory / 'covey.db'}?mode=ro", uri=True) as database:
        return "\n".join(line for line in database.iterdump() if "leases" not in line)


def changes_made(home, app) -> bool:
    before = content(home)
    for path in PATHS:
        for method in ("GET", "HEAD", *WRITING):
            ask(app, path, method=method)
    return content(home) != before


def test_nothing_changes_the_store(home, app):
    assert not changes_made(home, app)


def test_a_page_that_writes_would_be_caught(home):
    def note(_: object) -> Response:
        store = home.open_store()
        store.note(Happening("looked", 0.0))
        store.close()
        return Response()

    assert changes_made(home, Starlette(routes=[Route("/devices", note)]))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", WRITING)
def test_everything_but_reading_is_refused(app, path, method):
    reply = ask(app, path, method=method)
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", PATHS)
def test_a_head_is_answered_as_a_get_without_a_body(app, path):
    assert ask(app, path, method="HEAD").status == ask(app, path).status


@pytest.mark.parametrize("path", [*PATHS, "/api/overview"])
def test_browsers_are_told_to_keep_to_this_server(app, path):
    headers = ask(app, path).headers
    assert {name.lower(): value for name, value in HEADERS.items()}.items() <= headers.items()


def test_whoever_is_refused_is_told_so_too(app):
    reply = ask(app.app, "/api/overview")
    assert (reply.status, reply.headers["content-security-policy"]) == (401, HEADERS["Content-Security-Policy"])


def test_no_script_or_style_is_in_the_page_or_from_elsewhere():
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert "style=" not in page
    assert "<style" not in page
    ours = ('<script src="/static/', '<script type="module" src="/static/')
    assert page.count("<script") == sum(map(page.count, ours))
    for path in STATIC.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, path.name
        assert "https:" not in text, path.name
        assert "innerHTML" not in text, path.name


@pytest.mark.parametrize("path", ["/static/../routes.py", "/static/%2e%2e/routes.py", "/static/", "/static"])
def test_no_file_but_the_page_is_served(app, path):
    assert ask(app, path).status in {307, 404}
