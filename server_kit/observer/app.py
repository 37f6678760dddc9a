"""The observer's pages: `/healthz`, `/readyz`, `/metrics` and the dashboard.

Everything but health asks for a token (`dashboard.access`), on loopback too. So a page in somebody's browser that makes
it ask under a name of its own (DNS rebinding) reads nothing: it has neither token nor cookie.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from server_kit.dashboard import Guard, ReadingOnly, Sight, access_of, dashboard_routes
from server_kit.observer.exposition import Exposed
from server_kit.observer.health import Health, is_alive, is_ready
from server_kit.observer.store_reader import StoreReader
from server_kit.snapshots import read_snapshots
from server_kit.steady_clock import steady_seconds

if TYPE_CHECKING:
    from starlette.requests import Request

    from server_kit.daemon.federation_home import Home

_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_NO_STORE = {"Cache-Control": "no-store"}


def create_app(home: Home, reader: StoreReader | None = None) -> Starlette:
    """The observer of a federation."""
    reader, access = reader or StoreReader(home), access_of(home)

    # Plain functions: they read files and a database, so Starlette runs them in threads.
    def answer(request: Request, health: Health) -> Response:
        document: dict[str, Any] = {"ok": health.good}
        if access.allows(request.headers):
            document["faults"] = list(health.faults)
        return JSONResponse(document, status_code=200 if health.good else 503, headers=_NO_STORE)

    def healthz(request: Request) -> Response:
        return answer(request, is_alive(read_snapshots(home.run), time.time()))

    def readyz(request: Request) -> Response:
        facts = reader.facts()
        leases = None if facts is None else facts.leases
        return answer(request, is_ready(read_snapshots(home.run), leases, time.time(), steady_seconds()))

    def metrics(_: Request) -> Response:
        exposed = Exposed(
            snapshots=read_snapshots(home.run),
            facts=reader.facts(),
            spend=reader.spend(),
            policy_epsilon=home.config.policy.epsilon,
            at=time.time(),
        )
        return Response(exposed.text(), media_type=_METRICS, headers=_NO_STORE)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        reader.close()

    own = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]
    routes = [*own, *dashboard_routes(Sight(home, reader), access)]
    return Starlette(routes=routes, middleware=[Middleware(ReadingOnly), Middleware(Guard, access)], lifespan=lifespan)
