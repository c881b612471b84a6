"""The one table of verbs behind `%runai`, `%%runai`, `hotdesk` and `runai`. Parsing, help, completion and docs/commands.md read it."""

from __future__ import annotations

from hotdesk.commands.flags import ALL_PROJECTS, EVERYWHERE, JOB, JOBS, OUTPUT, POD, PROJECT, TOKEN, URL, WATCH, YES, Flag, Verb, Word
from hotdesk.commands.submit_flags import SUBMIT_FLAGS

NODE_NAMES = Word("NODE", "names of nodes", required=False, many=True, live="nodes")
PROJECT_NAME = Word("PROJECT", "name of the project", live="projects")
DETAILS = Flag("--details", "per GPU", short="-d")
ON_OFF = ("on", "off")
DEPARTMENT_NAME = Word("DEPARTMENT", "name of the department", live="departments")
OVER_QUOTA = Flag("--over-quota", "may it use idle GPUs beyond the quota", "on|off", choices=ON_OFF)
LIMIT = Flag("--limit", "most GPUs it may use in all, or unlimited", "GPUS", also=("--gpu-limit",))
CPU_QUOTA = Flag("--cpu-quota", "CPU cores that are guaranteed, or unlimited", "CORES")
MEMORY_QUOTA = Flag("--memory-quota", "main memory that is guaranteed, or unlimited", "MEMORY")
GPU_QUOTA_SPELLINGS = ("--quota", "--deserved-gpus")
PROJECT_FLAGS = (
    Flag("--gpu-quota", "GPUs that are guaranteed: 4, 0.5, or unlimited", "GPUS", short="-g", also=GPU_QUOTA_SPELLINGS),
    LIMIT,
    OVER_QUOTA,
    Flag("--over-quota-weight", "its part of idle GPUs, against other projects': 2, 0.5", "WEIGHT", also=("--weight",)),
    Flag("--department", "department it belongs to, or none", "NAME", live="departments"),
    Flag("--priority", "order among projects", "N"),
    CPU_QUOTA,
    MEMORY_QUOTA,
    Flag("--interactive-time-limit", "interactive jobs end after this time: 8h; 0 = never", "TIME"),
    Flag("--train-node-type", "node type its training may use", "TYPE", repeat=True, live="node-types"),
    Flag("--interactive-node-type", "node type its interactive jobs may use", "TYPE", repeat=True, live="node-types"),
)
DEPARTMENT_FLAGS = (
    Flag("--gpu-quota", "GPUs that are guaranteed: 8, unlimited, or sum (of its projects')", "GPUS", short="-g", also=GPU_QUOTA_SPELLINGS),
    LIMIT,
    OVER_QUOTA,
    Flag("--over-quota-weight", "its part of idle GPUs, against other departments': 2, 0.5", "WEIGHT", also=("--weight",)),
    Flag("--priority", "order among departments", "N"),
    CPU_QUOTA,
    MEMORY_QUOTA,
)

SUBMIT = Verb(
    ("submit",),
    "Submit a job.",
    "jobs.submit",
    words=(Word("NAME", "name of the job; none: job-N", required=False),),
    flags=SUBMIT_FLAGS,
    rest="arguments; with --command the whole command",
    examples=(
        "submit hyper1 -i gcr.io/run-ai-demo/quickstart -g 1",
        "submit build1 -i python -g 1 --interactive --command sleep --args infinity",
        "submit frac05 -i gcr.io/run-ai-demo/quickstart -g 0.5 --interactive",
        "submit train1 -i python -g 1 --working-dir /tmp --command -- python -c 'print(6 * 7)'",
    ),
    details="Exit code 3: policy or quota refuses it for good. In a notebook `%%runai submit NAME -g 1` runs the cell's body as the job;\n"
    "without `-i` in the image `python`, on a cluster in the workspace's own.",
)
SEEING = (
    Verb(
        ("list", "jobs"),
        "List jobs, with what they hold and what they wait for.",
        "jobs.list_jobs",
        flags=(
            PROJECT,
            ALL_PROJECTS,
            Flag("--status", "only with this status: Running, Pending …", "STATUS"),
            Flag("--user", "only of this user", "USER", short="-u"),
            OUTPUT,
            WATCH,
        ),
        also=(("list",), ("ls",), ("list", "job"), ("get", "jobs")),
        examples=("list", "list jobs -A", "list -o json", "list -w"),
    ),
    Verb(
        ("list", "projects"),
        "List projects with quota, use and limits.",
        "cluster.list_projects",
        flags=(OUTPUT, WATCH),
        also=(("list", "project"), ("project", "list"), ("ls", "projects")),
        examples=("list projects",),
    ),
    Verb(
        ("list", "departments"),
        "List departments with their projects, quota, use and limits.",
        "departments.listed",
        flags=(OUTPUT, WATCH),
        also=(("list", "department"), ("department", "list"), ("ls", "departments")),
        examples=("list departments",),
    ),
    Verb(
        ("list", "nodes"),
        "List nodes and their GPUs.",
        "cluster.list_nodes",
        words=(NODE_NAMES,),
        flags=(OUTPUT, WATCH),
        also=(("list", "node"), ("node", "list"), ("ls", "nodes")),
        examples=("list nodes",),
    ),
    Verb(
        ("list", "images"),
        "List the images (environments) this cluster knows.",
        "cluster.list_images",
        flags=(OUTPUT,),
        also=(("images",),),
        examples=("list images",),
    ),
    Verb(
        ("describe", "job"),
        "Show one job: state, reason, pods, events, the line it was submitted with.",
        "jobs.describe",
        words=(JOB,),
        flags=(PROJECT, OUTPUT, Flag("--events", "understood for old scripts; events are always shown", short="-e")),
        also=(("describe",), ("get",), ("get", "job")),
        examples=("describe job hyper1 -p team-a", "get hyper1"),
    ),
    Verb(
        ("describe", "node"),
        "Show nodes with each of their GPUs.",
        "cluster.describe_node",
        words=(NODE_NAMES,),
        flags=(OUTPUT,),
        also=(("describe", "nodes"), ("get", "node")),
        examples=("describe node dgx1-1",),
    ),
    Verb(
        ("why",),
        "Say why a job waits (or where it runs), with quota, fair share, use and what would help.",
        "jobs.why",
        words=(JOB,),
        flags=(PROJECT, OUTPUT),
        examples=("why hyper1",),
    ),
    Verb(
        ("logs",),
        "Show what a job printed.",
        "reach.logs",
        words=(JOB,),
        flags=(
            PROJECT,
            Flag("--follow", "keep showing new lines until the job ends; Ctrl-C detaches, the job goes on", short="-f"),
            Flag("--tail", "only the last N lines", "N", short="-t"),
            Flag("--since", "only what is newer than this: 30s, 2m", "TIME"),
            Flag("--since-time", "only what was printed after this time (RFC 3339)", "WHEN"),
            Flag("--timestamps", "put the time before each line"),
            POD,
        ),
        examples=("logs hyper1 -f", "logs hyper1 -t 10"),
    ),
    Verb(
        ("top", "job"),
        "Show what running jobs hold and use.",
        "jobs.top",
        flags=(PROJECT, ALL_PROJECTS, OUTPUT, WATCH),
        also=(("top", "jobs"),),
        examples=("top job -A",),
    ),
    Verb(
        ("top", "node"),
        "Show what nodes hold and use.",
        "cluster.top_node",
        words=(NODE_NAMES,),
        flags=(DETAILS, OUTPUT, WATCH),
        also=(("top",), ("top", "nodes")),
        examples=("top node -d",),
    ),
)
ACTING = (
    Verb(
        ("exec",),
        "Run a command inside a running job; exits as the command does.",
        "reach.execute",
        words=(JOB, Word("COMMAND", "what to run", raw=True)),
        flags=(
            PROJECT,
            Flag("--stdin", "pass standard input along", short="-i"),
            Flag("--tty", "give the command a terminal", short="-t"),
            POD,
        ),
        rest="the command",
        examples=("exec build1 -- nvidia-smi", "exec -it build1 -- bash"),
    ),
    Verb(
        ("bash",),
        "Open a shell inside a running job.",
        "reach.bash",
        words=(JOB,),
        flags=(PROJECT, POD),
        examples=("bash build1",),
    ),
    Verb(
        ("delete",),
        "Delete jobs; what runs is stopped with notice.",
        "jobs.delete",
        words=(Word("NAME", "names of jobs", required=False, many=True, live="jobs"),),
        flags=(PROJECT, Flag("--all", "all jobs of the project (asks first)", short="-A"), YES),
        also=(("delete", "job"), ("delete", "jobs")),
        examples=("delete hyper1", "delete -p team-d d-1-gggg d-2-gg d-3-gg"),
    ),
    Verb(
        ("suspend",),
        "Stop jobs and keep them, to be resumed.",
        "jobs.suspend",
        words=(JOBS,),
        flags=(PROJECT,),
        also=(("suspend", "job"),),
        examples=("suspend hyper1",),
    ),
    Verb(
        ("resume",),
        "Let suspended jobs run again.",
        "jobs.resume",
        words=(JOBS,),
        flags=(PROJECT,),
        also=(("resume", "job"),),
        examples=("resume hyper1",),
    ),
)
SETTING = (
    Verb(
        ("config", "project"),
        "Choose the project that other commands use.",
        "account.config_project",
        words=(Word("PROJECT", "name of the project", required=False, live="projects"),),
        flags=(Flag("--unset", "forget the choice"),),
        also=(("project", "set"),),
        examples=("config project team-a", "project set team-a"),
        details="The choice wins over the workspace's own project until `config project --unset`. Without a name it says which is in use.",
    ),
    Verb(
        ("project", "create"),
        "Create a project (administrators).",
        "cluster.create_project",
        words=(Word("PROJECT", "name of the new project"),),
        flags=(*PROJECT_FLAGS, OUTPUT),
        examples=("project create team-e --gpu-quota 2",),
    ),
    Verb(
        ("project", "update"),
        "Change a project (administrators); what is not named stays.",
        "cluster.update_project",
        words=(PROJECT_NAME,),
        flags=(*PROJECT_FLAGS, OUTPUT),
        examples=("project update team-a --gpu-quota 6 --over-quota-weight 2",),
    ),
    Verb(
        ("project", "delete"),
        "Delete an empty project (administrators); asks first.",
        "cluster.delete_project",
        words=(PROJECT_NAME,),
        flags=(YES,),
        examples=("project delete team-e --yes",),
    ),
    Verb(
        ("department", "create"),
        "Create a department, which shares quota and limit among its projects (administrators).",
        "departments.create",
        words=(Word("DEPARTMENT", "name of the new department"),),
        flags=(*DEPARTMENT_FLAGS, OUTPUT),
        examples=("department create research --limit 8", "department create lab --gpu-quota 6 --over-quota-weight 2"),
        details="Without `--gpu-quota` its quota is the sum of its projects'. `project update team-a --department lab` puts a project in.",
    ),
    Verb(
        ("department", "update"),
        "Change a department (administrators); what is not named stays.",
        "departments.update",
        words=(DEPARTMENT_NAME,),
        flags=(*DEPARTMENT_FLAGS, OUTPUT),
        examples=("department update research --limit 12", "department update lab --gpu-quota sum"),
    ),
    Verb(
        ("department", "delete"),
        "Delete a department without projects (administrators); asks first.",
        "departments.delete",
        words=(DEPARTMENT_NAME,),
        flags=(YES,),
        examples=("department delete research --yes",),
    ),
    Verb(("whoami",), "Say who one is, in which projects, and with which rights.", "account.whoami", flags=(OUTPUT,), examples=("whoami",)),
    Verb(
        ("login",),
        "Outside a workspace: save where Hotdesk is and a token for it (file of mode 0600).",
        "account.login",
        flags=(URL, TOKEN),
        examples=("login --url http://127.0.0.1:8000",),
    ),
    Verb(("logout",), "Forget the saved token.", "account.logout", examples=("logout",)),
    Verb(
        ("version",),
        "Show the version here and of the scheduler.",
        "account.version",
        flags=(Flag("--short", "only this program's version"), OUTPUT),
        examples=("version --short",),
    ),
    Verb(
        ("completion",),
        'Print the script that teaches a shell to complete: eval "$(runai completion bash)".',
        "account.completion",
        words=(Word("SHELL", "bash, zsh or fish", choices=("bash", "zsh", "fish")),),
        examples=("completion bash",),
        details="In the terminal of a Hotdesk workspace bash completes already.",
    ),
    Verb(
        ("help",), "Explain a command.", "account.help_text", words=(Word("COMMAND", required=False, many=True),), examples=("help submit",)
    ),
)
LATER = (
    Verb(("submit-mpi",), "Submit an MPI job.", also=(("mpi",), ("mj",)), later="MPI jobs"),
    Verb(("submit-dist",), "Submit a distributed job (mpi, pytorch).", later="distributed jobs"),
    Verb(("attach",), "Attach to a job's terminal.", later="attach (`logs -f` and `bash` are there)"),
    Verb(("port-forward",), "Forward local ports to a job.", later="port-forward"),
    Verb(("list", "clusters"), "List clusters.", also=(("config", "cluster"), ("cluster", "set")), later="several clusters"),
    Verb(("list", "templates"), "List templates.", also=(("describe", "template"),), later="templates"),
    Verb(("update",), "Replace this program by a newer one.", later="updating itself (install it with pip)"),
)
VERBS: tuple[Verb, ...] = (SUBMIT, *SEEING, *ACTING, *SETTING, *LATER)


def flags_of(verb: Verb) -> tuple[Flag, ...]:
    """The verb's flags and those every verb has."""
    own = {flag.name for flag in verb.flags}
    return (*verb.flags, *(flag for flag in EVERYWHERE if flag.name not in own))
