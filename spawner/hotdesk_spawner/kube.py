"""Workspaces as pods: KubeSpawner, waiting in the scheduler's queue, its pod placed by the grant, in the project's own namespace.

What KubeSpawner keeps for one namespace and one life of the hub is made to hold for several: the place is written down before the
pod is made, so that a hub killed in between finds the pod again; each namespace gets its own claim; events are the pod's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotdesk_api.errors import Conflict, HotdeskError, Invalid, Unavailable
from hotdesk_api.models import Grant, PodGrant, WorkloadSpec
from kubernetes_asyncio.client import ApiException
from kubespawner import KubeSpawner
from traitlets import Integer, default

from hotdesk_spawner import manifest, options, progress
from hotdesk_spawner.options import Wish
from hotdesk_spawner.place import Place
from hotdesk_spawner.refusal import refusal
from hotdesk_spawner.shared import in_background
from hotdesk_spawner.spawner import QueuedSpawner, queued

LOOK_EVERY_S = 0.5
KILLED_WITHIN_S = 10  # from SIGKILL until the API server has no such pod any more


class PatientKubeSpawner(KubeSpawner):  # type: ignore[misc]  # KubeSpawner ships no types
    """KubeSpawner takes a server that ended for over, also where its node starts it again in the same pod a moment later."""

    def _pod_there(self) -> Any:
        return self.pod_reflector.pods.get(f"{self.namespace}/{self.pod_name}") if self.pod_reflector else None

    async def poll(self) -> int | None:
        await self._start_watching_pods()
        pod = self._pod_there()
        ended = manifest.ended_in_running_pod(pod) if pod is not None else None
        if ended is None:
            found: int | None = await super().poll()
            return found
        if ended.starts_again:
            return None
        await self.stop(now=True)  # whatever is to become of pods that have stopped: this one has not
        return ended.exit_code

    async def progress(self) -> AsyncIterator[progress.Event]:
        async for event in super().progress():
            yield progress.from_cluster(event)


_QueuedKubeSpawner: Any = queued(PatientKubeSpawner)


class HotdeskKubeSpawner(_QueuedKubeSpawner):  # type: ignore[misc]  # made when the module is loaded
    """`c.JupyterHub.spawner_class = "hotdesk-kube"`. All of `c.KubeSpawner…` holds; one watch looks at all namespaces."""

    user_options: dict[str, Any]
    namespace: str
    _spawn_future: asyncio.Future[None] | None

    grace_s = Integer(30, min=0, help="Seconds between SIGTERM and SIGKILL of a server that is stopped; as the scheduler's.").tag(
        config=True
    )

    def __init__(self, *arguments: Any, **traits: Any) -> None:
        self._has_options = False
        self._memory_is_limit = False
        self._is_found_again = False
        self._pod_uid: str | None = None
        super().__init__(*arguments, **traits)

    @default("enable_user_namespaces")
    def _in_projects_namespaces(self) -> bool:
        return True

    @default("user_namespace_template")
    def _until_the_grant_says(self) -> str:
        return "{hubnamespace}"

    @default("delete_grace_period")
    def _grace_within_the_wait_for_its_end(self) -> int:
        """KubeSpawner waits for an end as long as for a start, then gives up: the share would go back while the pod still runs."""
        longest: int = self.start_timeout - KILLED_WITHIN_S
        return max(1, min(self.grace_s, longest))

    async def _ensure_namespace(self) -> None:
        """The scheduler makes the projects' namespaces."""

    # the wish: the form's and JSON's, then KubeSpawner's own options

    async def _profiles(self) -> list[dict[str, Any]]:
        found = self._sorted_dict_values(self.profile_list)
        if callable(found):
            found = await _awaited(found(self))
        profiles: list[dict[str, Any]] = self._get_initialized_profile_list(found)
        return profiles

    async def render_form(self) -> str:
        profiles = await self._profiles()
        return str(await super().render_form()) + (str(self._render_options_form(profiles)) if profiles else "")

    def _read_form(self, fields: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        theirs = {name: values for name, values in fields.items() if name == "profile" or name.startswith("profile-option-")}
        ours = QueuedSpawner._read_form(self, {name: values for name, values in fields.items() if name not in theirs})
        return {**ours, **self._options_from_form(theirs)}

    async def asked(self, projects: Sequence[str]) -> tuple[Wish, WorkloadSpec]:
        self.user_options = dict(options.unwrapped(self.user_options or {}))
        self._has_options = False
        try:
            profiles = await self._profiles()
            profile = self._get_profile(self.user_options.get("profile"), profiles) if profiles else None
            theirs = manifest.options_of(profile)
            wish = options.read({name: value for name, value in self.user_options.items() if name not in theirs}, projects=projects)
            await self.load_user_options()
        except (ValueError, KeyError) as error:
            said = str(error) if isinstance(error, ValueError) else f"There is no choice {error}."
            raise Invalid(said, field="profile", next_step="Choose one of those in the form.") from error
        spec = manifest.with_options(options.spec_of(wish, user=self.user.name, server=self.name), self)
        spec = spec.model_copy(update={"volume_claims": manifest.claims_of(self._expand_all(self._sorted_dict_values(self.volumes)))})
        self._memory_is_limit = wish.memory_mib is not None
        return replace(wish, gpu_millis=spec.gpu_millis), spec

    async def load_user_options(self) -> None:
        """Once for each wish: before it is queued, and not again at the start."""
        if not self._has_options:
            await super().load_user_options()
            self._has_options = True

    # starting with the grant

    async def start(self) -> Any:
        grant, marks = self._granted()
        self._move_to(marks.namespace)
        self._pod_uid = None
        self._is_found_again = False
        self.save_state()
        await self._show_claim_its_node(grant.node)
        url = await super().start()
        self._asked_to_stop = False  # a pod left over by that name was cleared away
        return url

    def _granted(self) -> tuple[Grant, PodGrant]:
        if self._grant is None or self._grant.pod is None:
            raise refusal(
                Unavailable("The scheduler has no cluster to make a pod on.", next_step="An admin starts it with --engine kubernetes.")
            )
        return self._grant, self._grant.pod

    def _move_to(self, namespace: str) -> None:
        if namespace != self.namespace:
            self.namespace = namespace
            self._pvc_exists = False  # it is remembered without its namespace
        self.dns_name = self.dns_name_template.format(namespace=namespace, name=self.pod_name)

    async def get_pod_manifest(self) -> Any:
        pod = await super().get_pod_manifest()
        if self._grant is not None:
            manifest.place(pod, self._grant, memory_is_limit=self._memory_is_limit)
        return pod

    def get_pvc_manifest(self) -> Any:
        """A class that waits for the first consumer is told its node: no scheduler but ours will."""
        claim = super().get_pvc_manifest()
        if self._grant is not None:
            claim.metadata.annotations = {**(claim.metadata.annotations or {}), manifest.SELECTED_NODE: self._grant.node}
        return claim

    async def _show_claim_its_node(self, node: str) -> None:
        """A claim of an earlier start that was not bound then has lost its node, or names another one."""
        if not self.storage_pvc_ensure:
            return
        try:
            claim = await self.api.read_namespaced_persistent_volume_claim(self.pvc_name, self.namespace)
            if claim.status.phase == "Pending" and (claim.metadata.annotations or {}).get(manifest.SELECTED_NODE) != node:
                body = {"metadata": {"annotations": {manifest.SELECTED_NODE: node}}}
                await self.api.patch_namespaced_persistent_volume_claim(self.pvc_name, self.namespace, body)
        except ApiException as error:
            if error.status != 404:
                raise
            self._pvc_exists = False  # somebody deleted it

    async def _tell_started(self, place: Place) -> None:
        await super()._tell_started(place)
        if self._place is place:
            self.save_state()

    # what outlives the hub

    def save_state(self) -> None:
        """JupyterHub does so only once the start has returned: a hub killed before would look for the pod where it is not."""
        if self.orm_spawner is not None:
            self.orm_spawner.state = self.get_state()
            self.db.commit()

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state()
        if self._place is not None:
            state["hotdesk"] |= {"running": self._place.running, "stopping": self._asked_to_stop}
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._is_found_again = self._place is not None
        self._asked_to_stop = bool(state.get("hotdesk", {}).get("stopping"))

    async def stop(self, now: bool = False) -> None:
        self._asked_to_stop = True
        if not now:  # KubeSpawner's own, of what has ended or is in the way
            self.save_state()
        await super().stop(now)

    async def poll(self) -> int | None:
        is_first_look = self._is_found_again and not self._stop_pending
        if is_first_look:
            await (self._stop_at_last() if self._asked_to_stop else self._until_it_has_come_or_gone())
        asked_to_stop = self._asked_to_stop
        status: int | None = await super().poll()
        if status is not None and not self._stop_pending:
            self._asked_to_stop = asked_to_stop  # KubeSpawner clears an ended pod away by `stop`
        if status is None and is_first_look and self._place is not None:
            self._is_found_again = self._waiting = False
            if not self._place.running:
                in_background(self._tell_found(self._place))
        return status

    async def _stop_at_last(self) -> None:
        """The hub before was asked to, and killed. JupyterHub would ask first whether its server answers."""
        self._check_pending, self._stop_pending = False, True
        await self.stop()

    async def _until_it_has_come_or_gone(self) -> None:
        """Its address is not known before, or nobody answers there: JupyterHub would ask it, and delete the pod in the end."""
        interrupted = self._spawn_future = asyncio.get_running_loop().create_future()  # JupyterHub cancels it to stop the workspace
        interrupted.add_done_callback(self._let_go)
        await self._start_watching_pods()
        looks = int(self.start_timeout / LOOK_EVERY_S)
        while self._stop_pending or (looks > 0 and (self.server is not None if interrupted.cancelled() else self._is_on_its_way())):
            looks -= 1
            await asyncio.sleep(LOOK_EVERY_S)
        self._spawn_future = None
        if self._is_coming():
            await self.stop(now=True)

    def _let_go(self, _: asyncio.Future[None]) -> None:
        """JupyterHub stops it a second later, if nothing is pending then. Until then it is not ready."""
        self._check_pending, self._waiting, self._spawn_future = False, True, None

    def _is_on_its_way(self) -> bool:
        pod = self._pod_there()
        return self._is_coming() or (pod is not None and "deletionTimestamp" in pod["metadata"])

    def _is_coming(self) -> bool:
        pod = self._pod_there()
        if pod is None or self._place is None or self._place.running or "deletionTimestamp" in pod["metadata"]:
            return False
        return not self.is_pod_running(pod) and pod["status"]["phase"] not in ("Succeeded", "Failed")

    async def _tell_found(self, place: Place) -> None:
        try:
            await place.started()
        except Conflict as error:
            if error.value == "releasing":  # with notice: the scheduler asks the hub to stop it when it is time
                place.running = True
            else:
                await self._give_up(place, error)
        except HotdeskError as error:
            await self._give_up(place, error)
        if self._place is place:
            self.save_state()

    async def _give_up(self, place: Place, error: HotdeskError) -> None:
        self.log.error("workspace.grant_gone workload=%s/%s: %s", place.project, place.name, error)
        await self.stop()

    # progress

    @property
    def events(self) -> list[Any]:
        """Of the pod of this start. KubeSpawner's own go by its name: those of other namespaces and of earlier pods show up."""
        pod = self._pod_there()
        if pod is not None and self._grant is not None and self._grant.pod is not None:
            marks = self._grant.pod.labels
            if marks.items() <= (pod["metadata"].get("labels") or {}).items():
                self._pod_uid = pod["metadata"]["uid"]
        if self._pod_uid is None or self.event_reflector is None:
            return []
        return [event for event in self.event_reflector.events if event["involvedObject"].get("uid") == self._pod_uid]


async def _awaited(value: Any) -> Any:
    return await value if asyncio.iscoroutine(value) or isinstance(value, asyncio.Future) else value
