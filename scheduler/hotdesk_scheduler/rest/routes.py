"""Which path goes to which handler. `/v1` is there at the root and below the hub's service prefix; health only at the root."""

from __future__ import annotations

from tornado import web

from hotdesk_scheduler.rest import cluster, shell, streams, workloads

_W = r"/v1/workloads/([^/]+)/([^/]+)"
V1: tuple[tuple[str, type[web.RequestHandler]], ...] = (
    (r"/v1/version", cluster.Version),
    (r"/v1/whoami", cluster.Me),
    (r"/v1/cluster", cluster.Cluster),
    (r"/v1/scheduling", cluster.Scheduling),
    (r"/v1/images", cluster.Images),
    (r"/v1/nodes", cluster.Nodes),
    (r"/v1/projects", cluster.Projects),
    (r"/v1/projects/([^/]+)", cluster.Project),
    (r"/v1/departments", cluster.Departments),
    (r"/v1/departments/([^/]+)", cluster.Department),
    (r"/v1/workloads", workloads.Workloads),
    (r"/v1/explain", workloads.WhatIf),
    (r"/v1/events", streams.Stream),
    (_W, workloads.Workload),
    (_W + r"/suspend", workloads.Suspend),
    (_W + r"/resume", workloads.Resume),
    (_W + r"/events", workloads.Events),
    (_W + r"/explain", workloads.Explain),
    (_W + r"/progress", workloads.Progress),
    (_W + r"/pod", workloads.Pod),
    (_W + r"/logs", streams.Logs),
    (_W + r"/exec", shell.Exec),
)
ROOT: tuple[tuple[str, type[web.RequestHandler]], ...] = (
    (r"/healthz", cluster.Healthy),
    (r"/readyz", cluster.Ready),
    (r"/metrics", cluster.Metrics),
    (r"/openapi.json", cluster.OpenApi),
)
