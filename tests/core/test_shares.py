"""Fair shares: the rule book's examples, and the corners of the rules."""

from __future__ import annotations

from builders import World, node, q
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.quantities import UNLIMITED
from hotdesk_scheduler.core.shares import Claim, divide


def gpus(capacity: float, *claims: tuple[float, float, float], unit: int = 1000) -> list[float]:
    """(quota, wants, weight) of each, oldest first, in GPUs."""
    read = [Claim(int(quota * 1000), int(wants * 1000), int(weight * 1000)) for quota, wants, weight in claims]
    return [share / 1000 for share in divide(int(capacity * 1000), read, unit)]


def test_the_rest_goes_out_by_weight() -> None:
    assert gpus(8, (2, 6, 1), (2, 6, 3)) == [3, 5]


def test_whole_gpus_go_to_the_largest_remainder() -> None:
    assert gpus(11, (2, 10, 1), (2, 10, 4)) == [3, 8]


def test_with_equal_weights_the_older_gets_the_odd_gpu() -> None:
    assert gpus(11, (2, 10, 1), (2, 10, 1)) == [6, 5]


def test_what_a_limit_leaves_nobody_wants() -> None:
    assert gpus(12, (2, 5, 1), (2, 6, 1)) == [5, 6]


def test_unused_gpus_are_divided_in_the_ratio_of_the_quotas() -> None:
    assert gpus(16, (4, 20, 4), (2, 20, 2), (2, 20, 2)) == [8, 4, 4]


def test_what_a_satisfied_one_leaves_is_divided_again() -> None:
    assert gpus(12, (0, 1, 1), (0, 20, 1), (0, 20, 1)) == [1, 6, 5]


def test_a_remainder_below_one_gpu_goes_out_last() -> None:
    assert gpus(3.5, (0, 5, 1), (0, 5, 1)) == [2, 1.5]


def test_guarantees_that_do_not_fit_are_scaled_down_in_proportion() -> None:
    assert gpus(6, (4, 4, 1), (8, 8, 1)) == [2, 4]


def test_scaling_gives_the_odd_thousandth_to_the_older() -> None:
    assert divide(1000, [Claim(500, 500, 1), Claim(500, 500, 1), Claim(500, 500, 1)]) == [334, 333, 333]


def test_an_unlimited_quota_shrinks_nobody_else() -> None:
    assert divide(10, [Claim(UNLIMITED, 100, 1), Claim(6, 6, 1)]) == [100, 6]


def test_weight_zero_gets_nothing_while_another_has_weight() -> None:
    assert gpus(4, (1, 4, 0), (1, 1, 1)) == [1, 1]


def test_where_every_weight_is_zero_they_count_as_equal() -> None:
    assert gpus(4, (1, 4, 0), (1, 4, 0)) == [2, 2]


def test_higher_project_priority_is_served_first() -> None:
    claims = [Claim(1000, 6000, 1000), Claim(1000, 4000, 1000, priority=1)]
    assert divide(6000, claims, 1000) == [2000, 4000]


def shares_of(world: World) -> dict[str, int]:
    ledger = Ledger(world.snapshot(), world.policy, world.now)
    return {name: account.fair[0] for name, account in ledger.projects.items()}


def test_shares_are_divided_between_departments_first() -> None:
    world = World(node(gpus=8), departments={"x": q(4), "y": q(4)}, a=q(2, department="x"), b=q(2, department="x"), c=q(4, department="y"))
    for project in "abc":
        world.asks(project, 8)
    assert shares_of(world) == {"a": 2000, "b": 2000, "c": 4000}


def test_a_project_without_department_stands_beside_the_departments() -> None:
    world = World(node(gpus=8), departments={"x": q(4)}, a=q(2, department="x"), b=q(2, department="x"), alone=q(4))
    for project in ("a", "alone"):
        world.asks(project, 8)
    assert shares_of(world) == {"a": 4000, "b": 0, "alone": 4000}


def test_suspended_and_releasing_work_is_not_requested() -> None:
    world = World(node(gpus=8), a=2, b=2)
    leaving = world.runs("a", 4)
    world.delete(leaving)
    world.asks("b", 8)
    assert shares_of(world) == {"a": 0, "b": 8000}


def test_a_memory_request_counts_on_the_smallest_gpu_until_it_is_placed() -> None:
    world = World(node("big", 1, gpu_memory_mib=40_000), node("small", 1, gpu_memory_mib=10_000), a=2)
    world.asks("a", 0, gpu_memory_mib=20_000)
    assert shares_of(world) == {"a": 1000}
    world.settle()
    assert world.used("a") == 0.5
