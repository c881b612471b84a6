"""Whatever arrives, the answer is a model or a sentence: never a failure of ours."""

from __future__ import annotations

import json
from typing import Any

import desks
import pytest
from hotdesk_api.errors import HotdeskError, Invalid, problem
from hotdesk_api.models import Progress, ProjectSpec, WorkloadSpec
from hotdesk_scheduler.rest import wire
from hotdesk_scheduler.service import specs
from hypothesis import given
from hypothesis import strategies as st

_TEXTS = st.text(max_size=20) | st.sampled_from(["team-a", "python", "train", "interactive", "\0", "\ud800", "x" * 70, "../a", "a=b"])
_NUMBERS = st.integers() | st.floats(allow_nan=True) | st.sampled_from([0, 1, -1, 500, 1000, 1500, 2**63, 10**40])
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)
_SNAPSHOT = desks.fake_engine().snapshot()


def bodies(model: Any) -> st.SearchStrategy[dict[str, Any]]:
    right: dict[str, Any] = {"project": "team-a", "name": "job", "image": "python"}
    members = dict.fromkeys(model.model_fields, _VALUES)
    return st.fixed_dictionaries({}, optional=members).map(
        lambda found: {name: value for name, value in right.items() if name in members} | found
    )


@given(bodies(WorkloadSpec))
def test_any_submission_becomes_a_workload_or_a_sentence(body: dict[str, Any]) -> None:
    try:
        spec = wire.parse(WorkloadSpec, json.dumps(body).encode())
        specs.check(spec, _SNAPSHOT)
        workload = specs.workload_of(spec, workload_id="id", name="n", user="u", now=0.0)
    except HotdeskError as error:
        json.dumps(problem(error)).encode()
    else:
        assert 1 <= len(workload.pods) <= specs.MAX_PODS
        assert 1 <= workload.min_pods <= len(workload.pods)


@given(bodies(ProjectSpec) | bodies(Progress))
def test_any_other_body_becomes_a_model_or_a_sentence(body: dict[str, Any]) -> None:
    for model in (ProjectSpec, Progress):
        try:
            wire.parse(model, json.dumps(body).encode())
        except HotdeskError as error:
            json.dumps(problem(error)).encode()


@given(st.binary(max_size=200).filter(lambda body: b"project" not in body))
def test_any_bytes_become_a_sentence(body: bytes) -> None:
    with pytest.raises(Invalid):
        wire.parse(WorkloadSpec, body)
