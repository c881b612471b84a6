"""What an informer believes of news that come late, or not one by one."""

from __future__ import annotations

from typing import Any, cast

from hotdesk_scheduler.engines.kubernetes.api import Api, Json
from hotdesk_scheduler.engines.kubernetes.watch import Informer, Key


def pod(name: str, version: int, uid: str = "u") -> Json:
    return {"metadata": {"namespace": "s", "name": name, "uid": uid, "resourceVersion": str(version)}}


class Server:
    """Has a list and the version that it is of."""

    def __init__(self) -> None:
        self.items: list[Json] = []
        self.version = 100

    async def get(self, path: str, **params: Any) -> Json:
        return {"items": list(self.items), "metadata": {"resourceVersion": str(self.version)}}


def informer(server: Server) -> tuple[Informer[str], list[Key]]:
    there: list[Key] = []

    def tell(key: Key, new: str | None, old: str | None) -> None:
        if new is None:
            there.remove(key)
        elif old is None:
            there.append(key)

    return Informer(cast(Api, server), "/pods", lambda item: str(item["metadata"]["name"]), tell), there


async def test_an_answer_that_comes_after_a_list_without_its_object_is_about_one_that_is_gone() -> None:
    """Made and deleted while the watch was broken: nothing would ever tell of its end."""
    found, there = informer(Server())
    await found.list()
    found.put(pod("made-before-the-list", 90))
    found.put(pod("made-after-the-list", 110))
    assert there == [("s", "made-after-the-list")]


async def test_an_answer_newer_than_what_a_list_said_counts_and_an_older_one_does_not() -> None:
    server = Server()
    server.items = [pod("a", 95)]
    found, there = informer(server)
    await found.list()
    found.put(pod("a", 94))
    assert there == [("s", "a")]
    found.put(pod("a", 97))
    server.items, server.version = [], 120
    await found.list()
    assert there == []


async def test_what_is_looked_at_again_counts_though_it_is_older_than_the_last_list() -> None:
    server = Server()
    server.items = [pod("a", 95)]
    wanted: set[str] = set()
    there: list[Key] = []
    found = Informer(
        cast(Api, server),
        "/pods",
        lambda item: "a" if item["metadata"]["name"] in wanted else None,
        lambda key, new, old: there.append(key),
    )
    await found.list()
    assert there == []
    wanted.add("a")
    found.again()
    await found.list()
    await found.stop()
    assert there == [("s", "a")]


async def test_of_one_that_was_made_again_under_its_name_while_nobody_watched_the_end_is_told_first() -> None:
    server = Server()
    server.items = [pod("a", 95, "first")]
    told: list[tuple[str | None, str | None]] = []
    found = Informer(cast(Api, server), "/pods", lambda item: str(item["metadata"]["uid"]), lambda key, new, old: told.append((new, old)))
    await found.list()
    server.items, server.version = [pod("a", 117, "second")], 120
    await found.list()
    assert told == [("first", None), (None, "first"), ("second", None)]
