"""The handler all others inherit from: body limit, token, problems."""

from __future__ import annotations

import json
import logging
from typing import Any, ClassVar, TypeVar

from hotdesk_api.errors import HotdeskError, Invalid, NotFound, TooLarge, Unauthorized, Unavailable, problem
from pydantic import BaseModel
from tornado import web

from hotdesk_scheduler.rest import wire
from hotdesk_scheduler.rest.auth import Authenticator, bearer
from hotdesk_scheduler.service.callers import Caller
from hotdesk_scheduler.service.desk import Desk

log = logging.getLogger(__name__)
M = TypeVar("M", bound=BaseModel)


class NotAllowed(HotdeskError):
    """405: the path is right, the method is not."""

    status = 405
    code = "method_not_allowed"


@web.stream_request_body
class Handler(web.RequestHandler):
    """`self.caller` is set before the method runs, unless `public`. Nothing here reads cookies."""

    public: ClassVar[bool] = False
    SUPPORTED_METHODS = ("GET", "HEAD", "POST", "DELETE", "PATCH", "PUT", "OPTIONS")

    def initialize(self, desk: Desk, authenticator: Authenticator) -> None:
        self.desk = desk
        self.authenticator = authenticator
        self.caller = Caller("")
        self._body = bytearray()
        self._body_bytes = 0
        self._prepared = False

    def set_default_headers(self) -> None:
        self.set_header("Server", "hotdesk")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")

    def compute_etag(self) -> None:
        """Answers are live; nobody asks for them conditionally."""

    def data_received(self, chunk: bytes) -> None:
        """Bodies above the limit are read to their end without being kept, so that the answer reaches its sender."""
        self._body_bytes += len(chunk)
        if self._body_bytes <= wire.MAX_BODY_BYTES:
            self._body += chunk

    async def prepare(self) -> None:
        if not self.public:
            self.caller = await self.identify()
        self._prepared = True

    def token(self) -> str:
        """`Bearer X` or `token X`. Raises Unauthorized."""
        return bearer(self.request.headers.get("Authorization", ""))

    async def identify(self) -> Caller:
        try:
            return await self.authenticator.caller(self.token())
        except Unauthorized as error:
            self.desk.recorder.refused_login(str(self.request.remote_ip), error.sentence)
            raise

    def parsed(self, model: type[M]) -> M:
        """The body as a model. Raises TooLarge, Invalid."""
        if self._body_bytes > wire.MAX_BODY_BYTES:
            raise TooLarge(
                f"The request has {self._body_bytes:,} bytes; at most {wire.MAX_BODY_BYTES:,} are taken.",
                field="body",
                limit=wire.MAX_BODY_BYTES,
                value=self._body_bytes,
                next_step="Put the data into a file and pass its path.",
            )
        return wire.parse(model, bytes(self._body))

    def query(self, name: str) -> str | None:
        try:
            return self.get_query_argument(name, None)
        except web.HTTPError as error:
            raise Invalid(f"The query's {name} is not readable text.", field=name) from error

    def answer(self, model: BaseModel, status: int = 200) -> None:
        self.answer_json(model.model_dump_json().encode(), status)

    def answer_json(self, content: bytes, status: int = 200) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(content)

    def no_content(self) -> None:
        self.set_status(204)
        self.finish()

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        known = as_problem(error, status_code, self.request.method or "", self.request.path)
        self.set_status(known.status)
        self.set_header("Content-Type", "application/problem+json")
        if isinstance(known, Unauthorized):
            self.set_header("WWW-Authenticate", 'Bearer realm="hotdesk"')
        if not self._prepared:
            self.set_header("Connection", "close")  # tornado closes then; who is not told (the proxy!) sends the next request into the void
        self.finish(json.dumps(problem(known)))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if isinstance(value, HotdeskError | web.HTTPError):
            return  # An answer, not a failure of this program.
        log.error("request.failed method=%s path=%s", self.request.method, self.request.path, exc_info=(typ, value, tb))

    def on_finish(self) -> None:
        self.desk.metrics.observe_request(self.request.method or "", self.get_status())


def as_problem(error: BaseException | None, status: int, method: str, path: str) -> HotdeskError:
    """What to tell the caller; nothing of the inside when it is our own failure."""
    if isinstance(error, HotdeskError):
        return error
    if isinstance(error, OSError) and error.errno == 28:
        return Unavailable("The disk with Hotdesk's state is full, so this could not be done.", next_step="Ask an admin to make room.")
    if status == 405:
        return NotAllowed(f"{path} does not take {method}.", field="method", value=method)
    if status == 404:
        return NotFound(f"There is no {path} here.", next_step="/openapi.json lists what there is.")
    if status == 400:
        return Invalid("The request could not be read.")
    failed = HotdeskError("The scheduler failed to answer this.", next_step="Its log says why; running jobs are not affected.")
    return failed


class Nowhere(Handler):
    """Any path that is not listed."""

    public = True

    async def prepare(self) -> None:
        raise NotFound(f"There is no {self.request.path} here.", next_step="/openapi.json lists what there is.")
