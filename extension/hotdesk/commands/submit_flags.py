"""Every flag of `submit`, in Run:ai's spellings, old and new. What comes later is marked so, and refused in words."""

from __future__ import annotations

from hotdesk.commands.flags import OUTPUT, PROJECT, Flag


def _group(group: str, *flags: Flag) -> tuple[Flag, ...]:
    return tuple(_in_group(flag, group) for flag in flags)


def _in_group(flag: Flag, group: str) -> Flag:
    values = {name: getattr(flag, name) for name in Flag.__dataclass_fields__}
    return Flag(**(values | {"group": group}))


IMAGE = Flag("--image", "image to run; `images` of the cluster", "IMAGE", short="-i", live="images")
PARALLELISM = Flag("--parallelism", "pods of a hyper-parameter search that run at once", "N")
COMPLETIONS = Flag("--completions", "pods of a hyper-parameter search that must succeed", "N")

NAMING = _group(
    "Name",
    Flag("--name", "name of the job, when it is not the first word; none: job-N", "NAME"),
    Flag("--job-name-prefix", "start of a generated name", "PREFIX", also=("--name-prefix",)),
    PROJECT,
    Flag("--template", "start from a template", "NAME", later="templates"),
    Flag("--user", "submit for somebody else", "USER", short="-u", later="submitting for somebody else"),
)
TYPE = _group(
    "Type and life cycle",
    Flag("--interactive", "a job people work in: within quota, not stopped for others"),
    Flag("--preemptible", "an interactive job that may exceed the quota, and be stopped for others"),
    Flag("--jupyter", "a Jupyter server: interactive, image jupyter/scipy-notebook, port 8888 unless said otherwise"),
    PARALLELISM,
    COMPLETIONS,
    Flag("--elastic", "run on fewer GPUs while there are not enough", later="elastic jobs"),
    Flag("--inference", "a service that answers requests", later="inference"),
    Flag("--replicas", "copies of an inference service", "N", later="inference"),
    Flag("--backoff-limit", "how often a failed job is tried again (default 6; interactive 0)", "N", also=("--backoffLimit",)),
    Flag(
        "--ttl-after-finish",
        "delete the job this long after it finished: 5s, 2m, 3h",
        "TIME",
        also=("--auto-deletion-time-after-completion",),
    ),
    Flag("--dry-run", "submit nothing; show the plan: starts now and where, or waits and for what"),
    Flag("--wait", "wait until the job is running or finished", "STATE", choices=("running", "finished"), implied="finished"),
    Flag("--timeout", "give up waiting after this time: 30s, 5m (exit code 4)", "TIME"),
    OUTPUT,
)
CONTAINER = _group(
    "Container",
    IMAGE,
    Flag("--image-pull-policy", "when the image is fetched (default Always)", "POLICY", choices=("Always", "IfNotPresent", "Never")),
    Flag("--local-image", "never fetch the image: it is on the node"),
    Flag("--always-pull-image", "old spelling of --image-pull-policy Always"),
    Flag("--command", "what runs instead of the image's own start: `--command X`, or as a switch before ` -- X Y`", "X", unless_rest=True),
    Flag("--args", "an argument; repeat it, the order is kept", "Y", repeat=True),
    Flag("--environment", "set a variable inside the job", "NAME=VALUE", short="-e", repeat=True, also=("--env",)),
    Flag("--working-dir", "directory the job starts in", "PATH"),
    Flag("--create-home-dir", "give the job a temporary home", later="temporary homes"),
    Flag("--attach", "attach to the job once it runs", later="attach"),
    Flag("--stdin", "keep the job's standard input open", later="attach"),
    Flag("--tty", "give the job a terminal", short="-t", later="attach"),
    Flag("--annotation", "an annotation", "NAME=VALUE", short="-a", repeat=True),
    Flag("--label", "a label", "NAME=VALUE", short="-l", repeat=True),
)
RESOURCES = _group(
    "Resources",
    Flag(
        "--gpu",
        "GPUs: 0.5 for a share of one, or 1, 2, 4 …; without it the job uses CPU only",
        "GPUS",
        short="-g",
        also=("--gpu-devices-request", "--gpu-portion-request"),
    ),
    Flag("--gpu-memory", "a share of one GPU by its memory: 5G, 800M", "MEMORY", also=("--gpu-memory-request",)),
    Flag("--mig-profile", "a MIG slice", "PROFILE", also=("--mig",), later="MIG slices"),
    Flag("--mps", "share through MPS", later="choosing MPS for a job"),
    Flag("--gpu-portion-limit", "burst up to this share", "GPUS", later="bursting"),
    Flag("--gpu-memory-limit", "burst up to this memory", "MEMORY", later="bursting"),
    Flag("--cpu", "CPU cores: 2, 0.5, 500m", "CORES", also=("--cpu-core-request",)),
    Flag("--cpu-limit", "most CPU cores", "CORES", also=("--cpu-core-limit",), later="CPU limits"),
    Flag("--memory", "main memory: 512M, 4G", "MEMORY", also=("--cpu-memory-request",)),
    Flag("--memory-limit", "most main memory", "MEMORY", also=("--cpu-memory-limit",), later="memory limits"),
    Flag("--large-shm", "a large /dev/shm"),
    Flag("--extended-resource", "another resource of the node", "NAME=QUANTITY", repeat=True, later="extended resources"),
)
STORAGE = _group(
    "Storage",
    Flag("--volume", "show a directory of the host inside", "SOURCE:TARGET[:ro]", short="-v", repeat=True, later="volumes"),
    Flag("--pvc", "mount a claim: class:size:path[:ro] or name:path[:ro]", "CLAIM", repeat=True, later="claims"),
    Flag("--pvc-exists", "mount an existing claim", "CLAIM", also=("--existing-pvc",), repeat=True, later="claims"),
    Flag("--new-pvc", "create and mount a claim", "CLAIM", repeat=True, later="claims"),
    Flag("--nfs-server", "default NFS host of volumes", "HOST", later="NFS volumes"),
    Flag("--nfs", "mount an NFS export", "NFS", repeat=True, later="NFS volumes"),
    Flag("--host-path", "mount a directory of the host", "PATH", repeat=True, later="volumes"),
    Flag("--s3", "fetch a bucket", "BUCKET", repeat=True, later="S3 data"),
    Flag("--git-sync", "fetch a repository", "SOURCE", repeat=True, later="git data"),
    Flag("--configmap-volume", "mount a ConfigMap", "MAP", repeat=True, later="ConfigMap volumes"),
    Flag("--mount-propagation", "propagate mounts", later="mount propagation"),
)
NETWORK = _group(
    "Network",
    Flag(
        "--service-type",
        "how its ports are reached: portforward, loadbalancer, nodeport, ingress, external-url",
        "TYPE",
        short="-s",
        repeat=True,
    ),
    Flag("--port", "a port of the job: 8080, or host:container", "PORT", repeat=True),
    Flag("--custom-url", "address of an external URL", "URL", repeat=True, later="custom URLs"),
    Flag("--external-url", "an external URL", "URL", repeat=True, later="custom URLs"),
    Flag("--address", "address that ports are forwarded to", "ADDRESS", later="port-forward"),
    Flag("--host-ipc", "use the node's IPC namespace", later="host namespaces"),
    Flag("--host-network", "use the node's network", later="host namespaces"),
)
ACCESS = _group(
    "Access",
    Flag("--prevent-privilege-escalation", "understood; it is always so"),
    Flag("--allow-privilege-escalation", "allow the job to gain rights", later="privilege escalation"),
    Flag("--run-as-user", "run with the submitter's user id", later="user ids"),
    Flag("--run-as-group", "run with a group id", "GID", later="user ids"),
    Flag("--supplemental-groups", "further group ids", "GIDS", later="user ids"),
    Flag("--add-capability", "add a Linux capability", "NAME", repeat=True, later="capabilities"),
)
SCHEDULING = _group(
    "Scheduling",
    Flag("--node-type", "only on nodes of this type", "TYPE", live="node-types"),
    Flag("--node-pools", 'only in these pools, in this order: "p1 p2"', "POOLS"),
    Flag("--toleration", "tolerate a taint: operator=Equal|Exists,key=…,value=…,effect=…", "TOLERATION", repeat=True),
    Flag("--priority", "order inside the project: a number, or very-low … very-high", "PRIORITY"),
    Flag("--preferred-pod-topology-key", "place pods close, if possible", "KEY", later="topology"),
    Flag("--required-pod-topology-key", "place pods close", "KEY", later="topology"),
)
SUBMIT_FLAGS = (*NAMING, *TYPE, *CONTAINER, *RESOURCES, *STORAGE, *NETWORK, *ACCESS, *SCHEDULING)
