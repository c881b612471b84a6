"""What somebody sent and was refused comes back to that person, to be corrected, and to nobody else."""

from __future__ import annotations

import asyncio

import pytest
from hotdesk_spawner import queued
from jupyterhub import orm
from jupyterhub.spawner import SimpleLocalProcessSpawner
from jupyterhub.user import User
from tornado.web import HTTPError

_SENT = {"project": ["team-a"], "gpu_mode": ["memory"], "gpu_memory": ["plenty"]}


@pytest.fixture
def bob() -> User:
    session = orm.new_session_factory("sqlite:///:memory:")()
    session.add(orm.User(name="bob", _orm_spawners=[orm.Spawner(name="second")]))
    session.commit()
    return User(session.query(orm.User).one(), {"spawner_class": queued(SimpleLocalProcessSpawner)})


async def _send(user: User, server: str) -> None:
    with pytest.raises(HTTPError, match="plenty"):
        user.spawners[server].run_options_from_form(_SENT)


async def _send_and_look(user: User, server: str) -> str:
    """As JupyterHub does it in one request: the page is made by the default server's spawner, whichever was asked for."""
    await _send(user, server)
    return await _look(user)


async def _look(user: User) -> str:
    page: str = await user.spawner.get_options_form()
    return page


@pytest.mark.parametrize("server", ["", "second"])
async def test_a_form_an_admin_sent_for_somebody_comes_back_to_the_admin_alone(bob: User, server: str) -> None:
    """Of the two the hub knows only whose server it is: they are told apart by their requests, also when these overlap or break off."""
    requests = [_send(bob, server), _look(bob), _send_and_look(bob, server), _look(bob)]
    _, before, sent, after = await asyncio.gather(*requests)
    assert ['value="plenty"' in str(page) for page in (before, sent, after)] == [False, True, False]
