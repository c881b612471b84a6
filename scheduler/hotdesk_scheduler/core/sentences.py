"""What the holds say first: the fact, and the numbers behind it. What would help is found by `remedies` and said by `advice`.

Here is what rules and times say; `unsuitable` says why no node would ever do, `lack` what lacks now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.advice import join
from hotdesk_scheduler.core.lack import whose
from hotdesk_scheduler.core.ledger import Ledger, Seat
from hotdesk_scheduler.core.lifecycle import failure, pause_s, retries, retry_at
from hotdesk_scheduler.core.model import PodState, Workload
from hotdesk_scheduler.core.quantities import amount_words
from hotdesk_scheduler.core.reasons import Reason, ReasonCode, reason
from hotdesk_scheduler.core.requests import Kept, Request

MOST_NAMED = 4


def few(names: Sequence[str], others: str = "others") -> str:
    """All of up to four names, else three and how many others."""
    return join([*names[: MOST_NAMED - 1], f"{len(names) - MOST_NAMED + 1} {others}"] if len(names) > MOST_NAMED else names)


def over_limit(account: Account, resource: int, request: Request) -> Reason:
    code = ReasonCode.OVER_DEPARTMENT_LIMIT if account.is_department else ReasonCode.OVER_PROJECT_LIMIT
    used, limit = account.allocated[resource], account.limit[resource]
    sentence = (
        f"{'Department' if account.is_department else 'Project'} {account.name} may use at most {amount_words(limit, resource)} and uses "
        f"{amount_words(used, resource)}; this asks for {amount_words(request.ask[resource], resource)}."
    )
    return reason(code, sentence, asked=request.ask[resource], limit=limit, used=used)


def over_fixed_quota(account: Account, resource: int, request: Request) -> Reason:
    used, quota = account.fixed[resource], account.quota[resource]
    sentence = (
        f"Non-preemptible work never goes over quota: {whose(account)} has a quota of {amount_words(quota, resource)}, non-preemptible "
        f"work holds {amount_words(used, resource)} of it, and this asks for {amount_words(request.ask[resource], resource)}."
    )
    return reason(ReasonCode.NON_PREEMPTIBLE_OVER_QUOTA, sentence, asked=request.ask[resource], quota=quota, used=used)


def protected(until: float, names: tuple[str, ...], ledger: Ledger) -> Reason:
    """Others would have to make way, and have not run for as long as everybody may."""
    left = max(1, round(until - ledger.now))
    sentence = (
        f"It may take the place of {few(names)}, which started recently: everybody may run for at least "
        f"{ledger.policy.min_runtime_s:.0f} s."
    )
    return reason(ReasonCode.VICTIMS_PROTECTED, sentence, until=int(until), left_s=left)


def too_young(request: Request, ledger: Ledger) -> Reason:
    """The preemption delay: until then it takes what is free, and nobody is stopped for it."""
    left = max(1, round(request.workload.created_at + ledger.policy.preemption_delay_s - ledger.now))
    sentence = (
        f"Nothing that is free suffices, and nobody is stopped for work younger than {ledger.policy.preemption_delay_s:.0f} s: "
        f"others may be asked to make way in {left} s."
    )
    return reason(ReasonCode.VICTIMS_PROTECTED, sentence, left_s=left)


def waiting_for_release(seat: Seat, leaving: list[Seat], ledger: Ledger) -> Reason:
    pods = Counter(s.workload.id for s in leaving)
    those = {s.workload.id: s.workload for s in leaving}
    goes_on = {w.id for w in those.values() if any(ledger.stays(w, pod) for pod in w.pods)}
    names = sorted({f"{_count_of(pods[w.id]) if w.id in goes_on else ''}{w.name} of {w.project}" for w in those.values()})
    until = max((s.pod.release_deadline or 0.0 for s in leaving), default=0.0)
    who = few(names) if names else "what is being stopped there"
    many = len(names) > 1 or any(pods[workload_id] > 1 for workload_id in goes_on)
    sentence = (
        f"Its place on {seat.spot.node.name} is kept while {who} shut{'' if many else 's'} down; it starts as soon as "
        f"{'they are' if many else 'that is'} gone, at the latest when the notice {'they were' if many else 'it was'} given has run out."
    )
    return reason(ReasonCode.WAITING_FOR_RELEASE, sentence, node=seat.spot.node.name, until=int(until))


def _count_of(pods: int) -> str:
    """Before the name of a workload whose other pods go on."""
    return f"{pods} pod{'s' if pods > 1 else ''} of "


def own_pods_stopping() -> Reason:
    return reason(ReasonCode.WAITING_FOR_RELEASE, "Its own pods are still shutting down; it is queued again when they are gone.")


def to_be_made(workload: Workload) -> Reason:
    """Of a gang whose pods others make, one by one."""
    there, least = len(workload.pods), workload.min_pods
    lacking = least - there
    sentence = (
        f"{there} of {least} pods of {workload.name} {'is' if there == 1 else 'are'} there, and they start together or not at all: "
        f"it waits until {'the last one is' if lacking == 1 else f'the other {lacking} are'} made. Look at what makes them if they do not "
        "come."
    )
    return reason(ReasonCode.GANG_INCOMPLETE, sentence, min_pods=least, pods=there)


def backing_off(workload: Workload) -> Reason:
    failed = [pod for pod in workload.pods if pod.state is PodState.FAILED]
    limit = retries(workload)
    image = any(pod.stop_reason and pod.stop_reason.code is ReasonCode.IMAGE_OR_VOLUME_ERROR for pod in failed)
    code = ReasonCode.IMAGE_OR_VOLUME_ERROR if image else ReasonCode.BACKING_OFF
    last = max(failed, key=lambda pod: retry_at(workload, pod))
    pause, until = f"{pause_s(workload, last):.0f} s", int(retry_at(workload, last))
    if all(pod.stop_reason and pod.stop_reason.code is ReasonCode.START_REFUSED for pod in failed):
        again = f"It gave its place back and is tried again {pause} later"
        sentence = f"{failure(failed)} {again}; this does not count as a failure of its own."
        return reason(ReasonCode.BACKING_OFF, sentence, until=until)
    sentence = (
        f"{failure(failed)} It is tried again {pause} later (failure {workload.failures}; {limit} "
        f"retr{'y is' if limit == 1 else 'ies are'} allowed). {'Delete' if image else 'Its logs say why; delete'} it to stop the retries."
    )
    return reason(code, sentence, failures=workload.failures, limit=limit, until=until)


def unknown_project(workload: Workload) -> Reason:
    return reason(
        ReasonCode.UNKNOWN_PROJECT,
        f"There is no project {workload.project} (any more). An admin has to create it, or submit this to another project.",
        project=workload.project,
    )


def kept(request: Request, owner: Workload, ledger: Ledger) -> Reason:
    """What is free would do, but a reservation keeps it (core/reserve)."""
    wished = request.wished or request.eligible
    nodes = [spot.node.name for spot in ledger.spots if spot.order in wished and spot.order not in request.eligible]
    sentence = (
        f"What is free on {few(nodes, 'more nodes')} is kept for {owner.name} of {owner.project}, which has waited long; until that has "
        "started only work that gives way to it may start there."
    )
    return reason(ReasonCode.KEPT_FOR_OTHERS, sentence, by=owner.project, name=owner.name, nodes=len(nodes))


def kept_for_it(kept: Kept, after_s: float) -> str:
    """For who has waited long (core/reserve)."""
    nodes = f"{few(kept.nodes, 'more')} {'is' if len(kept.nodes) == 1 else 'are'} kept for it"
    told = f"{nodes}, as it has waited longer than {after_s:.0f} s: what started there since then gives way."
    if not kept.blockers:
        return told
    names = few([f"{name} of {project}" for name, project in kept.blockers])
    return f"{told} {names} {'has' if len(kept.blockers) == 1 else 'have'} to end first."


def only_wait(why: Reason) -> str:
    """Where nothing simple is known to help: said too, so that nobody looks for it."""
    what = "until enough of what runs has ended"
    if why.code is ReasonCode.NODES_EXCLUDED:
        what = "for a node that it may use"
    elif why.code is ReasonCode.KEPT_FOR_OTHERS:
        what = "until that has started"
    elif dict(why.numbers).get("largest_mib") == 0:
        what = "for a node that says it (on a cluster, by the label nvidia.com/gpu.memory)"
    elif why.code is ReasonCode.NO_NODE_LARGE_ENOUGH or "fit_when_empty" in dict(why.numbers):
        what = "for larger or more nodes"
    return f"As it is submitted, it can only wait {what}."
