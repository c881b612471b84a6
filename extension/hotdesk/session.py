"""One sitting at Hotdesk: settings, client, the project meant. Shared by the command line, the magics and the Python calls."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hotdesk_api.errors import Invalid

from hotdesk import settings

if TYPE_CHECKING:
    from hotdesk_api.client import Client
    from hotdesk_api.models import Me

    from hotdesk.commands.parse import Typed

Ask = Callable[[str, bool], str | None]


def cannot_ask(_prompt: str, _secret: bool) -> str | None:
    """For pipes: nobody is there to answer."""
    return None


class Session:
    """`ask(prompt, secret)` gives what the person typed, None where nobody can be asked; `confirms`: may it ask "are you sure".

    `word` is what the person calls us (`runai`), `now` a clock in epoch seconds, `program` the text of a cell to run.
    """

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        url: str | None = None,
        token: str | None = None,
        ask: Ask = cannot_ask,
        now: Callable[[], float] = time.time,
        program: str | None = None,
        word: str = "runai",
        confirms: bool = True,
    ) -> None:
        self.environment = os.environ if environment is None else environment
        self.url, self.token = url, token
        self.ask, self.now = ask, now
        self.program = program
        self.word = word
        self.confirms = confirms
        self._client: Client | None = None
        self._me: Me | None = None

    @property
    def settings(self) -> settings.Settings:
        return settings.load(self.environment, url=self.url, token=self.token)

    @property
    def client(self) -> Client:
        if self._client is None:
            from hotdesk_api.client import Client  # httpx takes a tenth of a second; not every command talks

            self._client = Client(*self.settings.reachable())
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def me(self) -> Me:
        if self._me is None:
            from hotdesk_api import calls  # pydantic, as above

            self._me = self.client.call(calls.whoami())
        return self._me

    def project(self, flag: str | None = None) -> str:
        """`-p`, or what was chosen, or the workspace's, or the only one there is. Raises Invalid with the choice if it is still open."""
        found = flag or self.settings.project or self.me.default_project
        if found:
            return found
        mine = self.me.projects
        if len(mine) == 1:
            return mine[0]
        if not mine:
            raise Invalid(
                f"{self.me.name} is in no project.",
                field="project",
                next_step="Ask an administrator to add you to the project's group on the hub.",
            )
        raise Invalid(
            f"Which project? {self.me.name} is in {', '.join(mine)}.",
            field="project",
            next_step=f"Choose one: `{self.word} config project {mine[0]}`, or add -p {mine[0]}.",
        )

    def project_in_force(self) -> tuple[str | None, str]:
        """The project commands use when none is named, and where that comes from; (None, "") while it is open."""
        current = self.settings
        if current.project:
            return current.project, f"from {current.project_from}"
        only = self.me.default_project or (self.me.projects[0] if len(self.me.projects) == 1 else None)
        return only, "your only project" if only else ""

    def project_of(self, typed: Typed) -> str:
        return self.project(typed.text("project"))
