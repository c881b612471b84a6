"""Who is charged: projects and departments as one tree, with their quotas, limits and running sums.

Every rule on a project holds on its department too, so both are the same thing here. A project without a department stands beside
the departments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from hotdesk_scheduler.core.model import WHOLE_GPU, Department, Project
from hotdesk_scheduler.core.quantities import GPU, RESOURCES, UNLIMITED, Vector


@dataclass(slots=True, eq=False)
class Account:
    """One project or department. The lists are indexed by resource; `fixed` is the non-preemptible part of `allocated`."""

    name: str
    parent: Account | None
    quota: list[int]
    limit: list[int]
    weight: int
    priority: int
    created_at: float
    project: Project | None = None
    seniority: int = 0
    """Place among all projects by age: grows with youth."""
    children: list[Account] = field(default_factory=list)
    path: tuple[Account, ...] = ()
    allocated: list[int] = field(default_factory=lambda: [0, 0, 0])
    fixed: list[int] = field(default_factory=lambda: [0, 0, 0])
    requested: list[int] = field(default_factory=lambda: [0, 0, 0])
    fair: list[int] = field(default_factory=lambda: [0, 0, 0])
    share: list[int] = field(default_factory=lambda: [0, 0, 0])
    weight_now: int | None = None
    """The weight as past use leaves it, where past use counts."""

    @property
    def is_department(self) -> bool:
        return self.project is None

    @property
    def side(self) -> Account:
        """The account beside the other departments: where branches of different departments part."""
        return self.path[-1]

    def want(self, amount: Vector, sign: int) -> None:
        """Add (or take back) what a workload asks for in all, placed or not."""
        requested = self.requested
        requested[0] += sign * amount[0]
        requested[1] += sign * amount[1]
        requested[2] += sign * amount[2]

    def charge(self, amount: Vector, fixed: bool, sign: int) -> None:
        """Add (or take back, sign -1) an amount here and at the department."""
        gpu, cpu, memory = amount if sign > 0 else (-amount[0], -amount[1], -amount[2])
        for account in self.path:
            sums = account.allocated
            sums[0] += gpu
            sums[1] += cpu
            sums[2] += memory
            if fixed:
                sums = account.fixed
                sums[0] += gpu
                sums[1] += cpu
                sums[2] += memory


def _account(entitled: Department | Project, quota: list[int], parent: Account | None = None) -> Account:
    """Quota, limit and weight as they count: None is unlimited; without over-quota no limit is above the quota."""
    limit = [UNLIMITED if one.limit is None else one.limit for one in (entitled.gpu, entitled.cpu, entitled.memory)]
    if not entitled.over_quota:
        limit = [min(limit[r], quota[r]) for r in RESOURCES]
    weight = entitled.weight
    if weight is None:
        weight = WHOLE_GPU if quota[GPU] >= UNLIMITED else quota[GPU]
    account = Account(
        name=entitled.name,
        parent=parent,
        quota=quota,
        limit=limit,
        weight=weight,
        priority=entitled.priority,
        created_at=entitled.created_at,
        project=entitled if isinstance(entitled, Project) else None,
    )
    account.path = (account, parent) if parent else (account,)
    return account


def _quotas(entitled: Department | Project) -> list[int]:
    return [UNLIMITED if one.quota is None else one.quota for one in (entitled.gpu, entitled.cpu, entitled.memory)]


def _department(department: Department, projects: Iterable[Project]) -> Account:
    quota = _quotas(department)
    if department.quota_is_sum:
        parts = [p.gpu.quota for p in projects if p.department == department.name]
        quota[GPU] = UNLIMITED if None in parts else sum(part or 0 for part in parts)
    return _account(department, quota)


def seniority(account: Account) -> tuple[float, str]:
    """Older first, then the name: how ties between projects are broken."""
    return (account.created_at, account.name)


def build(departments: Iterable[Department], projects: Iterable[Project]) -> tuple[dict[str, Account], list[Account]]:
    """Projects by name, and the top level (departments, and projects without one), oldest first."""
    projects = list(projects)
    parents = {d.name: _department(d, projects) for d in departments}
    accounts = {p.name: _account(p, _quotas(p), parents.get(p.department or "")) for p in projects}
    for place, account in enumerate(sorted(accounts.values(), key=seniority)):
        account.seniority = place
        if account.parent:
            account.parent.children.append(account)
    top = [a for a in (*parents.values(), *accounts.values()) if a.parent is None]
    return accounts, sorted(top, key=seniority)


def same_tree(before: Sequence[Department | Project], after: Sequence[Department | Project]) -> bool:
    """Whether the same ones differ at most in what they are entitled to: quotas, limits, weight, priority, over-quota."""
    return len(before) == len(after) and all(
        a is b or replace(b, gpu=a.gpu, cpu=a.cpu, memory=a.memory, weight=a.weight, priority=a.priority, over_quota=a.over_quota) == a
        for a, b in zip(before, after, strict=True)
    )


def entitle(top: Iterable[Account], departments: Iterable[Department], projects: Iterable[Project]) -> None:
    """Give the accounts of the same tree (its top level) what they are entitled to now; their sums stay."""
    fresh = {(one.is_department, one.name): one for one in _all(build(departments, projects)[1])}
    for account in _all(top):
        new = fresh[account.is_department, account.name]
        account.quota, account.limit, account.weight, account.priority = new.quota, new.limit, new.weight, new.priority
        account.project = new.project


def _all(top: Iterable[Account]) -> Iterator[Account]:
    for account in top:
        yield account
        yield from account.children
