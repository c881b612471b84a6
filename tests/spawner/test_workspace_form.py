"""The form's HTML: the person's projects, the last choice, and nothing of what somebody typed as markup."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hotdesk_api.models import Explanation, NodeOut, ProjectOut
from hotdesk_spawner import form


def project(name: str, *, quota_millis: int | None = 4000, used_millis: int = 1500) -> ProjectOut:
    return ProjectOut(
        name=name, gpu_quota_millis=quota_millis, gpu_limit_millis=None, gpu_millis_allocated=used_millis, created_at=datetime.now(UTC)
    )


def node(name: str, model: str = "", memory_mib: int = 0, gpus: int = 4) -> NodeOut:
    counts = ("gpu_millis_allocated", "gpus_free", "cpu_millis", "cpu_millis_allocated", "memory_mib", "memory_mib_allocated")
    rest: dict[str, Any] = dict.fromkeys(counts, 0)
    return NodeOut(name=name, status="Ready", gpus=gpus, gpu_model=model, gpu_memory_mib=memory_mib, simulated=False, **rest)


def html(last: dict[str, Any] | None = None, **more: Any) -> str:
    return form.render([project("team-a"), project("team-b", quota_millis=None)], user="alice", last=last or {}, **more)


def checked(text: str) -> str:
    found = re.search(r'name="gpu_mode"[^>]*value="(\w+)" checked', text)
    assert found
    return found[1]


def test_each_project_shows_its_numbers_even_without_javascript() -> None:
    assert "team-a — quota 4, used 1.5, free 2.5" in html()
    assert "team-b — quota unlimited, used 1.5, free unlimited" in html()


def test_the_last_choice_comes_up_again() -> None:
    text = html({"project": "team-b", "gpu": "0.35", "memory": "2G", "preemptible": True})
    assert '<option value="team-b" selected>' in text
    assert checked(text) == "fraction"
    assert re.search(r'name="gpu_fraction"[^>]*value="0.35"', text)
    assert re.search(r'name="memory"[^>]*value="2G"', text)
    assert re.search(r'name="preemptible"[^>]* checked', text)
    assert checked(html({"gpu": "2"})) == "whole"
    assert checked(html({"gpu": "0"})) == "none"
    assert checked(html({"gpu_memory": "8G"})) == "memory"


@pytest.mark.parametrize("amount", ["", "a few"])
def test_what_was_refused_comes_up_again_as_it_was_typed(amount: str) -> None:
    text = html({"project": "team-b", "gpu_mode": "whole", "gpus": amount, "memory": "much", "preemptible": "on"})
    assert '<option value="team-b" selected>' in text
    assert checked(text) == "whole"
    assert f'value="{amount}"' in next(line for line in text.splitlines() if 'name="gpus"' in line)
    assert re.search(r'name="memory"[^>]*value="much"', text)
    assert re.search(r'name="preemptible"[^>]* checked', text)
    assert not re.search(r'name="preemptible"[^>]* checked', html({"gpu_mode": "none"}))


def test_what_people_typed_is_never_markup() -> None:
    assert "<script>alert" not in html({"memory": '"><script>alert(1)</script>'})


def test_simulated_gpus_are_marked_as_such() -> None:
    assert "SIMULATED" in html(simulated=True)
    assert "SIMULATED" not in html()


def test_without_the_scheduler_the_form_still_opens_and_says_so() -> None:
    text = form.render([], names=["team-a"], user="alice", last={}, problem="The scheduler cannot be reached.")
    assert "The scheduler cannot be reached." in text
    assert '<option value="team-a"' in text


def test_who_is_in_no_project_reads_it_there() -> None:
    assert "You are in no project" in form.render([], user="eve", last={})


def test_a_plan_says_whether_it_starts_now_and_what_would_help_once() -> None:
    waits = Explanation(sentence="team-a has used its quota.", starts_now=False, what_would_help="Ask for 0.5.")
    assert form.plan_in_words(waits) == "Will wait: team-a has used its quota. Ask for 0.5."
    said = Explanation(sentence="team-a has used its quota. Ask for 0.5.", starts_now=False, what_would_help="Ask for 0.5.")
    assert form.plan_in_words(said) == "Will wait: team-a has used its quota. Ask for 0.5."
    assert form.plan_in_words(Explanation(sentence="Starts now on node-1.", starts_now=True)) == "Starts now on node-1."
    soon = Explanation(sentence="It would start on node-1 as soon as room is made: a1 of team-a stops.", starts_now=True)
    assert form.plan_in_words(soon) == soon.sentence


def test_gpus_are_named_as_far_as_the_cluster_names_them() -> None:
    named = html(nodes=[node("node-1", "V100", 32768), node("node-2", "V100", 32768), node("node-3", "T4"), node("node-4", gpus=0)])
    assert "(T4; V100, 32768 MiB)" in named
    unnamed = html(nodes=[node("node-1")])
    assert "MiB" not in unnamed
    assert "<legend>GPU</legend>" in unnamed
