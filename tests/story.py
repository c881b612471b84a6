"""The published four-teams walk-through, line by line as it is written, and what it says comes out (GPUs in thousandths)."""

from __future__ import annotations

FOUR_TEAMS = [
    "submit a-1-1-jupyter -i jupyter/base-notebook -g 1 --interactive --service-type=ingress --port 8888 \\\n"
    '  --args="--NotebookApp.base_url=team-a-test-ingress" --command=start-notebook.sh -p team-a',
    "submit a-1-g    -i gcr.io/run-ai-demo/quickstart -g 1 -p team-a",
    "submit a-2-gg   -i gcr.io/run-ai-demo/quickstart -g 2 -p team-a",
    "submit b-1-g06  -i gcr.io/run-ai-demo/quickstart -g 0.6 --interactive -p team-b",
    "submit b-2-g04  -i gcr.io/run-ai-demo/quickstart -g 0.4 --interactive -p team-b",
    "submit b-3-g    -i gcr.io/run-ai-demo/quickstart -g 1 -p team-b",
    "submit b-4-gg   -i gcr.io/run-ai-demo/quickstart -g 2 -p team-b",
    "submit c-1-g05  -i gcr.io/run-ai-demo/quickstart -g 0.5 --interactive -p team-c",
    "submit c-2-g03  -i gcr.io/run-ai-demo/quickstart -g 0.3 --interactive -p team-c",
    "submit c-3-g02  -i gcr.io/run-ai-demo/quickstart -g 0.2 --interactive -p team-c",
    "submit c-4-gg   -i gcr.io/run-ai-demo/quickstart -g 2 -p team-c",
    "submit c-5-g    -i gcr.io/run-ai-demo/quickstart -g 1 -p team-c",
    "submit d-1-gggg -i gcr.io/run-ai-demo/quickstart -g 4 -p team-d",
]
AFTER_EACH = [
    {"team-a": 1000},
    {"team-a": 2000},
    {"team-a": 4000},
    {"team-b": 600},
    {"team-b": 1000},
    {"team-b": 2000},
    {"team-b": 4000},
    {"team-c": 500},
    {"team-c": 800},
    {"team-c": 1000},
    {"team-c": 3000},
    {"team-c": 4000},
    {"team-d": 4000},
]
OVER_QUOTA = [
    "submit d-2-gg -i gcr.io/run-ai-demo/quickstart -g 2 -p team-d",
    "submit d-3-gg -i gcr.io/run-ai-demo/quickstart -g 2 -p team-d",
]
QUEUES = [
    "submit a-3-gg -i gcr.io/run-ai-demo/quickstart -g 2 -p team-a",
    "submit a-4-gg -i gcr.io/run-ai-demo/quickstart -g 2 -p team-a",
    "submit b-5-gg -i gcr.io/run-ai-demo/quickstart -g 2 -p team-b",
    "submit c-6-gg -i gcr.io/run-ai-demo/quickstart -g 2 -p team-c",
]
THE_DELETE = "delete -p team-d d-1-gggg d-2-gg d-3-gg"
NEVER_TOUCHED = ["a-1-1-jupyter", "a-1-g", "a-2-gg", "b-1-g06", "b-2-g04", "c-1-g05", "c-2-g03", "c-3-g02"]
QUOTAS = {"team-a": 4000, "team-b": 2000, "team-c": 2000, "team-d": 8000}
