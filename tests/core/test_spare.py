"""CPU-only work finds its node without looking at every one."""

from __future__ import annotations

import random

import pytest
from builders import World, node
from hotdesk_scheduler.core.ledger import Ledger, Seat
from hotdesk_scheduler.core.model import Policy
from hotdesk_scheduler.core.placement import ANYWHERE, find
from hotdesk_scheduler.core.rooms import BOTH, Spot


@pytest.mark.parametrize("placement", ["binpack", "spread"])
@pytest.mark.parametrize("seed", range(8))
def test_cpu_only_work_is_placed_as_if_every_node_had_been_looked_at(placement: str, seed: int) -> None:
    chance = random.Random(seed)
    nodes = [
        node(f"n{i}", chance.choice([0, 0, 1, 2]), cpu_millis=chance.choice([4000, 8000]), memory_mib=2000, ready=i != 3) for i in range(7)
    ]
    world = World(*nodes, policy=Policy(grace_s=0, placement=placement), a=99)
    ledger = Ledger(world.snapshot(), world.policy, 0.0)
    started: list[Seat] = []
    for number in range(40):
        workload = world.workload(
            "a",
            chance.choice([0, 0, 0, 1]),
            name=f"w{number}",
            cpu_millis=chance.choice([500, 1500, 3000]),
            memory_mib=chance.choice([0, 900]),
        )
        request = workload.pods[0].request
        found = find(ledger, request, ANYWHERE, BOTH)
        if request.gpu.is_none:
            fits = [spot for spot in ledger.spots if spot.node.ready and spot.fits_beside_gpu(BOTH, request)]
            sign = -1 if placement == "spread" else 1

            def preference(spot: Spot, sign: int = sign) -> tuple[bool, int, int, str]:
                free = spot.later.free_gpus if sign > 0 else 0
                return spot.node.gpus > 0, free, sign * spot.later.cpu_millis, spot.node.name

            assert (found.node if found else None) == (min(fits, key=preference).node.name if fits else None)
        if found:
            ledger.start(workload, workload.pods[0], found)
            started.append(ledger.seats[workload.id, 0])
        if started and chance.random() < 0.4:
            ledger.vacate(started.pop(chance.randrange(len(started))))
