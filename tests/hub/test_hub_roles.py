"""Roles and scopes are least: what is there is used, what is used is there."""

from __future__ import annotations

from hotdesk_hub import roles


def held(name: str) -> set[str]:
    return next(set(role["scopes"]) for role in roles.roles(["admin"]) if role["name"] == name)


def test_the_scopes_are_a_ladder() -> None:
    assert roles.CUSTOM_SCOPES[roles.ADMIN]["subscopes"] == [roles.SUBMIT]
    assert roles.CUSTOM_SCOPES[roles.SUBMIT]["subscopes"] == [roles.READ]
    assert "subscopes" not in roles.CUSTOM_SCOPES[roles.HOST]


def test_the_roles_hold_exactly_this() -> None:
    assert held("user") == {"self", roles.ACCESS, roles.SUBMIT}
    assert held("hotdesk-admin") == {roles.ACCESS, roles.ADMIN}
    assert held("hotdesk-scheduler") == {"list:users", "read:servers", "read:users:groups", "delete:servers"}
    assert held("hotdesk-spawner") == {roles.ACCESS, roles.HOST}


def test_every_custom_scope_is_held_by_somebody_and_described() -> None:
    everything = set().union(*(role["scopes"] for role in roles.roles(["admin"])))
    for scope, definition in roles.CUSTOM_SCOPES.items():
        below = {lower for other in roles.CUSTOM_SCOPES.values() for lower in other.get("subscopes", [])}
        assert scope in everything | below
        assert definition["description"]


def test_a_notebook_may_act_on_workloads_and_nothing_else() -> None:
    for scope in roles.NOTEBOOK_SCOPES:
        assert scope in {roles.ACCESS, roles.SUBMIT, roles.ADMIN} or scope.endswith(("!user", "!server"))
    assert roles.HOST not in roles.NOTEBOOK_SCOPES
