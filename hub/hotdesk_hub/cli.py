"""`hotdesk-hub up | down | passwords`: Hotdesk on one machine, in the foreground."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotdesk_hub.state import State

# What it needs is imported inside `run`: that takes a second or two, and a Ctrl-C then is no less polite than one later.


def _parser() -> argparse.ArgumentParser:
    from hotdesk_hub.state import default_root
    from hotdesk_hub.up import DEFAULT_SHAPE

    parser = argparse.ArgumentParser(prog="hotdesk-hub", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="up | down | passwords")
    start = verbs.add_parser("up", help="start hub, proxy and scheduler, and stay in the foreground")
    stop = verbs.add_parser("down", help="stop everything: hub, proxy, scheduler, workspaces and jobs")
    show = verbs.add_parser("passwords", help="show the generated passwords")
    for verb in (start, stop, show):
        verb.add_argument(
            "--state", type=Path, default=default_root(), metavar="DIR", help="where everything is kept (default %(default)s)"
        )
    start.add_argument("--port", type=int, default=8000, help="port of the pages (default %(default)s)")
    start.add_argument("--address", default="127.0.0.1", help="address to listen on (default %(default)s, this machine only)")
    start.add_argument(
        "--simulate",
        default="auto",
        metavar="SHAPE",
        help=f"simulated nodes, such as {DEFAULT_SHAPE}; auto: these, if this machine has no GPU; none: never (default %(default)s)",
    )
    return parser


def say(text: str) -> None:
    print(text, flush=True)


def _show_passwords(state: State) -> int:
    from hotdesk_api.errors import NotFound

    from hotdesk_hub.greeting import passwords_in_words
    from hotdesk_hub.state import secrets_of

    if not (state.hub / "secrets.json").exists():
        raise NotFound(f"No passwords were generated for {state.root} yet.", next_step="`make up` or `hotdesk-hub up` generates them.")
    say(passwords_in_words(secrets_of(state)))
    return 0


def run(argv: Sequence[str] | None = None) -> int:
    from hotdesk_hub.down import down
    from hotdesk_hub.state import State
    from hotdesk_hub.up import Wanted, up

    arguments = _parser().parse_args(argv)
    state = State(arguments.state.expanduser().absolute())
    if arguments.verb == "down":
        return down(state, say)
    if arguments.verb == "passwords":
        return _show_passwords(state)
    return up(Wanted(state=state, address=arguments.address, port=arguments.port, simulate=arguments.simulate), say)


def main() -> None:
    code = 130
    try:
        code = _run_or_explain()
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
    sys.exit(code)


def _run_or_explain() -> int:
    from hotdesk_api.errors import HotdeskError

    try:
        return run()
    except HotdeskError as error:
        print(error, file=sys.stderr)
        return error.exit_code
