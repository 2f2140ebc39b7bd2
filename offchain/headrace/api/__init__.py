"""The control API: FastAPI over the ports. `create_app` makes it, `serve` runs it."""

from headrace.api.app import create_app
from headrace.api.context import ApiContext, ApiLimits, Contracts
from headrace.api.server import bind, serve

__all__ = ["ApiContext", "ApiLimits", "Contracts", "bind", "create_app", "serve"]
