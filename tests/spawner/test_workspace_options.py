"""What may be asked for when a workspace is opened, from the form and from JSON, and the sentences for the rest."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hotdesk_api.errors import Invalid, Refused
from hotdesk_api.units import NAME_MAX, NAME_PATTERN
from hotdesk_spawner import options
from hotdesk_spawner.options import Wish
from hypothesis import given
from hypothesis import strategies as st

MINE = ["team-a", "team-b"]


def read(**wish: Any) -> Wish:
    return options.read({"project": "team-a"} | wish, projects=MINE)


@pytest.mark.parametrize(
    ("form", "wish"),
    [
        ({"gpu_mode": "none"}, Wish("team-a")),
        ({"gpu_mode": "fraction", "gpu_fraction": "0.35", "gpus": "2"}, Wish("team-a", gpu_millis=350)),
        ({"gpu_mode": "whole", "gpu_fraction": "0.35", "gpus": "2"}, Wish("team-a", gpu_millis=2000)),
        ({"gpu_mode": "memory", "gpu_memory": "8G"}, Wish("team-a", gpu_memory_mib=8192)),
        ({"gpu_mode": "none", "cpu": "500m", "memory": "2G"}, Wish("team-a", cpu_millis=500, memory_mib=2048)),
        ({"gpu_mode": "none", "preemptible": "on"}, Wish("team-a", preemptible=True)),
    ],
)
def test_the_form_says_the_same_as_json(form: dict[str, str], wish: Wish) -> None:
    fields = {name: [value] for name, value in ({"project": "team-a", "_xsrf": "x"} | form).items()}
    assert options.read(options.from_form(fields), projects=MINE) == wish


@pytest.mark.parametrize(
    ("form", "example"),
    [({"gpu_mode": "memory", "gpu_memory": " "}, "8G"), ({"gpu_mode": "whole", "gpus": ""}, "1"), ({"gpu_mode": "fraction"}, "0.5")],
)
def test_a_gpu_without_an_amount_is_asked_for_again_and_never_taken_for_none(form: dict[str, str], example: str) -> None:
    with pytest.raises(Invalid, match=rf"How much GPU is not said\. For example {example}; or choose None\."):
        options.from_form({name: [value] for name, value in ({"project": "team-a"} | form).items()})


def test_a_link_with_options_needs_no_form() -> None:
    assert options.read(options.from_form({"project": ["team-b"], "gpu": ["0.5"]}), projects=MINE) == Wish("team-b", gpu_millis=500)


def test_jupyterhub_5_may_nest_the_options_one_level_deeper() -> None:
    assert options.read({"user_options": {"project": "team-a", "gpu": 1}}, projects=MINE) == Wish("team-a", gpu_millis=1000)


def test_the_only_project_need_not_be_named_but_one_of_several_must() -> None:
    assert options.read({}, projects=["team-a"]) == Wish("team-a")
    with pytest.raises(Invalid, match=r"The project is missing\. Choose one of team-a, team-b"):
        options.read({}, projects=MINE)


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"project": "team-x"}, "team-x is not a project of yours. Choose one of team-a, team-b"),
        ({"gpu": "1.5"}, "GPU 1.5: above one GPU only whole numbers can be asked for. Ask for 1 or 2"),
        ({"gpu": "-1"}, "cannot ask for less than no GPU"),
        ({"gpu": "nan"}, "not a number of GPUs"),
        ({"gpu": 0.1234}, "more than three decimals"),
        ({"gpu": "1", "gpu_memory": "8G"}, "gpu and gpu_memory were both given"),
        ({"gpu_memory": "much"}, "GPU memory much is not an amount of memory"),
        ({"cpu": "many"}, "CPU many is not a number of CPU cores"),
        ({"memory": "0"}, "below one MiB"),
        ({"preemptible": "maybe"}, "neither true nor false"),
        ({"gpus": "1"}, "A workspace has no option gpus. The options are project, gpu, "),
        ({"gpu": ["1", "2"]}, "gpu must be a text or a number, not list"),
        ({"gpu": {"a": 1}}, "gpu must be a text or a number, not dict"),
        ({"gpu": True}, "not bool"),
    ],
)
def test_a_wrong_wish_is_answered_with_what_would_work(wish: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Invalid, match=re.escape(sentence)):
        read(**wish)


def test_who_is_in_no_project_is_told_whom_to_ask() -> None:
    with pytest.raises(Refused, match="You are in no project"):
        options.read({"gpu": "1"}, projects=[])


def test_the_spec_sets_only_what_was_said() -> None:
    spec = options.spec_of(read(gpu="0.5"), user="alice", server="")
    assert spec.model_dump(exclude_unset=True) == {
        "name": "workspace-alice",
        "project": "team-a",
        "kind": "workspace",
        "owner": "alice",
        "server_name": "",
        "gpu_millis": 500,
    }
    assert options.spec_of(read(preemptible=True), user="alice", server="").preemptible is True


def test_plain_names_stay_readable() -> None:
    assert options.workspace_name("alice", "") == "workspace-alice"
    assert options.workspace_name("alice", "exp-1") == "workspace-alice-exp-1"


@given(st.text(min_size=1, max_size=80), st.text(max_size=80))
def test_every_name_is_dns_1035(user: str, server: str) -> None:
    name = options.workspace_name(user, server)
    assert re.match(NAME_PATTERN, name)
    assert len(name) <= NAME_MAX


_NAMES = st.text(alphabet="ab-.@A", min_size=0, max_size=6)


@given(_NAMES.filter(bool), _NAMES, _NAMES.filter(bool), _NAMES)
def test_two_servers_never_share_a_name(user: str, server: str, other_user: str, other_server: str) -> None:
    same = options.workspace_name(user, server) == options.workspace_name(other_user, other_server)
    assert same == ((user, server) == (other_user, other_server))
