"""The documentation's line for a verb is its test: every line of the published guides and of Run:ai's own pages parses to what it means."""

from __future__ import annotations

import pytest
from hotdesk.commands.parse import parse
from hotdesk.commands.submit import spec_of
from hotdesk.commands.words import split_line
from hotdesk_api.errors import HotdeskError, Invalid

QUICKSTART = "gcr.io/run-ai-demo/quickstart"
QUICK = {"image": QUICKSTART}

SUBMITS: list[tuple[str, dict[str, object]]] = [
    (f"runai submit hyper1 -i {QUICKSTART} -g 1", {"name": "hyper1", "gpu_millis": 1000, **QUICK}),
    (
        "runai submit build1 -i python -g 1 --interactive --command sleep --args infinity",
        {"name": "build1", "kind": "interactive", "image": "python", "gpu_millis": 1000, "command": ["sleep"], "args": ["infinity"]},
    ),
    (
        "runai submit test-ingress -i jupyter/base-notebook -g 1 --interactive --service-type=ingress --port 8888 "
        '--args="--NotebookApp.base_url=test-ingress" --command=start-notebook.sh',
        {
            "name": "test-ingress",
            "kind": "interactive",
            "image": "jupyter/base-notebook",
            "gpu_millis": 1000,
            "service_type": "ingress",
            "ports": [{"container": 8888}],
            "args": ["--NotebookApp.base_url=test-ingress"],
            "command": ["start-notebook.sh"],
        },
    ),
    (
        "runai submit a-1-1-jupyter -i jupyter/base-notebook -g 1 --interactive --service-type=ingress --port 8888 \\\n"
        '  --args="--NotebookApp.base_url=team-a-test-ingress" --command=start-notebook.sh -p team-a',
        {
            "name": "a-1-1-jupyter",
            "kind": "interactive",
            "image": "jupyter/base-notebook",
            "gpu_millis": 1000,
            "service_type": "ingress",
            "ports": [{"container": 8888}],
            "args": ["--NotebookApp.base_url=team-a-test-ingress"],
            "command": ["start-notebook.sh"],
        },
    ),
    (
        f"runai submit b-1-g06  -i {QUICKSTART} -g 0.6 --interactive -p team-b",
        {"name": "b-1-g06", "project": "team-b", "kind": "interactive", "gpu_millis": 600, **QUICK},
    ),
    (f"runai submit d-1-gggg -i {QUICKSTART} -g 4 -p team-d", {"name": "d-1-gggg", "project": "team-d", "gpu_millis": 4000, **QUICK}),
    (f"runai submit qf-a2 -i {QUICKSTART} -g 1", {"name": "qf-a2", "gpu_millis": 1000, **QUICK}),
    (f"runai submit frac05 -i {QUICKSTART} -g 0.5 --interactive", {"name": "frac05", "kind": "interactive", "gpu_millis": 500, **QUICK}),
    (f"runai submit frac03 -i {QUICKSTART} -g 0.3", {"name": "frac03", "gpu_millis": 300, **QUICK}),
    (
        f"runai submit hpo1 -i {QUICKSTART}-hpo -g 2 \u2014parallelism 2 \u2013completions 4",
        {"name": "hpo1", "kind": "hpo", "image": f"{QUICKSTART}-hpo", "gpu_millis": 2000, "parallelism": 2, "completions": 4},
    ),
    (
        "submit train-with-checkpoints -i tensorflow/tensorflow:1.14.0-gpu-py3 -g 1 --working-dir /mydir --command -- ./startup.sh",
        {
            "name": "train-with-checkpoints",
            "image": "tensorflow/tensorflow:1.14.0-gpu-py3",
            "gpu_millis": 1000,
            "working_dir": "/mydir",
            "command": ["./startup.sh"],
        },
    ),
    (
        "runai submit netapp1 -i netapp/tensorflow-tfl-py3:20.01.0 --local-image --large-shm --command python "
        '--args "/netapp/scripts/run.py" --args "--dataset_dir=/mnt/mount_0/dataset/imagenet/imagenet_original/" '
        '--args "--num_mounts=2" --args "--dgx_version=dgx1" --args "--num_devices=1" -g 1',
        {
            "name": "netapp1",
            "image": "netapp/tensorflow-tfl-py3:20.01.0",
            "image_pull_policy": "Never",
            "large_shm": True,
            "command": ["python"],
            "args": [
                "/netapp/scripts/run.py",
                "--dataset_dir=/mnt/mount_0/dataset/imagenet/imagenet_original/",
                "--num_mounts=2",
                "--dgx_version=dgx1",
                "--num_devices=1",
            ],
            "gpu_millis": 1000,
        },
    ),
    (
        "runai submit --name download --image muneer7589/download-tusimple:1.0",
        {"name": "download", "image": "muneer7589/download-tusimple:1.0"},
    ),
    (
        'runai submit shell1 -i ubuntu --interactive -- sh -c "sleep infinity"',
        {"name": "shell1", "kind": "interactive", "image": "ubuntu", "args": ["sh", "-c", "sleep infinity"]},
    ),
    (
        "runai submit build-jupyter --jupyter -g 1",
        {
            "name": "build-jupyter",
            "kind": "interactive",
            "image": "jupyter/scipy-notebook",
            "gpu_millis": 1000,
            "ports": [{"container": 8888}],
            "service_type": "portforward",
        },
    ),
    (
        "runai submit ide -i ssh --interactive --service-type=nodeport --port 30022:22 "
        "--gpu-memory 5G --backoffLimit 2 --ttl-after-finish 2m",
        {
            "name": "ide",
            "kind": "interactive",
            "image": "ssh",
            "service_type": "nodeport",
            "ports": [{"container": 22, "host": 30022}],
            "gpu_memory_mib": 5120,
            "backoff_limit": 2,
            "ttl_after_finish_s": 120,
        },
    ),
    (
        'submit p1 -i python --node-type dgx1 --node-pools "p1 p2" --priority high --cpu 0.5 --memory 2G -e USE_WORKERS="true" -e A=b=c '
        "--toleration operator=Exists,key=gpu,effect=NoSchedule --interactive --preemptible -l team=x -a note=y",
        {
            "name": "p1",
            "image": "python",
            "kind": "interactive",
            "preemptible": True,
            "node_type": "dgx1",
            "node_pools": ["p1", "p2"],
            "priority": 125,
            "cpu_millis": 500,
            "memory_mib": 2048,
            "environment": {"USE_WORKERS": "true", "A": "b=c"},
            "tolerations": [{"operator": "Exists", "key": "gpu", "effect": "NoSchedule"}],
            "labels": {"team": "x"},
            "annotations": {"note": "y"},
        },
    ),
    (f"submit -g0.5 --job-name-prefix sweep --image={QUICKSTART}", {"name_prefix": "sweep", "gpu_millis": 500, **QUICK}),
    (f"submit zero -i {QUICKSTART} -g 0", {"name": "zero", "gpu_millis": 0, **QUICK}),
]


@pytest.mark.parametrize(("line", "means"), SUBMITS, ids=[str(means.get("name", "prefix")) for _, means in SUBMITS])
def test_a_documented_submit_line_means_what_it_says(line: str, means: dict[str, object]) -> None:
    typed = parse(split_line(line))
    spec = spec_of(typed, typed.text("project") or "team-a")
    sent = spec.model_dump(exclude_unset=True, exclude_none=True)
    assert sent.pop("command_line").startswith("runai submit")
    wanted = {"project": "team-a", "kind": "train"} | means
    assert sent == wanted


VERBS = [
    ("runai project set team-a", ("config", "project"), ("team-a",)),
    ("runai config project runai-a", ("config", "project"), ("runai-a",)),
    ("runai list", ("list", "jobs"), ()),
    ("runai list jobs", ("list", "jobs"), ()),
    ("runai list job", ("list", "jobs"), ()),
    ("runai ls", ("list", "jobs"), ()),
    ("runai list -A", ("list", "jobs"), ()),
    ("runai list projects", ("list", "projects"), ()),
    ("runai list departments", ("list", "departments"), ()),
    ("runai department create research --limit 8", ("department", "create"), ("research",)),
    ("runai department update lab -g sum --weight 2 --priority 5", ("department", "update"), ("lab",)),
    ("runai project update team-a --department research", ("project", "update"), ("team-a",)),
    ("runai list node", ("list", "nodes"), ()),
    ("runai get hyper1", ("describe", "job"), ("hyper1",)),
    ("runai get pvc-test -p team-a", ("describe", "job"), ("pvc-test",)),
    ("runai describe job X -p P", ("describe", "job"), ("X",)),
    ("runai describe node", ("describe", "node"), ()),
    ("runai logs hyper1", ("logs",), ("hyper1",)),
    ("runai logs download-tusimple-data -t 10", ("logs",), ("download-tusimple-data",)),
    ("runai logs dist-lane-detection-training --tail 1", ("logs",), ("dist-lane-detection-training",)),
    ("runai logs hpo1 --pod hpo1-2", ("logs",), ("hpo1",)),
    ("runai delete hyper1", ("delete",), ("hyper1",)),
    ("runai delete job b2 -p team-b", ("delete",), ("b2",)),
    ("runai delete -p team-d d-1-gggg d-2-gg d-3-gg", ("delete",), ("d-1-gggg", "d-2-gg", "d-3-gg")),
    ("runai bash build1", ("bash",), ("build1",)),
    ("runai bash frac05 -p team-d", ("bash",), ("frac05",)),
    ("runai suspend a b", ("suspend",), ("a", "b")),
    ("runai resume a", ("resume",), ("a",)),
    ("runai top node", ("top", "node"), ()),
    ("runai top job -A", ("top", "job"), ()),
    ("runai whoami", ("whoami",), ()),
    ("runai version --short", ("version",), ()),
    ("runai -p team-a list", ("list", "jobs"), ()),
    ("!runai list", ("list", "jobs"), ()),
    ("$ runai list   # what runs?", ("list", "jobs"), ()),
]


@pytest.mark.parametrize(("line", "path", "words"), VERBS, ids=[line for line, _, _ in VERBS])
def test_a_documented_line_is_understood(line: str, path: tuple[str, ...], words: tuple[str, ...]) -> None:
    typed = parse(split_line(line))
    assert typed.verb.path == path
    assert typed.words == words


@pytest.mark.parametrize("line", ["exec build1 ls -l /tmp", "exec build1 -- ls -l /tmp", "exec -it build1 -- ls -l /tmp"])
def test_what_follows_the_job_in_exec_is_not_ours(line: str) -> None:
    typed = parse(split_line(line))
    assert (typed.words, typed.rest) == (("build1",), ("ls", "-l", "/tmp"))
    assert typed.on("tty") == ("-it" in line)


def test_a_long_dash_in_a_value_stays_what_it_is() -> None:
    typed = parse(["submit", "a", "-i", "b", "--args", "\u2013gpu", "--", "\u2014gpu 5"])
    assert (typed.every("args"), typed.rest) == (("\u2013gpu",), ("\u2014gpu 5",))


def test_all_three_spellings_of_command_say_the_same() -> None:
    lines = ["submit a -i b --command sleep --args 60", "submit a -i b --args 60 --command=sleep", "submit a -i b --command -- sleep 60"]
    ran = [(spec := spec_of(parse(split_line(line)), "p")).command + spec.args for line in lines]
    assert ran == [["sleep", "60"]] * 3


@pytest.mark.parametrize("program", ["false", "true"])
def test_a_command_that_is_called_like_a_switch_is_still_run(program: str) -> None:
    for line in (f"submit a -i b --command {program}", f"submit a -i b --command={program}", f"submit a -i b --command -- {program}"):
        spec = spec_of(parse(split_line(line)), "p")
        assert (spec.command, spec.args) == ([program], [])


def test_a_cell_without_an_image_runs_in_the_one_of_its_surroundings_as_it_lies_on_the_node() -> None:
    unnamed = spec_of(parse(split_line("submit a")), "p", program="print(1)", program_image="registry/lab:2")
    assert (unnamed.image, unnamed.image_pull_policy) == ("registry/lab:2", "IfNotPresent")
    named = spec_of(parse(split_line("submit a -i b")), "p", program="print(1)", program_image="registry/lab:2")
    assert (named.image, named.image_pull_policy) == ("b", "Always")
    typed = spec_of(parse(split_line("submit a --image-pull-policy Always")), "p", program="print(1)", program_image="registry/lab:2")
    assert typed.image_pull_policy == "Always"


def test_a_command_switched_off_leaves_what_follows_as_arguments() -> None:
    spec = spec_of(parse(split_line("submit a -i b --command=false -- x y")), "p")
    assert (spec.command, spec.args) == ([], ["x", "y"])


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("submit hpo1 -i x -g 2 --parallelism 2 --completions 4 -v /root/runai-robin-test:/nfs", "--volume"),
        ("submit pvc-test -p team-a --pvc test:/tmp/pvc1mount -i x -g 1", "--pvc"),
        ("submit e -i x --elastic", "--elastic"),
        ("submit e -i x --mig-profile 1g.5gb", "--mig-profile"),
    ],
)
def test_what_comes_later_is_refused_and_nothing_is_submitted(line: str, named: str) -> None:
    with pytest.raises(Invalid, match="Nothing was submitted") as refused:
        parse(split_line(line))
    assert named in str(refused.value)


@pytest.mark.parametrize(
    "line", ["submit-mpi --name dist --processes=3 --gpu 1", "submit-dist mpi --workers=2 -g 1", "port-forward x --port 1:2"]
)
def test_verbs_of_later_versions_are_known(line: str) -> None:
    assert parse(split_line(line)).verb.later


def test_a_secret_looking_variable_is_not_in_the_line_that_describe_shows() -> None:
    typed = parse(split_line("submit a -i b -e API_KEY=sesame -eDB_PASSWORD=sesame --environment=MY_TOKEN=sesame -e COLOUR=red"))
    spec = spec_of(typed, "p")
    assert "sesame" not in spec.command_line
    assert "COLOUR=red" in spec.command_line
    assert spec.environment["API_KEY"] == "sesame"


def _understood(line: str) -> None:
    typed = parse(split_line(line))
    spec_of(typed, typed.text("project") or "team-a")


BAD = [
    ("submt x", "Did you mean submit"),
    ("list jbs", "jobs"),
    ("submit x -i python --gpus 1", "Did you mean --gpu"),
    ("submit x -i python -g -1", "less than no GPU"),
    ("submit x -i python -g 1.5", "only whole numbers"),
    ("submit x -i python -g 0.1234", "three decimals"),
    ("submit x -i python -g nan", "not a number of GPUs"),
    ("submit x -i python -g", "needs a value"),
    ("submit x -i -g 1", "needs a value"),
    ("submit x -g 1", "needs an image"),
    ("submit x -i python -e FOO", "has no ="),
    ("submit x -i python -e 1A=2", "not the name of a variable"),
    ("submit Hyper_1 -i python", "hyper-1"),
    ("submit 1x -i python", "a letter first"),
    ("submit a b -i python", "does not know what to do with b"),
    ("submit a --name b -i python", "named twice"),
    ("submit a -i python -g 1 --gpu-memory 5G", "two ways"),
    ("submit a -i python --gpu-memory 5M", "least share"),
    ("submit a -i python --parallelism 2", "--completions"),
    ("submit a -i python --interactive --completions 2", "--interactive"),
    ("submit a -i python --port 70000", "not a port"),
    ("submit a -i python --service-type ingres", "Did you mean ingress"),
    ("submit a -i python --priority hihg", "Did you mean high"),
    ("submit a -i python --interactive=maybe", "switch"),
    ("list -o jsn", "Did you mean json"),
    ("logs", "needs NAME"),
    ("exec build1", "needs COMMAND"),
    ("config project a b", "does not know what to do with b"),
    ("submit a -i 'x", "never closed"),
    ("list | grep x", "pipe"),
    ("submit a -i python -p Team_A", "The project Team_A cannot be used: lower-case letters"),
    ("submit a -i python -g ''", "is not a number of GPUs"),
    ("submit a -i python --gpu-memory ''", "is not an amount of memory"),
    ("submit a -i python --cpu ''", "is not a number of CPU cores"),
    ("submit a -i python -e =3", "-e =3 has no name before the ="),
    ("submit a -i python --backoff-limit 5000", "backoff_limit 5000"),
    (f"submit {'a' * 64} -i python", "at most 63"),
    (f"submit a -i python --args {'x' * 1_000_000}", "at most 131,072"),
]


@pytest.mark.parametrize(("line", "says"), BAD, ids=[line[:40] for line, _ in BAD])
def test_bad_input_gets_a_sentence(line: str, says: str) -> None:
    with pytest.raises(HotdeskError) as error:
        _understood(line)
    assert says in str(error.value)
    assert error.value.exit_code == 2
    assert len(str(error.value)) < 2500


def test_python_and_shell_variables_are_put_in_where_a_shell_would() -> None:
    known = {"name": "job-7", "HOME": "/home/alice"}
    pairs = ['A="$HOME"', "'B=$HOME {name}'", "C=\\$HOME", "D=$missing", "E={missing}", "'F={\"a\": 1}'", "G=${name}x"]
    line = "submit {name} -i $name " + " ".join(f"-e {pair}" for pair in pairs)
    words = split_line(line, variable=known.get, python=known.get)
    assert words[1:4] == ["job-7", "-i", "job-7"]
    pairs = ["A=/home/alice", "B=$HOME {name}", "C=$HOME", "D=$missing", "E={missing}", 'F={"a": 1}', "G=job-7x"]
    assert words[5::2] == pairs
