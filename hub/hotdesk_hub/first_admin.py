"""ADMIN, the administrator of the first log-in, administers only while the configuration names him.

JupyterHub gives the right to whom its configuration names and never takes it back: at another log-in anybody may be called that.
"""

from __future__ import annotations

from typing import Any

from jupyterhub import orm
from sqlalchemy import create_engine, delete, inspect, select, update
from traitlets.config.loader import LazyConfigValue

from hotdesk_hub.config import ADMIN


def take_back(c: Any) -> None:
    """Before JupyterHub opens its database, which then gives it again to whom `c` names."""
    options = c.JupyterHub.get("db_kwargs", {})
    url: str = c.JupyterHub.db_url
    url = url if "://" in url else f"sqlite:///{url}"  # JupyterHub takes the name of a file too
    engine = create_engine(url, **(options.get_value({}) if isinstance(options, LazyConfigValue) else options))
    users, roles, held = (orm.Base.metadata.tables[name] for name in ("users", "roles", "user_role_map"))
    with engine.begin() as database:
        if not inspect(database).has_table(held.name):
            return  # the first start
        database.execute(update(users).where(users.c.name == ADMIN).values(admin=False))
        whose = held.c.user_id.in_(select(users.c.id).where(users.c.name == ADMIN))
        database.execute(delete(held).where(whose, held.c.role_id.in_(select(roles.c.id).where(roles.c.name == "admin"))))
    engine.dispose()
