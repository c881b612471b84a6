"""A test cluster to look at: `python -m cluster.up [1|2]` in tests/kubernetes, until Ctrl-C."""

from __future__ import annotations

import os
import sys
import threading

from cluster.running import CannotRunError, shared_cluster


def main(arguments: list[str]) -> int:
    os.environ.pop("KUBECONFIG", None)
    try:
        with shared_cluster("by hand", level=int(arguments[0]) if arguments else 1) as cluster:
            print(f"export KUBECONFIG={cluster.kubeconfig}\nCtrl-C ends it.", flush=True)
            threading.Event().wait()
    except CannotRunError as reason:
        print(reason, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
