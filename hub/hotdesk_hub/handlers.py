"""The hub's own extra addresses: what the workspace form asks while somebody fills it in."""

from __future__ import annotations

from typing import Any

from hotdesk_api.errors import HotdeskError
from jupyterhub.handlers import BaseHandler
from tornado import web


class ExplainHandler(BaseHandler):  # type: ignore[misc]  # JupyterHub ships no types
    """GET /hub/hotdesk/explain?<the form's fields>&user=NAME: a plan for that wish. It asks the scheduler on the person's behalf."""

    @web.authenticated
    async def get(self) -> None:
        fields = {name: [value.decode("utf8", "replace") for value in values] for name, values in self.request.query_arguments.items()}
        user = self._whose((fields.pop("user", None) or [""])[0])
        answer: dict[str, Any]
        try:
            answer = await user.spawner.explain(fields)
        except HotdeskError as error:
            answer = {"problem": str(error)}
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.finish(answer)

    def _whose(self, name: str) -> Any:
        """Oneself, or for an admin anybody. Raises 404 for everything else, as if nobody was called that."""
        if not name or name == self.current_user.name:
            return self.current_user
        user = self.find_user(name) if self.current_user.admin else None
        if user is None:
            raise web.HTTPError(404, "No such user")
        return user


HANDLERS = [(r"/hotdesk/explain", ExplainHandler)]
