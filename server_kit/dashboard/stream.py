"""Server-sent events: how the federation stands, each second in which that has changed, and what has happened.

Each happening carries its number as the event's id, so a browser that was cut off says which it has seen last and
gets the rest. One that missed very many is told to read everything again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse

from server_kit.dashboard.views import overview

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from server_kit.dashboard.sight import Sight
    from server_kit.store.protocol import Happening

LOOK_SECONDS = 1.0
BEAT_SECONDS = 10.0
MOST_STREAMS = 32
_MOST_MISSED = 500
_RETRY_MILLISECONDS = 2000
_NOT_NEWS = ("at",)


class Streams:
    """All that are open; no more than a few, since each holds a connection."""

    def __init__(self, sight: Sight) -> None:
        self._sight = sight
        self._open = 0

    async def answer(self, request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if self._open >= MOST_STREAMS:
            told = {"error": f"{MOST_STREAMS} pages follow already; close one, or look again in a minute"}
            return JSONResponse(told, 503, {"Retry-After": "60"})
        # Counted here, before anything is read: a stream that is only about to begin holds its place already.
        self._open += 1
        return _Counted(
            self._events(_last_seen(request)),
            self._close,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    def _close(self) -> None:
        self._open -= 1

    async def _events(self, after: int | None) -> AsyncIterator[str]:
        yield f"retry: {_RETRY_MILLISECONDS}\n\n"
        last, silent_seconds = None, 0.0
        while True:
            now = await run_in_threadpool(overview, self._sight)
            news = {name: value for name, value in now.items() if name not in _NOT_NEWS}
            if news != last or silent_seconds >= BEAT_SECONDS:
                last, silent_seconds = news, 0.0
                yield event("standing", now)
            after = now["read_to"] if after is None else after
            if now["read_to"] > after:
                after, told = await run_in_threadpool(self._missed, after, now["read_to"])
                for text in told:
                    yield text
            await asyncio.sleep(LOOK_SECONDS)
            silent_seconds += LOOK_SECONDS

    def _missed(self, after: int, read_to: int) -> tuple[int, list[str]]:
        """What has happened since, as events, and up to where."""
        if read_to - after > _MOST_MISSED:
            return read_to, [event("again", {"read_to": read_to}, number=read_to)]
        found = self._sight.happenings(after, _MOST_MISSED)
        if not found:
            return after, []
        return found[-1].number, [event("happening", _told(each), each.number) for each in found]


class _Counted(StreamingResponse):
    """A stream that says when it is over, whether or not it had begun."""

    def __init__(self, content: AsyncIterator[str], close: Callable[[], None], **more: Any) -> None:
        super().__init__(content, **more)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


def event(kind: str, document: Any, number: int | None = None) -> str:
    """One event in the form of the standard; JSON has no line breaks of its own."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return ("" if number is None else f"id: {number}\n") + f"event: {kind}\ndata: {text}\n\n"


def _told(happening: Happening) -> dict[str, Any]:
    return {"number": happening.number, "kind": happening.kind, "at": happening.at_seconds, "cohort": happening.cohort}


def _last_seen(request: Request) -> int | None:
    """The number of the last event that this browser has seen; None if it has seen none."""
    told = request.headers.get("last-event-id") or request.query_params.get("after") or ""
    return int(told) if told.isdecimal() and len(told) <= 18 else None
