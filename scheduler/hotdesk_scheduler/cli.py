"""`hotdesk-scheduler serve | simulate FILE… | replay [LOG…] | stop`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hotdesk_api.errors import HotdeskError

from hotdesk_scheduler import settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hotdesk-scheduler", description="Hotdesk's scheduler: decides what runs where, and runs it.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="serve | simulate | replay | stop")
    serve = verbs.add_parser("serve", help="run the scheduler and its REST API (what the hub starts)")
    settings.add_arguments(serve)
    verbs.add_parser("simulate", help="run scenario files on a virtual clock", add_help=False)
    verbs.add_parser("replay", help="ask again what a service decided, and compare", add_help=False)
    stop = verbs.add_parser("stop", help="stop everything that runs on a state directory")
    stop.add_argument("--state", type=lambda text: Path(text).expanduser(), default=settings.Settings().state_dir, metavar="DIR")
    return parser


def _serve(namespace: argparse.Namespace) -> int:
    from hotdesk_scheduler.serve import serve

    chosen = settings.load(namespace)
    os.umask(0o077)  # whatever is written into the state directory is its owner's alone; jobs and shells set their own
    logging.basicConfig(
        stream=sys.stderr, level=chosen.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True
    )
    for noisy in ("httpx", "httpcore", "tornado.access", "sqlalchemy"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    asyncio.run(serve(chosen))
    return 0


def _simulate(arguments: Sequence[str]) -> int:
    from hotdesk_scheduler import simulate

    return simulate.main(list(arguments))


def _replay(arguments: Sequence[str]) -> int:
    from hotdesk_scheduler import replay

    return replay.main(list(arguments))


def _stop(namespace: argparse.Namespace) -> int:
    from hotdesk_scheduler.engines.local.shutdown import stop_everything

    stopped = stop_everything(namespace.state)
    print(f"Stopped {stopped} pod{'' if stopped == 1 else 's'}.", file=sys.stderr)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 failed, 2 asked wrong."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["simulate"]:
            return _simulate(arguments[1:])
        if arguments[:1] == ["replay"]:
            return _replay(arguments[1:])
        namespace = _parser().parse_args(arguments)
        return _serve(namespace) if namespace.verb == "serve" else _stop(namespace)
    except HotdeskError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read it has seen enough, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


if __name__ == "__main__":
    sys.exit(main())
