"""etcd, kube-apiserver, kube-controller-manager and kwok on one address: level 1, without root."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from cluster.certificates import Authority
from cluster.processes import DidNotStartError, Processes, free_ports
from cluster.programs import path_of

LOOPBACK = "127.0.0.1"
SERVICE_NET = "10.96.77.0/24"
SERVICE_IP = "10.96.77.1"
FAKE_NODE = "kwok.x-k8s.io/node=fake"  # annotation of nodes that kwok plays
_STAGES = ("kwok-node-initialize.yaml", "kwok-node-heartbeat.yaml")
# token,user,uid,groups: people without rights of their own, for RBAC tests
_PEOPLE = 'alice-token,alice,1,"team-a"\nbob-token,bob,2,"team-b"\n'
# What service accounts asked for (but the controller manager's): a test compares it with their roles.
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}


class ControlPlane:
    """`address`: what the API server listens on. `kubeconfig` is the administrator's. Use one thread to start it and all its life."""

    def __init__(self, state: Path, *, address: str = LOOPBACK) -> None:
        self.state = state
        self.address = address
        self.kubeconfig = state / "admin.kubeconfig"
        self.processes = Processes(state)
        self._pki = state / "pki"
        self._port = self._etcd_port = 0

    def start(self) -> None:
        """Raises DidNotStartError. A port that someone else took in between is worth a second try."""
        try:
            self._start()
        except DidNotStartError as problem:
            if "address already in use" not in str(problem):
                raise
            self.stop()
            self._start()

    def stop(self) -> None:
        self.processes.stop_all()

    def start_kwok(self) -> None:
        """It is the kubelet of its nodes too: commands "inside" their pods (pod-exec.yaml) run here, in the shell's own place."""
        self._authority.issue("kwok", "kwok", addresses=(self.address,))
        (port,) = free_ports(1)
        serving = [
            f"--server-address={self.address}:{port}",
            f"--node-ip={self.address}",
            f"--node-port={port}",
            f"--tls-cert-file={self._pki / 'kwok.crt'}",
            f"--tls-private-key-file={self._pki / 'kwok.key'}",
            f"--config={Path(__file__).parent / 'pod-exec.yaml'}",
        ]
        self.processes.start("kwok", [*kwok_command(self.kubeconfig), *serving])

    def start_scheduler(self) -> None:
        """Kubernetes' own, for pods that name none: the chart's."""
        self.issue("scheduler", "system:kube-scheduler")
        settings = [f"--kubeconfig={self.state / 'scheduler.kubeconfig'}", "--leader-elect=false", "--secure-port=0"]
        self.processes.start("kube-scheduler", [str(path_of("kube-scheduler")), *settings])

    def is_ready(self) -> bool:
        return self._kubectl("get", "--raw", "/readyz")

    def issue(self, file: str, user: str, *, group: str = "", addresses: tuple[str, ...] = ()) -> Path:
        """Another client of this API server: its kubeconfig."""
        self._authority.issue(file, user, group=group, addresses=addresses)
        return self._authority.kubeconfig(self.state / f"{file}.kubeconfig", self.server, file)

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self._port}"

    @property
    def etcd(self) -> str:
        return f"http://{LOOPBACK}:{self._etcd_port}"

    @property
    def audit_log(self) -> Path:
        """One JSON document a line: what service accounts asked for."""
        return self.state / "audit.log"

    def _start(self) -> None:
        self._port, self._etcd_port, peer_port = free_ports(3)
        self._make_certificates()
        (self.state / "audit.json").write_text(json.dumps(_AUDIT))
        self.processes.start("etcd", self._etcd(peer_port))
        self.processes.start("kube-apiserver", self._api_server())
        self.processes.wait_for("kube-apiserver", "the API server is ready", self.is_ready)
        self.processes.start("kube-controller-manager", self._controller_manager())
        self.processes.wait_for(
            "kube-controller-manager",
            "there is a default service account",
            lambda: self._kubectl("get", "serviceaccount", "default", "-n", "default"),
        )

    def _make_certificates(self) -> None:
        self._authority = Authority(self._pki)
        names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        self._authority.issue("apiserver", "kube-apiserver", addresses=(*names, LOOPBACK, self.address, SERVICE_IP))
        self._authority.issue("kubelet-client", "apiserver-kubelet-client", group="system:masters")
        self._authority.service_account_keys()
        (self._pki / "tokens.csv").write_text(_PEOPLE)
        self.issue("admin", "admin", group="system:masters")
        self.issue("controller-manager", "system:kube-controller-manager")

    def _etcd(self, peer_port: int) -> list[str]:
        client, peer = f"http://{LOOPBACK}:{self._etcd_port}", f"http://{LOOPBACK}:{peer_port}"
        return [
            str(path_of("etcd")),
            f"--data-dir={self.state / 'etcd'}",
            "--unsafe-no-fsync",
            "--log-level=warn",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ]

    def _api_server(self) -> list[str]:
        own_endpoint = ["--endpoint-reconciler-type=none"] if self.address == LOOPBACK else []  # loopback may not be an endpoint
        return [
            str(path_of("kube-apiserver")),
            f"--etcd-servers=http://{LOOPBACK}:{self._etcd_port}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={self._port}",
            *own_endpoint,
            f"--service-cluster-ip-range={SERVICE_NET}",
            f"--tls-cert-file={self._pki / 'apiserver.crt'}",
            f"--tls-private-key-file={self._pki / 'apiserver.key'}",
            f"--client-ca-file={self._pki / 'ca.crt'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--profiling=false",
            f"--token-auth-file={self._pki / 'tokens.csv'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._pki / 'sa.pub'}",
            f"--service-account-signing-key-file={self._pki / 'sa.key'}",
            f"--kubelet-client-certificate={self._pki / 'kubelet-client.crt'}",
            f"--kubelet-client-key={self._pki / 'kubelet-client.key'}",
            f"--kubelet-certificate-authority={self._pki / 'ca.crt'}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--audit-policy-file={self.state / 'audit.json'}",
            f"--audit-log-path={self.audit_log}",
        ]

    def _controller_manager(self) -> list[str]:
        """Its default of 20 requests a second would make big Jobs slow."""
        return [
            str(path_of("kube-controller-manager")),
            f"--kubeconfig={self.state / 'controller-manager.kubeconfig'}",
            f"--bind-address={LOOPBACK}",
            "--secure-port=0",
            "--leader-elect=false",
            "--use-service-account-credentials",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            f"--service-account-private-key-file={self._pki / 'sa.key'}",
            f"--root-ca-file={self._pki / 'ca.crt'}",
        ]

    def _kubectl(self, *arguments: str) -> bool:
        command = [str(path_of("kubectl")), f"--kubeconfig={self.kubeconfig}", "--request-timeout=2s", *arguments]
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0


def kwok_command(kubeconfig: Path) -> list[str]:
    """kwok does nothing without stages: its own for nodes, ours for pods."""
    stages = [*(path_of(name) for name in _STAGES), Path(__file__).parent / "pod-stages.yaml"]
    return [
        str(path_of("kwok")),
        f"--kubeconfig={kubeconfig}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={FAKE_NODE}",
        "--node-lease-duration-seconds=40",
        *(f"--config={stage}" for stage in stages),
    ]
