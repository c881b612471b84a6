"""Devices: simulations that say so, the real binding with a Python library in NVML's place, and who gets which device."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pynvml
import pytest
from hotdesk_api.errors import Conflict, Invalid
from hotdesk_scheduler.core.model import Placement, Share
from hotdesk_scheduler.engines.local import assign
from hotdesk_scheduler.engines.local.devices import NoDevices, NvmlDevices, SimulatedDevices, find_devices, parse_simulation
from hotdesk_scheduler.engines.local.runs import Held, Run


def test_two_dgx1_are_two_nodes_of_eight_gpus_with_32_gib_each() -> None:
    backend = SimulatedDevices("2x8xV100-SXM2-32GB")
    nodes = backend.nodes()
    assert [(node.name, node.gpus, node.gpu_memory_mib, node.node_type) for node in nodes] == [
        ("dgx1-1", 8, 32768, "dgx1"),
        ("dgx1-2", 8, 32768, "dgx1"),
    ]
    assert all(node.simulated and node.cpu_millis == 80_000 and node.memory_mib == 512 * 1024 for node in nodes)


def test_every_simulated_device_says_so_and_keeps_its_uuid() -> None:
    first, second = SimulatedDevices("2x8xV100-SXM2-32GB"), SimulatedDevices("2x8xV100-SXM2-32GB")
    devices = [device for node in first.nodes() for device in first.devices(node.name)]
    assert len({device.uuid for device in devices}) == 16
    assert all(device.simulated and device.uuid.startswith("GPU-SIM-") for device in devices)
    assert devices == [device for node in second.nodes() for device in second.devices(node.name)]


def test_several_groups_make_one_cluster() -> None:
    nodes = SimulatedDevices("1x8xV100-SXM2-32GB, 2x4xA100-40GB,1x1xT4").nodes()
    assert [(node.name, node.gpus, node.gpu_memory_mib) for node in nodes] == [
        ("dgx1-1", 8, 32768),
        ("node-1", 4, 40960),
        ("node-2", 4, 40960),
        ("node-3", 1, 16384),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "NODESxGPUSxMODEL"),
        ("2x8", "NODESxGPUSxMODEL"),
        ("0x8xV100-32GB", "1 to 10000"),
        ("2x99xV100-32GB", "64 GPUs"),
        ("2x8xMystery", "how much memory a Mystery has"),
        ("2x8xV100-32GB,,", "NODESxGPUSxMODEL"),
        ("-1x8xV100-32GB", "NODESxGPUSxMODEL"),
    ],
)
def test_a_simulation_that_cannot_be_gets_a_sentence_and_an_example(text: str, words: str) -> None:
    with pytest.raises(Invalid, match=words) as caught:
        parse_simulation(text)
    assert "32GB" in str(caught.value)


class Library:
    """NVML in pure Python: methods named like the C functions. What is missing answers FunctionNotFound, as in the real one."""

    def __init__(self, gpus: list[tuple[str, int]]) -> None:
        self.gpus = gpus

    def nvmlInitWithFlags(self, flags: int) -> int:
        return 0

    def nvmlShutdown(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, count: object) -> int:
        count._obj.value = len(self.gpus)  # type: ignore[attr-defined]  # what ctypes.byref() made
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: object) -> int:
        if index.value >= len(self.gpus):
            return 2
        address = ctypes.cast(index.value + 1, type(handle._obj))  # type: ignore[attr-defined]  # as above
        ctypes.memmove(ctypes.byref(handle._obj), ctypes.byref(address), ctypes.sizeof(address))  # type: ignore[attr-defined]  # as above
        return 0

    def _gpu(self, handle: object) -> tuple[str, int, int]:
        number = int(ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1  # type: ignore[arg-type]  # a pointer
        return (*self.gpus[number], number)

    def nvmlDeviceGetUUID(self, handle: object, text: ctypes.Array[ctypes.c_char], length: object) -> int:
        text.value = f"GPU-{self._gpu(handle)[2]:08d}".encode()
        return 0

    def nvmlDeviceGetName(self, handle: object, text: ctypes.Array[ctypes.c_char], length: object) -> int:
        text.value = self._gpu(handle)[0].encode()
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: object, memory: object) -> int:
        total = self._gpu(handle)[1] * 2**20
        memory._obj.total, memory._obj.used, memory._obj.free = total, 512 * 2**20, total - 512 * 2**20  # type: ignore[attr-defined]  # as above
        return 0


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    library = Library([("NVIDIA A100-SXM4-40GB", 40960)] * 2 + [("NVIDIA T4", 15360)])
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    yield library
    pynvml._nvmlGetFunctionPointer_cache.clear()


def test_real_gpus_are_read_through_the_real_binding(nvml: Library) -> None:
    backend = NvmlDevices()
    first, second = backend.nodes()
    assert (first.gpus, first.gpu_memory_mib, first.gpu_model, first.simulated) == (2, 40960, "NVIDIA A100-SXM4-40GB", False)
    assert (second.gpus, second.gpu_memory_mib) == (1, 15360)
    assert second.name == f"{first.name}-2"
    devices = backend.devices(first.name)
    assert [(device.index, device.uuid, device.simulated) for device in devices] == [(0, "GPU-00000000", False), (1, "GPU-00000001", False)]
    assert [device.index for device in backend.devices(second.name)] == [2]


def test_what_the_driver_does_not_tell_is_unknown_and_not_idle(nvml: Library) -> None:
    backend = NvmlDevices()
    device = backend.devices(backend.nodes()[0].name)[0]
    assert device.utilisation_percent is None


def test_real_gpus_are_used_unless_a_simulation_is_asked_for(nvml: Library) -> None:
    assert isinstance(find_devices(None), NvmlDevices)
    assert isinstance(find_devices("1x1xT4"), SimulatedDevices)


def test_a_machine_without_gpus_still_runs_cpu_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    backend = find_devices(None)
    assert isinstance(backend, NoDevices)
    assert backend.nodes()[0].gpus == 0
    assert backend.nodes()[0].cpu_millis > 0


# who gets which


def _run(*held: Held) -> Run:
    return Run(token="t", node="n", boot_id="b", devices=held)


def _place(whole: int = 0, *shares: tuple[str, int]) -> Placement:
    return Placement("n", whole=whole, shares=tuple(Share(group, millis) for group, millis in shares))


def test_shares_of_one_group_meet_on_one_device_and_other_groups_do_not() -> None:
    first = assign.devices(_place(0, ("g", 500)), range(8), [])
    second = assign.devices(_place(0, ("g", 300)), range(8), [_run(*first)])
    other = assign.devices(_place(0, ("h", 300)), range(8), [_run(*first), _run(*second)])
    assert [first[0].index, second[0].index, other[0].index] == [0, 0, 1]


def test_a_device_is_never_whole_and_shared() -> None:
    shared = assign.devices(_place(0, ("g", 100)), range(2), [])
    whole = assign.devices(_place(1), range(2), [_run(*shared)])
    assert [held.index for held in whole] == [1]
    with pytest.raises(Conflict):
        assign.devices(_place(0, ("h", 100)), range(2), [_run(*shared), _run(*whole)])


def test_a_device_is_not_shared_beyond_itself() -> None:
    with pytest.raises(Conflict):
        assign.devices(_place(0, ("g", 600)), range(2), [_run(Held(0, 500, "g"))])


def test_the_same_share_on_two_devices_takes_two() -> None:
    given = assign.devices(_place(0, ("g", 500), ("h", 500)), range(8), [])
    assert [held.index for held in given] == [0, 1]


def test_ports_are_distinct_and_an_asked_for_one_is_given_when_free() -> None:
    free = assign.ports([(8888, None)], ())[0][1]
    assert assign.ports([(8888, free)], ()) == ((8888, free),)
    (again,) = assign.ports([(8888, free)], {free})
    assert again[1] != free
