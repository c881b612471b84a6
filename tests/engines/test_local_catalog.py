"""Image names: the documented ones run, the unknown are answered with the known; what can never run is refused before it is queued."""

from __future__ import annotations

import platform
import sys
from typing import Any

import pytest
from hotdesk_api.errors import HotdeskError, Invalid, TooLarge
from hotdesk_api.models import WorkloadSpec
from hotdesk_scheduler.core.model import Node
from hotdesk_scheduler.engines.local import catalog, check

NODES = [Node("dgx1-1", gpus=8, node_type="dgx1"), Node("node-1")]


def _spec(image: str = "bash", **values: Any) -> WorkloadSpec:
    return WorkloadSpec.model_validate({"name": "job", "project": "team-a", "image": image, **values})


@pytest.mark.parametrize(
    "image",
    [
        "gcr.io/run-ai-demo/quickstart",
        "gcr.io/run-ai-demo/quickstart:latest",
        "python",
        "python:3",
        f"python:{sys.version_info.major}.{sys.version_info.minor}",
        f"python:{platform.python_version()}-slim",
        "docker.io/library/python",
        "ubuntu",
        "jupyter/base-notebook",
        "quay.io/jupyter/base-notebook",
        "jupyter/scipy-notebook:latest",
    ],
)
def test_documented_images_are_known(image: str) -> None:
    check.check(_spec(image), NODES)


def test_an_unknown_image_is_answered_with_the_known_ones() -> None:
    with pytest.raises(Invalid, match=r"no image nvcr\.io/nvidia/pytorch") as caught:
        check.check(_spec("nvcr.io/nvidia/pytorch:24.01"), NODES)
    assert "gcr.io/run-ai-demo/quickstart" in str(caught.value)


def test_a_slip_of_the_finger_is_answered_with_what_was_meant() -> None:
    with pytest.raises(Invalid, match=r"Did you mean gcr\.io/run-ai-demo/quickstart"):
        check.check(_spec("gcr.io/runai-demo/quickstart"), NODES)


@pytest.mark.parametrize("tag", ["2.7", "3.9", "3.99-slim"])
def test_another_version_of_python_gets_a_sentence_with_the_one_that_is_here(tag: str) -> None:
    with pytest.raises(Invalid, match=platform.python_version()):
        check.check(_spec(f"python:{tag}"), NODES)


def test_the_workspace_image_is_for_workspaces_only() -> None:
    check.check(_spec("", kind="workspace"), NODES)
    with pytest.raises(Invalid):
        check.check(_spec(catalog.WORKSPACE_IMAGE), NODES)
    assert catalog.WORKSPACE_IMAGE not in {image.name for image in catalog.images()}


def test_an_unknown_node_type_is_answered_with_the_valid_ones() -> None:
    with pytest.raises(Invalid, match="dgx1"):
        check.check(_spec(node_type="dgx9"), NODES)
    with pytest.raises(Invalid, match="default"):
        check.check(_spec(node_pools=["gold"]), NODES)


@pytest.mark.parametrize(
    "values",
    [
        {"args": ["x" * 1_000_000]},
        {"args": ["x" * 1000] * 1100},
        {"environment": {"A": "x" * 200_000}},
    ],
)
def test_more_than_a_program_can_be_given_is_too_large(values: dict[str, Any]) -> None:
    with pytest.raises(TooLarge, match="bytes"):
        check.check(_spec(**values), NODES)


@pytest.mark.parametrize("values", [{"environment": {"A=B": "c"}}, {"environment": {"": "c"}}, {"args": ["a\0b"]}, {"command": [" "]}])
def test_what_no_program_can_be_given_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(HotdeskError):
        check.check(_spec(**values), NODES)


def test_arguments_follow_the_command_or_the_entry_point() -> None:
    entry = catalog.BY_NAME["jupyter/base-notebook"]
    assert catalog.command_line(_spec(args=["--x"]), entry, None) == ["start-notebook.sh", "--x"]
    assert catalog.command_line(_spec(command=["sleep"], args=["infinity"]), entry, None) == ["sleep", "infinity"]
