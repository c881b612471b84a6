"""What a project may start at all: limits, and quota for non-preemptible work, at the project and its department (scheduling.md 2)."""

from __future__ import annotations

from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.requests import Request


def over_limit(request: Request) -> tuple[Account, int] | None:
    """The first account (project, then department) and resource whose limit the request would break, or None."""
    ask = request.ask
    for account in request.account.path:
        for r in request.asked:
            if account.allocated[r] + ask[r] > account.limit[r]:
                return account, r
    return None


def over_fixed_quota(request: Request) -> tuple[Account, int] | None:
    """For non-preemptible work: the first account and resource whose quota it would exceed together with what is held so already."""
    if not request.fixed:
        return None
    ask = request.ask
    for account in request.account.path:
        for r in request.asked:
            if account.fixed[r] + ask[r] > account.quota[r]:
                return account, r
    return None


def may_start(request: Request) -> bool:
    """Limits and quotas allow it, as the ledger stands."""
    return over_limit(request) is None and over_fixed_quota(request) is None


def stays_within_share(request: Request) -> bool:
    """With the request its project stays within its allocatable share, in what the request asks for."""
    allocated, share, ask = request.account.allocated, request.account.share, request.ask
    return all(allocated[r] + ask[r] <= share[r] for r in request.asked)
