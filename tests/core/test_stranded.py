"""Placement leaves the least stranded capacity for the mix of requests seen; the everyday rules where that makes no difference."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from builders import World, node
from hotdesk_scheduler import fill
from hotdesk_scheduler.core import placement
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.mix import ENOUGH, MOST, Learner
from hotdesk_scheduler.core.model import GpuRequest, Mix, Node, PodRequest, Snapshot
from hotdesk_scheduler.core.plan import Start
from hotdesk_scheduler.core.rooms import BOTH
from hotdesk_scheduler.core.stranded import prices
from hotdesk_scheduler.simulate import main
from hypothesis import given
from hypothesis import strategies as st

CORE = 1000


def asks(gpu: float, cores: float = 0, gpu_memory_mib: int = 0) -> PodRequest:
    millis = round(gpu * 1000)
    asked = GpuRequest(whole=millis // 1000) if millis % 1000 == 0 else GpuRequest(millis=millis)
    return PodRequest(GpuRequest(memory_mib=gpu_memory_mib) if gpu_memory_mib else asked, round(cores * CORE), 0)


def mix(*kinds: tuple[PodRequest, int], types: tuple[str, ...] = ()) -> Mix:
    return Mix(tuple((request, types, count) for request, count in kinds))


def node_of_next(world: World, seen: Mix | None) -> str:
    """Where the one that waits would start."""
    snapshot = replace(world.snapshot(), mix=seen)
    starts = [d for d in decide(snapshot, world.policy, world.now).decisions if isinstance(d, Start)]
    assert len(starts) == 1
    return starts[0].placement.node


def test_a_fraction_goes_where_what_stays_can_still_be_filled() -> None:
    """0.7 and 0.5 are free. By the everyday rule 0.3 joins the fuller one and leaves 0.2, of which the mix makes nothing."""
    world = World(node("n1", 1), node("n2", 1), a=4)
    world.runs("a", 0.5, on="n1")
    world.runs("a", 0.3, on="n2")
    world.asks("a", 0.3)
    assert node_of_next(world, None) == "n1"
    assert node_of_next(world, mix((asks(0.4), 60), (asks(0.3), 1))) == "n2"


def test_where_it_makes_no_difference_the_fullest_shared_gpu_is_joined() -> None:
    world = World(node("n1", 1), node("n2", 1), a=4)
    world.runs("a", 0.2, on="n1")
    world.runs("a", 0.5, on="n2")
    world.asks("a", 0.1)
    assert node_of_next(world, mix((asks(0.1), 100))) == "n2"


def test_where_it_makes_no_difference_a_whole_gpu_comes_from_the_fullest_node() -> None:
    world = World(node("n1", 8), node("n2", 8), a=16)
    world.runs("a", 5, on="n2")
    world.asks("a", 1)
    assert node_of_next(world, mix((asks(0.5), 100), (asks(1), 100))) == "n2"


def test_much_cpu_is_taken_where_it_strands_no_gpu() -> None:
    """n1 is the fuller, but its last GPU would have no CPU left."""
    world = World(node("n1", 2, cpu_millis=24 * CORE), node("n2", 4, cpu_millis=96 * CORE), a=6)
    world.asks("a", 1, cpu_millis=20 * CORE)
    seen = mix((asks(1, cores=8), 90), (asks(0.5, cores=4), 10))
    assert node_of_next(world, None) == "n1"
    assert node_of_next(world, seen) == "n2"


def test_cpu_only_work_on_gpu_nodes_goes_where_the_least_gpu_is_left() -> None:
    """n1 has no whole GPU free, but more GPU left than n2; n3 has as much as n2, but more CPU: among equals the fuller is taken."""
    world = World(node("n1", 3), node("n2", 2), node("n3", 2, cpu_millis=400 * CORE), a=12)
    for _ in range(3):
        world.runs("a", 0.1, on="n1")
    world.asks("a", 0, cpu_millis=16 * CORE)
    assert node_of_next(world, mix((asks(1, cores=8), 90), (asks(0.5, cores=4), 10))) == "n2"


def test_cpu_only_work_avoids_gpu_nodes_whatever_the_mix() -> None:
    world = World(node("gpu", 8), node("plain", 0), a=1)
    world.asks("a", 0)
    assert node_of_next(world, mix((asks(0.5, cores=4), 100))) == "plain"


def test_gpus_that_others_ask_for_by_name_are_left_to_them() -> None:
    world = World(node("n1", 1, node_type="wanted"), node("n2", 1, node_type="plain"), a=2)
    world.asks("a", 1)
    named = Mix((*mix((asks(0.5), 50)).requests, *mix((asks(1), 50), types=("wanted",)).requests))
    assert node_of_next(world, mix((asks(0.5), 50))) == "n1"
    assert node_of_next(world, named) == "n2"


def test_a_memory_request_is_weighed_as_what_it_takes_there() -> None:
    world = World(node("n1", 1, gpu_memory_mib=16_000), node("n2", 1, gpu_memory_mib=10_000), a=2)
    world.asks("a", 0, gpu_memory_mib=10_000)
    assert node_of_next(world, mix((asks(0.4), 60), (asks(0, gpu_memory_mib=10_000), 1))) == "n2"


@pytest.mark.parametrize("request_of", [PodRequest(cpu_millis=1 << 70), PodRequest(GpuRequest(memory_mib=1 << 60)), asks(1e18)])
def test_what_is_larger_than_any_machine_fits_nowhere(request_of: PodRequest) -> None:
    world = World(node("n1", 8), a=8)
    ledger = Ledger(world.snapshot(), world.policy, 0.0)
    ledger.keep_room_for(mix((asks(0.5), 50), (request_of, 10)))
    assert placement.find(ledger, request_of, placement.ANYWHERE, BOTH) is None
    assert placement.find(ledger, asks(0.5), placement.ANYWHERE, BOTH) is not None


def test_without_fractions_blocks_are_what_is_scarce() -> None:
    """n1 is the fuller; that its last GPU has no CPU left then counts only where fractions make use of it."""
    world = World(node("n1", 2, cpu_millis=24 * CORE), node("n2", 4, cpu_millis=96 * CORE), a=6)
    world.asks("a", 1, cpu_millis=20 * CORE)
    assert node_of_next(world, mix((asks(1, cores=8), 90), (asks(8, cores=64), 10))) == "n1"
    assert prices(mix((asks(0, cores=3), 5)), 16_000) is None


def test_among_nodes_with_as_much_gpu_left_the_one_with_the_least_cpu_is_taken() -> None:
    world = World(node("n1", 2, cpu_millis=96 * CORE), node("n2", 2, cpu_millis=64 * CORE), a=4)
    world.asks("a", 1, cpu_millis=1 * CORE)
    assert node_of_next(world, None) == "n1"
    assert node_of_next(world, mix((asks(1, cores=1), 90), (asks(0.5, cores=1), 10))) == "n2"


def test_a_block_of_gpus_is_weighed_by_the_mean_of_one() -> None:
    """Two GPUs with 20 cores would leave 4 cores to the other two of n1."""
    world = World(node("n1", 4, cpu_millis=24 * CORE), node("n2", 8, cpu_millis=96 * CORE), a=6)
    world.asks("a", 2, cpu_millis=20 * CORE)
    assert node_of_next(world, None) == "n1"
    assert node_of_next(world, mix((asks(1, cores=6), 90), (asks(0.5, cores=3), 10))) == "n2"


def test_what_stays_unfilled_of_a_device() -> None:
    """Halves and 0.3s in equal number: 0.6 takes a half (0.1 stays) or two 0.3s (nothing stays): 50 on the average."""
    found = prices(mix((asks(0.5), 10), (asks(0.3), 10)), 0)
    assert found is not None
    assert [int(found.unfilled[left]) for left in (0, 200, 300, 500, 600, 1000)] == [0, 200, 0, 100, 50, 0]


def test_nothing_is_learnt_from_a_few_requests_and_the_old_fades() -> None:
    learner = Learner()
    learner.note(asks(0.3))
    learner.note(asks(0.4), count=ENOUGH - 2)
    assert learner.mix is None
    learner.note(asks(0.5))
    assert learner.mix is not None
    for _ in range(3 * MOST):
        learner.note(asks(0.5))
    assert [request for request, _, _ in learner.mix.requests] == [asks(0.4), asks(0.5)]


def test_a_workload_is_counted_once_however_often_it_is_looked_at() -> None:
    world = World(node("n1", 8), a=8)
    for _ in range(ENOUGH - 1):
        world.asks("a", 0.5)
    learner = Learner()
    assert [learner.look(world.snapshot().workloads) for _ in range(3)] == [None] * 3
    world.asks("a", 0.5)
    assert learner.look(reversed(world.snapshot().workloads)) is not None


def test_the_mix_is_the_same_object_until_half_as_much_again_has_been_seen() -> None:
    learner = Learner()
    learner.note(asks(0.5), count=ENOUGH)
    first = learner.mix
    for _ in range(ENOUGH // 2 - 1):
        learner.note(asks(0.3))
        assert learner.mix is first
    learner.note(asks(0.3))
    assert learner.mix is not first


requests = st.builds(
    asks,
    gpu=st.sampled_from([0, 0.1, 0.25, 0.3, 0.5, 0.7, 0.81, 1, 2, 4]),
    cores=st.sampled_from([0, 1, 4, 12, 30]),
    gpu_memory_mib=st.sampled_from([0, 0, 0, 3_000, 20_000]),
)


@given(st.lists(requests, min_size=1, max_size=40), st.lists(st.tuples(requests, st.integers(1, 50)), max_size=6), st.integers(0, 9))
def test_a_mix_changes_where_but_never_whether(asked: Sequence[PodRequest], kinds: Sequence[tuple[PodRequest, int]], seed: int) -> None:
    """At every step it finds a place exactly where the everyday rules do; the place fits; and the order of the nodes is no matter."""
    nodes = [Node(f"n{i}", i % 5, 16_000 if i % 2 else 40_000, (16 + 20 * i) * CORE, 10_000) for i in range(6)]
    world = World(*nodes, a=100)
    shuffled = random.Random(seed).sample(nodes, len(nodes))
    ledgers = [Ledger(Snapshot(0, tuple(order), (), (), ()), world.policy, 0.0) for order in (nodes, shuffled)]
    for ledger in ledgers:
        ledger.keep_room_for(mix(*kinds))
    for number, request in enumerate(asked):
        found = [placement.find(ledger, request, placement.ANYWHERE, BOTH) for ledger in ledgers]
        assert found[0] == found[1]
        by_mix, ledger = found[0], ledgers[0]
        strands, ledger.strands = ledger.strands, None
        assert (placement.find(ledger, request, placement.ANYWHERE, BOTH) is None) == (by_mix is None)
        ledger.strands = strands
        if by_mix is None:
            continue
        assert ledger.spot_of[by_mix.node].fits(BOTH, by_mix, request)
        workload = world.workload("a", 1, name=f"w{number}")
        pod = replace(workload.pods[0], request=request)
        for ledger in ledgers:
            checkpoint = ledger.checkpoint()
            ledger.start(workload, pod, by_mix)
            if seed % 2:
                ledger.rollback(checkpoint)
                ledger.start(workload, pod, by_mix)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_kept_of_earlier_answers_is_what_would_be_reckoned_anew(seed: int) -> None:
    chance = random.Random(seed)
    nodes = tuple(Node(f"n{i:02d}", 8, 32_000, chance.randrange(24, 80) * CORE, 10_000) for i in range(20))
    world = World(*nodes, a=200)
    kinds = [asks(1, cores=8), asks(2, cores=10), asks(1, cores=3), asks(0.5, cores=4), asks(0.3, cores=1), asks(0, cores=3)]
    seen = mix(*((kind, 10) for kind in kinds))
    kept, anew = (Ledger(Snapshot(0, nodes, (), (), ()), world.policy, 0.0) for _ in range(2))
    kept.keep_room_for(seen)
    for number, request in enumerate(chance.choices(kinds, k=150)):
        anew.keep_room_for(seen)
        for kind in kinds[:3]:
            assert placement.find(kept, kind, placement.ANYWHERE, BOTH) == placement.find(anew, kind, placement.ANYWHERE, BOTH)
        place = placement.find(anew, request, placement.ANYWHERE, BOTH)
        if place:
            workload = world.workload("a", 1, name=f"w{number}")
            for ledger in (kept, anew):
                ledger.start(workload, replace(workload.pods[0], request=request), place)


def test_what_is_kept_does_not_grow_for_ever() -> None:
    """A pod starts and is taken back a thousand times on a ledger that stays."""
    world = World(node("n1", 8), a=8)
    ledger = Ledger(world.snapshot(), world.policy, 0.0)
    ledger.keep_room_for(mix((asks(1), 50), (asks(0.5), 50)))
    workload = world.workload("a", 1, name="w")

    def size_after(rounds: int) -> int:
        for _ in range(rounds):
            place = placement.find(ledger, asks(1), placement.ANYWHERE, BOTH)
            assert place
            checkpoint = ledger.checkpoint()
            ledger.start(workload, workload.pods[0], place)
            ledger.rollback(checkpoint)
        return len(pickle.dumps(ledger.strands))

    few = size_after(10)
    assert size_after(1000) <= few + 1000


# --- the experiment ------------------------------------------------------------------------------------------------------------------


def made_trace(folder: Path, *, nodes: int = 24) -> tuple[Path, Path]:
    """A small cluster of two kinds of nodes, and requests for 1.3 times its GPUs, awkward fractions and CPU among them."""
    chance = random.Random(7)
    cluster = [f"n{i:02d},{32000 if i % 3 else 96000},400000,{4 if i % 3 else 8},{'small' if i % 3 else 'big'}" for i in range(nodes)]
    kinds = [
        "8000,1000,1,1000,",
        "4000,1000,1,810,",
        "8000,1000,1,470,",
        "4000,1000,1,320,",
        "12000,1000,0,0,",
        "6000,1000,1,650,",
        "30000,1000,4,1000,",
    ]
    arrivals = chance.choices(kinds, weights=[48, 13, 9, 4, 12, 3, 1], k=nodes * 10)
    files = folder / "nodes.csv", folder / "arrivals.csv"
    files[0].write_text("\n".join(["name,cpu_millis,memory_mib,gpus,gpu_model", *cluster]) + "\n")
    files[1].write_text("\n".join(["cpu_millis,memory_mib,gpus,gpu_millis,gpu_models", *arrivals]) + "\n")
    return files


def results(nodes: Sequence[Node], arrivals: list[fill.Arrival]) -> dict[str, fill.Filled]:
    return {policy: fill.fill(tuple(nodes), arrivals, policy) for policy in fill.POLICIES}


def test_a_small_cluster_is_filled_better_than_by_best_fit(tmp_path: Path) -> None:
    files = made_trace(tmp_path)
    found = results(fill.read_nodes(files[0]), fill.read_arrivals(files[1]))
    assert found["stranded"].at_end < min(found[name].at_end for name in ("everyday", "bestfit", "random"))
    assert found["stranded"].multi_gpu_turned_away <= found["bestfit"].multi_gpu_turned_away


def test_a_cut_of_the_public_trace_is_filled_better_than_by_best_fit(shared: Path) -> None:
    """Every eighth node, and the arrivals up to 1.3 times their GPUs."""
    folder = shared / "traces"
    if not folder.is_dir():
        pytest.skip("no ../shared/traces beside this checkout")
    nodes = fill.read_nodes(folder / "nodes.csv")[::8]
    arrivals = fill.read_arrivals(folder / "default-42.csv")
    asked, last = 0, 0
    while asked < 1300 * sum(n.gpus for n in nodes):
        asked += arrivals[last].gpu_millis
        last += 1
    found = results(nodes, arrivals[:last])
    full = {policy: filled.at_100_percent or 0 for policy, filled in found.items()}
    assert full["stranded"] < full["everyday"] < full["random"]
    assert full["stranded"] < full["bestfit"]
    assert found["stranded"].multi_gpu_turned_away <= found["bestfit"].multi_gpu_turned_away


def test_gpu_models_are_kept(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("name,cpu_millis,memory_mib,gpus,gpu_model\nn1,8000,1000,1,old\nn2,8000,1000,1,new\n")
    (tmp_path / "a.csv").write_text("cpu_millis,memory_mib,gpus,gpu_millis,gpu_models\n" + "100,1,1,1000,new|newer\n" * 2)
    filled = fill.fill(fill.read_nodes(tmp_path / "n.csv"), fill.read_arrivals(tmp_path / "a.csv"))
    assert (filled.turned_away, filled.at_end, filled.at_100_percent) == (1, 50.0, 50.0)


def test_simulate_fill_says_what_stays_unallocated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes, arrivals = made_trace(tmp_path, nodes=4)
    assert main(["--fill", str(nodes), str(arrivals), "--policy", "bestfit"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("bestfit: unallocated GPU ")
    assert "multi-GPU requests turned away" in out
    assert main(["--fill", str(nodes), str(arrivals), "--json"]) == 0
    assert '"policy": "stranded", "nodes": 4' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("8000,1000,one,1000,", r"arrivals\.csv, line 3, column gpus: 'one' is not a whole number of at least 0"),
        ("-8000,1000,1,1000,", r"line 3, column cpu_millis: '-8000' is not a whole number"),
        ("8000,1000,1,1500,", r"line 3, column gpu_millis: 1500 is more than 1000"),
        ("8000,1000,2,0,", r"line 3, column gpu_millis: 2 GPUs of 0 thousandths each are none"),
        ("8000,1000", r"line 3, column gpus: it is missing: the line is too short"),
    ],
)
def test_simulate_fill_says_where_a_value_is_wrong(tmp_path: Path, line: str, sentence: str) -> None:
    nodes, arrivals = made_trace(tmp_path, nodes=1)
    lines = arrivals.read_text().splitlines()
    arrivals.write_text("\n".join([*lines[:2], line, *lines[2:]]))
    with pytest.raises(SystemExit, match=sentence):
        main(["--fill", str(nodes), str(arrivals)])


def test_simulate_fill_says_what_is_wrong_with_its_files(tmp_path: Path) -> None:
    nodes, arrivals = made_trace(tmp_path, nodes=1)
    with pytest.raises(SystemExit, match=r"line 1, has no column name\. Columns: name, cpu_millis"):
        main(["--fill", str(arrivals), str(nodes)])
    with pytest.raises(SystemExit, match="cannot be read: No such file"):
        main(["--fill", str(tmp_path / "none.csv"), str(arrivals)])
    with pytest.raises(SystemExit):
        main(["--fill", str(nodes)])
    head, first = nodes.read_text().splitlines()[:2]
    nodes.write_text(f"{head}\n{first}\n{first}\n")
    with pytest.raises(SystemExit, match=r"line 3, column name: there is a node n00 above"):
        main(["--fill", str(nodes), str(arrivals)])
    nodes.write_text(f"{head}\nn1,8000,1000,0,\n")
    with pytest.raises(SystemExit, match="has no node with a GPU"):
        main(["--fill", str(nodes), str(arrivals)])
    nodes.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SystemExit, match="is not a text in UTF-8"):
        main(["--fill", str(nodes), str(arrivals)])
