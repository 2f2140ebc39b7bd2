"""Counts calls by route and status."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.ports import Metrics

UNROUTED = "none"  # a path that no route has must not become a label


class CallCounter:
    """Counts each response in `headrace_http_requests_total`."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on and count what came of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", UNROUTED)
                self._metrics.count("headrace_http_requests_total", route=route, status=str(message["status"]))
            await send(message)

        await self._app(scope, receive, counted)
