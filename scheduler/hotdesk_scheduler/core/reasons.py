"""Why something waits, stopped or moved: an enum with numbers, and one sentence for people (scheduling.md 6)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReasonCode(StrEnum):
    """Every main reason there is. Hold reasons first, then stop reasons."""

    OVER_PROJECT_LIMIT = "over_project_limit"
    OVER_DEPARTMENT_LIMIT = "over_department_limit"
    NON_PREEMPTIBLE_OVER_QUOTA = "non_preemptible_over_quota"
    FAIR_SHARE_REACHED = "fair_share_reached"
    NO_NODE_LARGE_ENOUGH = "no_node_large_enough"
    NO_FREE_BLOCK = "no_free_block"
    FRAGMENTED = "fragmented"
    GANG_DOES_NOT_FIT = "gang_does_not_fit"
    NODES_EXCLUDED = "nodes_excluded"
    NO_CPU_OR_MEMORY = "no_cpu_or_memory"
    WAITING_FOR_RELEASE = "waiting_for_release"
    VICTIMS_PROTECTED = "victims_protected"
    SUSPENDED = "suspended"
    IMAGE_OR_VOLUME_ERROR = "image_or_volume_error"
    BACKING_OFF = "backing_off"
    UNKNOWN_PROJECT = "unknown_project"
    QUEUED = "queued"
    KEPT_FOR_OTHERS = "kept_for_others"
    GANG_INCOMPLETE = "gang_incomplete"
    PAUSED = "paused"

    RECLAIMED = "reclaimed"
    PREEMPTED = "preempted"
    MOVED = "moved"
    GAVE_WAY = "gave_way"
    STALE_GANG = "stale_gang"
    TIME_LIMIT = "time_limit"
    IDLE_LIMIT = "idle_limit"
    NODE_LOST = "node_lost"
    PROCESS_LOST = "process_lost"
    OWNER_STOPPED = "owner_stopped"
    OWNER_DELETED = "owner_deleted"
    GRANT_NOT_TAKEN_UP = "grant_not_taken_up"
    RETRIES_SPENT = "retries_spent"
    ENGINE_ERROR = "engine_error"
    START_REFUSED = "start_refused"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class Reason:
    """A code, the sentence that says it to people, and the numbers behind it as (name, value) pairs sorted by name."""

    code: ReasonCode
    sentence: str
    numbers: tuple[tuple[str, int | str], ...] = ()


def reason(code: ReasonCode, sentence: str, **numbers: int | str) -> Reason:
    return Reason(code, sentence, tuple(sorted(numbers.items())))
