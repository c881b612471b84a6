"""The tornado application and its socket."""

from __future__ import annotations

import asyncio
import errno
import re
from typing import Any

from hotdesk_api.errors import Unavailable
from tornado import httpserver, netutil, web

from hotdesk_scheduler.rest import routes, wire
from hotdesk_scheduler.rest.auth import Authenticator
from hotdesk_scheduler.rest.base import Nowhere
from hotdesk_scheduler.service.desk import Desk

BIND_S = 20.0
IDLE_S = 3600.0


def make_app(desk: Desk, authenticator: Authenticator, *, prefix: str = "") -> web.Application:
    """`prefix` is JUPYTERHUB_SERVICE_PREFIX, such as `/services/hotdesk/`."""
    given: dict[str, Any] = {"desk": desk, "authenticator": authenticator}
    below = re.escape(prefix.rstrip("/"))
    handlers = [(path, handler, given) for path, handler in (*routes.ROOT, *routes.V1)]
    if below:
        handlers += [(below + path, handler, given) for path, handler in routes.V1]
    return web.Application(
        handlers,
        default_handler_class=Nowhere,
        default_handler_args=given,
        log_function=lambda handler: None,
        websocket_ping_interval=30,
        websocket_max_message_size=wire.MAX_BODY_BYTES,
    )


class _Waiting(web.RequestHandler):
    """Alive, and not the one to ask."""

    def prepare(self) -> None:
        healthy = self.request.path == "/healthz"
        self.set_status(200 if healthy else 503)
        self.finish("waiting for its turn\n")


def make_waiting_app() -> web.Application:
    """What a scheduler answers while another one leads."""
    return web.Application([(r"/.*", _Waiting)], log_function=lambda handler: None)


async def listen(app: web.Application, host: str, port: int) -> tuple[httpserver.HTTPServer, int]:
    """Serve on the port (0: any), waiting some seconds for one that is just leaving it. Returns the server and its port."""
    deadline = asyncio.get_running_loop().time() + BIND_S
    while True:
        try:
            sockets = netutil.bind_sockets(port, host, reuse_port=False)
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE or asyncio.get_running_loop().time() > deadline:
                raise Unavailable(
                    f"Port {port} on {host} cannot be listened on: {error.strerror}.",
                    next_step="Choose another with --port, or end what holds it.",
                ) from error
            await asyncio.sleep(0.25)
    server = httpserver.HTTPServer(
        app, max_buffer_size=4 * 1024 * 1024, max_body_size=64 * 1024 * 1024, idle_connection_timeout=IDLE_S, xheaders=False
    )
    server.add_sockets(sockets)
    return server, int(sockets[0].getsockname()[1])
