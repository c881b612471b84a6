"""`start-notebook.sh` as the Jupyter images have it: a server on the port this job was given, old spellings of options understood."""

from __future__ import annotations

import importlib.util
import os
import re
import sys

# what moved when NotebookApp became ServerApp (anything else keeps its name)
_MOVED = {"token": "IdentityProvider.token", "password": "PasswordIdentityProvider.hashed_password", "notebook_dir": "ServerApp.root_dir"}
_OLD = re.compile(r"^--NotebookApp\.([A-Za-z_]+)=(.*)$", re.DOTALL)
_PORT = re.compile(r"^--(?:ServerApp\.|NotebookApp\.)?port=(\d+)$")
_IP = re.compile(r"^--(?:ServerApp\.|NotebookApp\.)?ip=")
CONTAINER_PORT = "8888"


def translate(argument: str) -> str:
    """The option as today's server knows it; a base URL gets the slashes it needs."""
    match = _OLD.match(argument)
    if match:
        argument = f"--{_MOVED.get(match[1], f'ServerApp.{match[1]}')}={match[2]}"
    name, equals, value = argument.partition("=")
    if name == "--ServerApp.base_url" and equals:
        return f"{name}=/{value.strip('/')}/" if value.strip("/") else f"{name}=/"
    return argument


def joined(arguments: list[str]) -> list[str]:
    """`--port 8888` and `--ip x` as one word each."""
    words: list[str] = []
    todo = list(arguments)
    while todo:
        word = todo.pop(0)
        if word in {"--port", "--ip"} and todo:
            word = f"{word}={todo.pop(0)}"
        words.append(word)
    return words


def command_line(arguments: list[str]) -> list[str]:
    """The server's whole command line: ours, then the user's. Address and port are ours: the port in the job is one of this machine."""
    container, kept = CONTAINER_PORT, []
    for word in joined(arguments):
        if match := _PORT.match(word):
            container = match[1]
        elif not _IP.match(word):
            kept.append(translate(word))
    port = os.environ.get(f"HOTDESK_PORT_{container}") or os.environ.get("PORT") or container
    server = "lab" if importlib.util.find_spec("jupyterlab") else "server"
    own = ["--no-browser", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    own.append("--ServerApp.terminado_settings=shell_command=['/bin/bash']")  # a login shell would forget the job's PATH
    if os.geteuid() == 0:
        own.append("--allow-root")
    return [sys.executable, "-m", "jupyter", server, *own, *kept]


def main() -> None:
    argv = command_line(sys.argv[1:])
    print(f"start-notebook.sh: {' '.join(argv[2:5])} …", flush=True)
    os.execv(argv[0], argv)  # noqa: S606  # no shell is what is wanted


if __name__ == "__main__":
    main()
