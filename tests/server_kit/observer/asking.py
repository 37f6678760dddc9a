"""Asks an ASGI application over HTTP, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    app: Any, path: str, host: str = "localhost", *, method: str = "GET", headers: Mapping[str, str] | None = None
) -> Reply:
    return asyncio.run(_ask(app, path, {"host": host, **(headers or {})}, method))


def scope_of(path: str, headers: Mapping[str, str], method: str = "GET") -> dict[str, Any]:
    path, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "server": ("127.0.0.1", 8480),
        "client": ("127.0.0.1", 1),
    }


async def _ask(app: Any, path: str, headers: Mapping[str, str], method: str) -> Reply:
    sent: list[dict[str, Any]] = []
    body = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not body:
            await asyncio.Event().wait()  # this caller does not hang up
        return body.pop()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope_of(path, headers, method), receive, send)
    given = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Reply(sent[0]["status"], given, b"".join(message.get("body", b"") for message in sent[1:]))
