"""`hotdesk-scheduler serve`: puts engine, service and REST together, and runs until it is asked to end. Pods outlive it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import logging
import os
import secrets
import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

from hotdesk_api.errors import Invalid, Unavailable
from hotdesk_api.models import WorkloadSpec
from hotdesk_api.version import VERSION

from hotdesk_scheduler.core.model import Policy, Workload
from hotdesk_scheduler.decisionlog.writer import DecisionLog
from hotdesk_scheduler.engines.base import Engine, Led, Mirror
from hotdesk_scheduler.engines.local.engine import LocalConfig, LocalEngine
from hotdesk_scheduler.records import Records
from hotdesk_scheduler.rest.app import listen, make_app, make_waiting_app
from hotdesk_scheduler.rest.auth import Authenticator, FileAuthenticator, HubAuthenticator
from hotdesk_scheduler.service import projects, specs
from hotdesk_scheduler.service.callers import Scopes
from hotdesk_scheduler.service.desk import Desk
from hotdesk_scheduler.service.hub import HubClient
from hotdesk_scheduler.service.workspaces import Patience
from hotdesk_scheduler.settings import Settings, parse_seed_projects

log = logging.getLogger(__name__)

PARENT_LOOK_S = 1.0
KEY_BYTES = 32
_PR_SET_PDEATHSIG = 1


def address(settings: Settings) -> tuple[str, int]:
    """Where to listen: where the hub expects its service, else host and port of the settings."""
    if not settings.service_url:
        return settings.host, settings.port
    parts = urlsplit(settings.service_url)
    if parts.hostname is None or parts.port is None:
        raise Invalid(f"JUPYTERHUB_SERVICE_URL {settings.service_url} has no host and port.", field="service_url")
    return parts.hostname, parts.port


def authenticator(settings: Settings) -> Authenticator:
    """Raises Invalid if nobody could tell who calls."""
    scopes = Scopes(settings.service_name)
    if settings.tokens_file is not None:
        return FileAuthenticator(settings.tokens_file, scopes)
    if settings.hub_api_url:
        return HubAuthenticator(settings.hub_api_url, scopes)
    raise Invalid(
        "Nobody can tell who calls: there is neither a hub (JUPYTERHUB_API_URL) nor a file of tokens.",
        field="tokens",
        next_step="Let JupyterHub start this as a service (`make up`), or give --tokens FILE.",
    )


def report_key(path: Path, given: Path | None = None) -> bytes:
    """The key behind jobs' report tokens; kept, so that tokens of running jobs stay good over a restart. `given`: a file that has one."""
    if given is not None:
        return given_key(given)
    with contextlib.suppress(FileNotFoundError):
        if len(found := path.read_bytes()) == KEY_BYTES:
            return found
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = secrets.token_bytes(KEY_BYTES)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
    return key


def given_key(path: Path) -> bytes:
    """Of whatever the file holds; Invalid if that is too little."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Invalid(f"The report key {path} cannot be read: {error.strerror}.", field="report_key_file") from error
    if len(content) < KEY_BYTES:
        raise Invalid(f"The report key {path} has {len(content)} bytes; at least {KEY_BYTES} are needed.", field="report_key_file")
    return hashlib.sha256(content).digest()


def policy(settings: Settings) -> Policy:
    return Policy(
        grace_s=settings.grace_s,
        grant_take_up_s=settings.grant_s,
        min_runtime_s=settings.min_runtime_s,
        preemption_delay_s=settings.preemption_delay_s,
        reserve_after_s=settings.reserve_after_s or None,
        placement=settings.placement,
        history_weight=settings.history_weight,
    )


def make_desk(settings: Settings, engine: Engine) -> Desk:
    managed = settings.hub_api_url and settings.hub_token and settings.tokens_file is None
    url = settings.records_url or f"sqlite:///{settings.scheduler_dir / 'records.db'}"
    return Desk(
        engine,
        Records(url),
        policy=policy(settings),
        hub=HubClient(settings.hub_api_url, settings.hub_token) if managed else None,
        report_key=report_key(settings.scheduler_dir / "report.key", settings.report_key_file),
        tick_s=settings.tick_s,
        patience=Patience(poll_s=settings.workspace_poll_s, wait_s=settings.workspace_wait_s, grant_s=settings.grant_s),
        seed_marker=settings.scheduler_dir / "seeded",
        pause_file=settings.scheduler_dir / "paused",
        decision_log=decision_log(settings),
        mirror=engine if isinstance(engine, Mirror) else None,
        history_half_life_s=settings.history_half_life_s,
    )


def decision_log(settings: Settings) -> DecisionLog | None:
    """What `replay` reads, in the state directory."""
    if not settings.decisions_mib:
        return None
    return DecisionLog(
        settings.scheduler_dir / "decisions",
        most_bytes=settings.decisions_mib * 2**20,
        most_age_s=settings.decisions_keep_s,
        made_by=VERSION,
    )


def make_engine(settings: Settings) -> Engine:
    """The only place that chooses an engine."""
    if settings.engine == "kubernetes":
        return _kubernetes(settings)
    return LocalEngine(LocalConfig(state_dir=settings.state_dir, simulate=settings.simulate or None, parent_pid=_parent(settings)))


def _kubernetes(settings: Settings) -> Engine:
    try:
        from hotdesk_scheduler.engines.kubernetes.engine import KubernetesConfig, KubernetesEngine
        from hotdesk_scheduler.engines.kubernetes.lease import Terms
    except ImportError as error:
        raise Invalid(
            f"The engine kubernetes needs {error.name}, which is not installed.",
            field="engine",
            value="kubernetes",
            next_step="From the root of the repository: pip install '.[hub,kubernetes]'",
        ) from error
    return KubernetesEngine(
        KubernetesConfig(
            namespace=settings.namespace,
            prefix=settings.namespace_prefix,
            pod=settings.pod_name or None,
            kubeconfig=settings.kubeconfig,
            node_patience_s=settings.node_patience_s,
            terms=Terms.lasting(settings.lease_s),
            reservations=settings.reservation_namespace,
            reservation_image=settings.reservation_image,
            reservation_patience_s=settings.reservation_patience_s,
            resolve=_resolved,
        )
    )


def _resolved(spec: WorkloadSpec, workload_id: str, user: str, now: float) -> Workload:
    """What a workload comes to that somebody wrote as a resource. Raises Invalid, TooLarge."""
    specs.check_alone(spec)
    return specs.workload_of(spec, workload_id=workload_id, name=spec.name or workload_id, user=user, now=now)


def _parent(settings: Settings) -> int | None:
    """The hub that started this as its service; None when it was started by hand.

    The hub says who it is: one that was killed while we started has left us to another parent by now, which never ends.
    """
    return settings.hub_pid or (os.getppid() if settings.service_url else None)


async def serve(settings: Settings) -> None:
    """Until SIGTERM, SIGINT or the death of the hub. Raises HotdeskError if it cannot start."""
    parent = _parent(settings)
    ended = asyncio.Event()
    running = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, ended.set)
    watching = asyncio.create_task(_watch_parent(parent, ended), name="parent")
    checks = authenticator(settings)
    desk = make_desk(settings, make_engine(settings))
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(checks.close)
        stack.callback(watching.cancel)
        host, port = address(settings)
        if isinstance(desk.engine, Led):
            port = await _wait_for_turn(desk, settings, ended)
            if ended.is_set():
                return
        else:
            await desk.open()
        stack.push_async_callback(desk.stop)
        lost = asyncio.create_task(_watch_lease(desk.engine, ended), name="lease")
        stack.callback(lost.cancel)
        await projects.seed(desk, parse_seed_projects(settings.seed_projects))
        server, port = await listen(make_app(desk, checks, prefix=settings.service_prefix), host, port)
        stack.callback(server.stop)
        own_url = f"http://{'127.0.0.1' if host in ('', '0.0.0.0', '::') else host}:{port}"  # noqa: S104  # compared, not bound
        desk.api_url = settings.advertise_url or own_url
        _write_port(settings.scheduler_dir / "port", port)
        await desk.start()
        log.info("service.ready url=%s state=%s simulated=%s", desk.api_url, settings.state_dir, settings.simulate or "no")
        await ended.wait()
        log.info("service.stopping pods=stay")
    if lost.done() and not lost.cancelled():
        raise Unavailable(
            "Another scheduler leads now; this one has ended.", next_step="Nothing: it is started again and waits for its turn."
        )


async def _wait_for_turn(desk: Desk, settings: Settings, ended: asyncio.Event) -> int:
    """Opened when it is this scheduler's turn, unless it is asked to end before. It answers /healthz meanwhile, so that nobody kills it.

    Returns the port it listened on, for what it serves then.
    """
    server, port = await listen(make_waiting_app(), *address(settings))
    opening, asked = asyncio.create_task(desk.open()), asyncio.create_task(ended.wait())
    try:
        _write_port(settings.scheduler_dir / "port", port)
        await asyncio.wait((opening, asked), return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            await opening
        return port
    finally:
        server.stop()
        await server.close_all_connections()
        for task in (opening, asked):
            task.cancel()
        await asyncio.gather(opening, asked, return_exceptions=True)


async def _watch_lease(engine: Engine, ended: asyncio.Event) -> None:
    if not isinstance(engine, Led):
        await asyncio.Event().wait()  # there is only one
        return
    await engine.lost()
    log.error("service.superseded")
    ended.set()


def _write_port(path: Path, port: int) -> None:
    """A hint for people and tests; a full disk is no reason not to serve."""
    with contextlib.suppress(OSError):
        path.write_text(f"{port}\n")


async def _watch_parent(parent: int | None, ended: asyncio.Event) -> None:
    """A service does not outlive its hub; its pods do. The kernel tells on Linux; looking covers the rest."""
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    while os.getppid() == parent:  # noqa: ASYNC110  # nothing wakes for this where there is no PR_SET_PDEATHSIG
        await asyncio.sleep(PARENT_LOOK_S)
    log.warning("service.orphaned parent=%s", parent)
    ended.set()
