"""Where the dashboard's pages and documents are. All pages are one file; its script reads which one it is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from server_kit.daemon.dashboard_token import read_token
from server_kit.dashboard import views
from server_kit.dashboard.access import Access, refusal
from server_kit.dashboard.cohort_views import one_cohort, side_by_side
from server_kit.dashboard.stream import Streams
from server_kit.errors import SecretUnusable

if TYPE_CHECKING:
    from starlette.requests import Request

    from server_kit.daemon.federation_home import Home
    from server_kit.dashboard.sight import Sight

log = logging.getLogger("covey.server")

STATIC = Path(__file__).parent / "static"
PAGES = ("/", "/cohorts/{cohort}", "/devices", "/privacy", "/health")
_NO_STORE = {"Cache-Control": "no-store"}
_REVALIDATE = {"Cache-Control": "no-cache"}


def access_of(home: Home) -> Access:
    """Who may read this federation."""

    def token() -> str | None:
        try:
            return read_token(home.secrets)
        except SecretUnusable as error:
            log.warning("the dashboard's token cannot be used; nobody is let in with it", extra={"reason": error})
            return None

    return Access(home.config.listen, token)


def dashboard_routes(sight: Sight, access: Access) -> list[BaseRoute]:
    """Pages, documents and the stream."""
    pages = [Route(path, _page, name=path) for path in PAGES]
    documents = [
        _document("/api/overview", lambda _: views.overview(sight)),
        _document("/api/tracks", lambda _: side_by_side(sight)),
        _document("/api/cohorts/{cohort}", lambda request: one_cohort(sight, request.path_params["cohort"])),
        _document("/api/devices", lambda request: views.devices(sight, *_which(request))),
        _document("/api/privacy", lambda _: views.privacy(sight)),
        _document("/api/health", lambda _: views.health(sight)),
    ]
    static = Mount("/static", _Static(directory=STATIC), name="static")
    return [
        *pages,
        *documents,
        Route("/api/events", Streams(sight).answer),
        Route("/session", _session(access)),
        static,
    ]


class _Static(StaticFiles):
    """Browsers ask each time whether a file has changed: a new version of the server is seen at once."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_REVALIDATE)
        return response


def _page(_: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers=_REVALIDATE)


def _document(path: str, read: Callable[[Request], dict[str, Any] | None]) -> Route:
    # A plain function: it reads files and a database, so Starlette runs it in a thread.
    def answer(request: Request) -> Response:
        found = read(request)
        if found is None:
            return JSONResponse({"error": "there is no such thing, or the store cannot be read"}, 404, _NO_STORE)
        return JSONResponse(found, headers=_NO_STORE)

    return Route(path, answer, name=path)


def _session(access: Access) -> Callable[[Request], Response]:
    """A bearer's token becomes a cookie, because the stream of a browser can carry nothing else."""

    def answer(request: Request) -> Response:
        if not access.allows(request.headers):
            return refusal()
        response = Response(status_code=204, headers=_NO_STORE)
        response.set_cookie(
            access.cookie,
            access.token() or "",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    return answer


def _which(request: Request) -> tuple[str, int]:
    state, page = request.query_params.get("state", ""), request.query_params.get("page", "1")
    return (
        state if state in views.DEVICE_STATES else "",
        int(page) if page.isdecimal() and len(page) < 9 else 1,
    )
