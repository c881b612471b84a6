"""Level 2: one real node that runs pods (containerd, kubelet, kube-proxy) and offers pretended GPUs. Needs root and Debian's containerd."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import IO

from cluster import machine
from cluster.control_plane import ControlPlane
from cluster.images import BUSYBOX, Image, test_images, write
from cluster.leftovers import end_containers, processes
from cluster.machine import BRIDGE, NETWORK
from cluster.processes import DidNotStartError
from cluster.programs import path_of

NODE = "real-0"
ADDRESS = "10.244.77.1"  # of the bridge: a node's address may not be a loopback one; nothing outside reaches it
GPUS = 4
_CNI = Path("/usr/lib/cni")
_NAMES = Path(__file__).parent / "names.py"
_PACKAGES = "containerd runc containernetworking-plugins busybox-static iptables conntrack"


def why_no_node() -> str | None:
    """None if this machine can have a real node."""
    if os.getuid() != 0:
        return "a real node needs root"
    if not _may_do_all():
        return "a real node needs a root that may mount and change networks (CAP_SYS_ADMIN, CAP_NET_ADMIN)"
    programs = ("containerd", "ctr", "runc", "iptables", "conntrack", "ip")
    missing = [name for name in programs if not shutil.which(name)]
    missing += [str(path) for path in (_CNI / "bridge", BUSYBOX) if not path.exists()]
    if missing:
        return f"a real node needs {', '.join(missing)}. On Debian: apt install --no-install-recommends {_PACKAGES}"
    if any(Path(command.split(" ")[0]).name == "kubelet" and "/hotdesk-kube-" not in command for _, command in processes()):
        return "a kubelet of somebody else runs on this machine"
    return None


def _may_do_all() -> bool:
    """A container's root often may not. Bits of capability.h."""
    net_admin, sys_admin = 1 << 12, 1 << 21
    (effective,) = re.findall(r"^CapEff:\s*(\S+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(effective, 16) & (net_admin | sys_admin) == net_admin | sys_admin


def import_image(folder: Path, image: Image) -> None:
    """Onto the node of the cluster in `folder`, as if it had been pulled."""
    archive = folder / f"{uuid.uuid4().hex[:8]}.tar"
    try:
        write(image, archive)
        command = _ctr_command(folder, "image", "import", str(archive))
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    finally:
        archive.unlink(missing_ok=True)
    if done.returncode:
        raise DidNotStartError(f"containerd refused {image.name}: {done.stderr}")


def _ctr_command(folder: Path, *arguments: str) -> list[str]:
    return ["ctr", "-a", str(folder / "containerd.sock"), "-n", "k8s.io", *arguments]


class RealNode:
    """One a machine (device plugins have one fixed folder): `start` waits for its turn. `plane` listens on ADDRESS."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self._state = plane.state
        self._socket = self._state / "containerd.sock"
        self._lock: IO[str] | None = None
        self._before: set[str] = set()

    @property
    def unhealthy_file(self) -> Path:
        """Ids written here (GPU-fake-0 …) are reported broken by the device plugin."""
        return self._state / "gpu-unhealthy"

    def prepare(self, *, timeout_s: float = 180.0) -> None:
        """Before the control plane: our turn on this machine, what an earlier one left removed, the address."""
        self._lock = machine.take(timeout_s)
        if not self._lock:
            raise DidNotStartError(f"another test session has had the real node for {timeout_s:.0f} s")
        machine.restore()
        self._before = machine.record()
        subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], check=True)
        subprocess.run(["ip", "addr", "replace", f"{ADDRESS}/24", "dev", BRIDGE], check=True)
        subprocess.run(["ip", "link", "set", BRIDGE, "up"], check=True)
        for name in machine.NEEDED:
            switch = Path("/proc/sys") / name
            if switch.exists():
                switch.write_text("1")

    def start(self) -> None:
        """After the control plane. Ready when it returns."""
        programs = self.plane.processes
        self._write_settings()
        programs.start("containerd", ["containerd", f"--config={self._state / 'containerd.toml'}"])
        programs.wait_for("containerd", "containerd answers", lambda: self._ctr("version"))
        self._import_images()
        programs.start("kubelet", self._kubelet())
        programs.start("kube-proxy", self._proxy())
        programs.start("names", [sys.executable, str(_NAMES), str(self.plane.kubeconfig), ADDRESS])
        programs.start("fakegpu", [str(path_of("fakegpu")), f"-count={GPUS}", f"-unhealthy-file={self.unhealthy_file}"])
        programs.wait_for("kubelet", "the node is Ready and has its GPUs", self._is_ready, timeout_s=120.0)

    def stop(self) -> set[str]:
        """Pods through the kubelet first, so that their networks are taken down; then whatever is left. What is left even then."""
        if not self._lock:
            return set()
        if self._socket.exists() and self.plane.is_ready():
            self._kubectl("delete", "pods", "--all", "-A", "--grace-period=1", "--timeout=30s")
        for name in ("fakegpu", "kubelet"):
            self.plane.processes.stop(name)
        self._end_containers()
        for name in ("names", "kube-proxy", "containerd"):
            self.plane.processes.stop(name)
        end_containers(self._state)
        subprocess.run([path_of("kube-proxy"), "--cleanup"], capture_output=True, check=False)
        machine.restore()
        left = machine.left_since(self._before)
        self._lock.close()
        self._lock = None
        return left

    def _is_ready(self) -> bool:
        node = self._kubectl("get", "node", NODE, "-o", "json")
        if not node:
            return False
        status = json.loads(node)["status"]
        ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in status.get("conditions", []))
        return ready and status.get("allocatable", {}).get("nvidia.com/gpu") == str(GPUS)

    def _import_images(self) -> None:
        for image in test_images():
            import_image(self._state, image)

    def _ctr(self, *arguments: str) -> bool:
        return subprocess.run(_ctr_command(self._state, *arguments), capture_output=True, timeout=60, check=False).returncode == 0

    def _end_containers(self) -> None:
        listed = subprocess.run(
            ["ctr", "-a", self._socket, "-n", "k8s.io", "task", "ls", "-q"], capture_output=True, text=True, check=False
        )
        for task in listed.stdout.split():
            self._ctr("task", "kill", "-s", "KILL", task)
            self._ctr("task", "rm", "-f", task)

    def _kubectl(self, *arguments: str) -> str:
        command = [str(path_of("kubectl")), f"--kubeconfig={self.plane.kubeconfig}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout

    def _write_settings(self) -> None:
        for folder in ("cni", "containerd", "kubelet"):
            (self._state / folder).mkdir(exist_ok=True)
        (self._state / "cni" / "10-hotdesk.conflist").write_text(json.dumps(self._network()))
        (self._state / "containerd.toml").write_text(_CONTAINERD.format(state=self._state, cni=_CNI))
        self.plane.issue("node", f"system:node:{NODE}", group="system:nodes", addresses=(ADDRESS,))
        self.plane.issue("proxy", "system:kube-proxy")
        (self._state / "kubelet.json").write_text(json.dumps(self._kubelet_settings()))

    def _network(self) -> dict[str, object]:
        subnet = ADDRESS.rpartition(".")[0] + ".0/24"
        ipam = {
            "type": "host-local",
            "dataDir": str(self._state / "cni" / "ipam"),
            "ranges": [[{"subnet": subnet}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": ipam}
        return {"cniVersion": "1.0.0", "name": NETWORK, "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]}

    def _kubelet_settings(self) -> dict[str, object]:
        """cgroup v1 without systemd is allowed; a full disk of this machine is not the pods' problem."""
        pki = self._state / "pki"
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": ADDRESS,
            "healthzBindAddress": "127.0.0.1",
            "tlsCertFile": str(pki / "node.crt"),
            "tlsPrivateKeyFile": str(pki / "node.key"),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "podLogsDir": str(self._state / "pod-logs"),
            "clusterDomain": "cluster.local",
            "clusterDNS": [ADDRESS],
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%"},
            "syncFrequency": "10s",
            "makeIPTablesUtilChains": False,  # rules that nobody would take away again, in every table
        }

    def _kubelet(self) -> list[str]:
        return [
            str(path_of("kubelet")),
            f"--config={self._state / 'kubelet.json'}",
            f"--kubeconfig={self._state / 'node.kubeconfig'}",
            f"--hostname-override={NODE}",
            f"--node-ip={ADDRESS}",
            f"--root-dir={self._state / 'kubelet'}",
            f"--cert-dir={self._state / 'kubelet' / 'pki'}",
        ]

    def _proxy(self) -> list[str]:
        return [
            str(path_of("kube-proxy")),
            f"--kubeconfig={self._state / 'proxy.kubeconfig'}",
            f"--hostname-override={NODE}",
            f"--bind-address={ADDRESS}",
            "--proxy-mode=iptables",
            "--metrics-bind-address=127.0.0.1:10249",
            "--healthz-bind-address=127.0.0.1:10256",
            f"--cluster-cidr={ADDRESS.rpartition('.')[0]}.0/24",
            "--iptables-localhost-nodeports=false",
        ]


# restrict_oom_score_adj: root of a container has no CAP_SYS_RESOURCE, and runc would die silently.
_CONTAINERD = """version = 2
root = "{state}/containerd/root"
state = "{state}/containerd/state"
[grpc]
  address = "{state}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{state}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
      Root = "{state}/containerd/runc"
"""
