"""The machine under a real node: what kubelet, kube-proxy, containerd and the network plugins change outside of the cluster's folder.

Put as it was by `restore`, also after a node that was killed; `traces` lists what there is of it, to compare before and after. Only one
node a machine: all but `traces` are for who has the lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import IO

BRIDGE = "hotdesk0"
NETWORK = "hotdesk-test"
_LOCK = Path("/run/hotdesk-kube-node.lock")
RECORD = Path("/run/hotdesk-kube-node.before")  # settings and traces as they were, while there is a node
_SYSTEM = Path("/proc/sys")
# What a node needs, and what kubelet and kube-proxy set without asking.
_SETTINGS = (
    "net/ipv4/ip_forward",
    "net/bridge/bridge-nf-call-iptables",
    "net/ipv4/conf/all/route_localnet",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_tcp_timeout_established",
    "net/netfilter/nf_conntrack_tcp_timeout_close_wait",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
NEEDED = _SETTINGS[:2]
_TABLES = ("nat", "filter", "mangle", "raw")
_OURS = re.compile(rf"\b(KUBE|CNI)-|{NETWORK}|{BRIDGE}")
_SHIM_SOCKETS = Path("/run/containerd/s")
_PLUGIN_RESULTS = Path("/var/lib/cni/results")
_DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
_DEVICE_FILES = ("kubelet.sock", "kubelet_internal_checkpoint", "fakegpu.sock")


def take(timeout_s: float) -> IO[str] | None:
    """The lock of this machine, as long as the file is open; None if another session keeps it all that time."""
    lock = _LOCK.open("w")
    end = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                lock.close()
                return None
            time.sleep(0.2)
        else:
            return lock


def record() -> set[str]:
    """Settings and traces as they are now; `restore` puts settings back, and takes away the rules that came since."""
    settings = {name: (_SYSTEM / name).read_text() for name in _SETTINGS if (_SYSTEM / name).exists()}
    before = traces()
    new = RECORD.with_suffix(".new")
    new.write_text(json.dumps({"settings": settings, "traces": sorted(before)}))
    new.rename(RECORD)
    return before


def restore() -> None:
    """Containers have been ended (`leftovers.end_containers`). May be said twice."""
    _end_groups()
    subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True, check=False)
    _remove_files()
    if not RECORD.exists():
        return
    before = json.loads(RECORD.read_text())
    for program in ("iptables", "ip6tables"):
        for table in _TABLES:
            _remove_rules(program, table, set(before["traces"]))
    for name, value in before["settings"].items():
        if (_SYSTEM / name).read_text() != value:
            (_SYSTEM / name).write_text(value)
    RECORD.unlink()


def restore_if_free() -> None:
    """After a node whose keeper was killed; nothing if another session has one now."""
    if os.getuid() == 0 and RECORD.exists() and (lock := take(0)):
        with lock:
            restore()


def left_since(before: set[str]) -> set[str]:
    """`before`: the traces then. A setting that came with a kernel module since then is nobody's change."""
    known = {line.partition(" = ")[0] for line in before}
    return {line for line in traces() - before if not line.startswith("setting ") or line.partition(" = ")[0] in known}


def traces() -> set[str]:
    """Of any node on this machine, one line each."""
    found = {f"setting {name} = {(_SYSTEM / name).read_text().strip()}" for name in _SETTINGS if (_SYSTEM / name).exists()}
    found |= {f"control group {group}" for group in _groups()}
    for program in ("iptables", "ip6tables"):
        found |= {rule for table in _TABLES for rule in _rules(program, table)}
    links = [path.name for path in Path("/sys/class/net").iterdir()]
    found |= {f"network interface {name}" for name in links if name == BRIDGE or re.fullmatch("veth[0-9a-f]{8}", name)}
    folders = (_DEVICE_PLUGINS, _PLUGIN_RESULTS, Path("/var/log/pods"), Path("/etc/cni"), Path("/run/containerd/runc/k8s.io"))
    found |= {f"file {path}" for folder in folders for path in folder.rglob("*")}
    heard = Path("/proc/net/unix").read_text()
    found |= {f"socket {path}" for path in _SHIM_SOCKETS.glob("*") if str(path) not in heard}
    return found


def _groups() -> list[Path]:
    return [root for pattern in ("kubepods", "*/kubepods") for root in Path("/sys/fs/cgroup").glob(pattern)]


def _end_groups() -> None:
    """Containers outlive their killed supervisors. Waits until they are gone, five seconds at most."""
    for _ in range(50):
        numbers = {line for root in _groups() for file in root.rglob("cgroup.procs") for line in file.read_text().split()}
        if not numbers:
            break
        for number in numbers - {"0"}:
            try:
                os.kill(int(number), signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)
    for folder in (folder for root in _groups() for folder, _, _ in os.walk(root, topdown=False)):
        try:
            os.rmdir(folder)
        except OSError:
            continue  # the kernel has not finished with it


def _rules(program: str, table: str) -> list[str]:
    """Chains and rules of Kubernetes and of network plugins, as traces."""
    start = [program, "-w", "5", "-t", table]
    listed = subprocess.run([*start, "-S"], capture_output=True, text=True, check=False).stdout
    return [f"{program} -t {table} {line}" for line in listed.splitlines() if _OURS.search(line)]


def _remove_rules(program: str, table: str, before: set[str]) -> None:
    """Rules first, then the chains they led to."""
    came = [shlex.split(rule)[3:] for rule in _rules(program, table) if rule not in before]
    for added, removed in (("-A", "-D"), ("-N", "-X")):
        for rule in (rule for rule in came if rule[0] == added):
            subprocess.run([program, "-w", "5", "-t", table, removed, *rule[1:]], capture_output=True, check=False)


def _remove_files() -> None:
    """What lies in fixed places. Results of network plugins: of our network, and of the same containers' loopback."""
    for result in _PLUGIN_RESULTS.glob(f"{NETWORK}-*"):
        container = result.name.removeprefix(f"{NETWORK}-").rpartition("-")[0]
        for path in _PLUGIN_RESULTS.glob(f"*-{container}-*"):
            path.unlink(missing_ok=True)
    for name in _DEVICE_FILES:
        (_DEVICE_PLUGINS / name).unlink(missing_ok=True)
    for folder in (_PLUGIN_RESULTS, _PLUGIN_RESULTS.parent, _DEVICE_PLUGINS, _DEVICE_PLUGINS.parent):
        try:
            folder.rmdir()
        except OSError:
            continue  # not there, or somebody else's files are in it
