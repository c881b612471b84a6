"""The quickstart's training job: a small network learns two spirals apart, for real, with numpy alone.

It is sparing on purpose (one BLAS thread, short steps, then sleep), so that a dozen run on two cores. Stopped with notice (SIGTERM)
it saves a checkpoint and, started again, goes on from there. Settings: QUICKSTART_STEPS, QUICKSTART_STEP_S, HOTDESK_CHECKPOINT_DIR.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

STEPS = int(os.environ.get("QUICKSTART_STEPS") or 3600)
STEP_S = float(os.environ.get("QUICKSTART_STEP_S") or 1.0)
REPORT_EVERY_S = 5.0
REPORT_TIMEOUT_S = 2.0
HIDDEN = 32


def say(text: str) -> None:
    print(text, flush=True)


class Stop:
    """Set by SIGTERM; the loop looks at it between steps, and sleeping ends at once."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _number: int, _frame: object) -> None:
        self.asked = True

    def sleep(self, seconds: float) -> None:
        """Python resumes a sleep after a signal, so it is cut into pieces short enough for any grace."""
        until = time.monotonic() + seconds
        while not self.asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(0.25, left))


class Network:
    """Two inputs, one hidden layer, one output; plain gradient descent with momentum on the logistic loss."""

    def __init__(self, numpy: Any) -> None:
        self.np = numpy
        random = numpy.random.default_rng(7)
        angle = numpy.linspace(0.5, 9.0, 400)
        arms = [numpy.stack([angle * numpy.cos(angle + turn), angle * numpy.sin(angle + turn)], axis=1) for turn in (0.0, numpy.pi)]
        points = numpy.concatenate(arms) / 9.0
        self.inputs = points + random.normal(0, 0.01, points.shape)
        self.labels = numpy.repeat([0.0, 1.0], 400)[:, None]
        sizes = (2, HIDDEN, HIDDEN, 1)
        self.weights = [random.normal(0, 1.5 / numpy.sqrt(a), (a, b)) for a, b in itertools.pairwise(sizes)]
        self.biases = [numpy.zeros(size) for size in sizes[1:]]
        self.speeds = [numpy.zeros_like(one) for one in (*self.weights, *self.biases)]

    def forward(self, inputs: Array) -> list[Array]:
        layers = [inputs]
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            total = layers[-1] @ weight + bias
            layers.append(self.np.tanh(total) if number < len(self.weights) - 1 else 1 / (1 + self.np.exp(-total)))
        return layers

    def step(self, rate: float = 0.1, momentum: float = 0.9) -> tuple[float, float]:
        """One pass over the data; (loss, accuracy) before the step."""
        np = self.np
        layers = self.forward(self.inputs)
        guess = np.clip(layers[-1], 1e-7, 1 - 1e-7)
        loss = float(-np.mean(self.labels * np.log(guess) + (1 - self.labels) * np.log(1 - guess)))
        accuracy = float(np.mean((guess > 0.5) == (self.labels > 0.5)))
        error = (layers[-1] - self.labels) / len(self.labels)
        slopes: list[Array] = []
        for number in range(len(self.weights) - 1, -1, -1):
            slopes = [layers[number].T @ error, error.sum(axis=0), *slopes]
            error = (error @ self.weights[number].T) * (1 - layers[number] ** 2)
        for speed, slope, value in zip(self.speeds, slopes[0::2] + slopes[1::2], (*self.weights, *self.biases), strict=True):
            speed *= momentum
            speed -= rate * slope
            value += speed
        return loss, accuracy

    def arrays(self) -> dict[str, Array]:
        return {f"a{number}": value for number, value in enumerate((*self.weights, *self.biases, *self.speeds))}

    def load(self, stored: Any) -> None:
        for number, value in enumerate((*self.weights, *self.biases, *self.speeds)):
            value[...] = stored[f"a{number}"]


def checkpoint_path() -> str:
    directory = os.environ.get("HOTDESK_CHECKPOINT_DIR") or os.path.join(os.path.expanduser("~"), ".hotdesk", "checkpoints")
    name = os.environ.get("JOB_UUID") or "quickstart"
    return os.path.join(directory, f"{name}-{os.environ.get('POD_INDEX', '0')}.npz")


def save(network: Network, step: int) -> None:
    path = checkpoint_path()
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path + ".new", "wb") as file:
        network.np.savez(file, step=step, **network.arrays())
    os.replace(path + ".new", path)


def resume(network: Network) -> int:
    """The step to go on with: 0 without a (readable) checkpoint."""
    try:
        with network.np.load(checkpoint_path()) as stored:
            network.load(stored)
            return int(stored["step"])
    except FileNotFoundError:
        return 0
    except Exception as error:
        say(f"The checkpoint could not be read ({error}); starting from the beginning.")
        return 0


def report(progress: float, message: str, metrics: dict[str, float]) -> bool:
    """Tell the scheduler, if there is one; training never fails for it."""
    url, token = os.environ.get("HOTDESK_API_URL", ""), os.environ.get("HOTDESK_REPORT_TOKEN", "")
    project, name = os.environ.get("RUNAI_PROJECT", ""), os.environ.get("RUNAI_JOB_NAME", "")
    if not (url and token and project and name):
        return False
    import http.client
    import json
    from urllib.parse import quote, urlsplit

    where = urlsplit(url)
    kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
    path = f"{where.path.rstrip('/')}/v1/workloads/{quote(project, safe='')}/{quote(name, safe='')}/progress"
    body = json.dumps({"progress": round(progress, 4), "message": message, "metrics": metrics})
    try:
        connection = kind(where.netloc, timeout=REPORT_TIMEOUT_S)
        connection.request("PUT", path, body, {"Authorization": f"Bearer {token}", "Content-Type": "application/json"})
        done = connection.getresponse().status < 400
        connection.close()
    except (OSError, http.client.HTTPException):
        return False
    return done


def clock(seconds: float) -> str:
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{left:02d}"


def describe_share() -> str:
    share = os.environ.get("RUNAI_NUM_OF_GPUS", "0")
    memory, tier = os.environ.get("HOTDESK_GPU_MEMORY_MIB"), os.environ.get("HOTDESK_TIER", "")
    return f"{share} GPU ({memory} MiB, {tier})" if memory else "no GPU"


def train(stop: Stop) -> int:
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    import numpy

    network = Network(numpy)
    first = resume(network)
    if first:
        say(f"Resumed from the checkpoint at step {first}.")
    next_report, pause_s = 0.0, REPORT_EVERY_S
    for step in range(first + 1, STEPS + 1):
        if stop.asked:
            save(network, step - 1)
            say(f"Stopped with notice at step {step - 1}; the checkpoint is saved.")
            return 0
        began = time.perf_counter()
        loss, accuracy = network.step()
        took_s = time.perf_counter() - began
        eta = clock((STEPS - step) * max(STEP_S, took_s))
        say(f"step {step}/{STEPS}  loss {loss:.4f}  accuracy {accuracy:.3f}  {took_s * 1000:.1f} ms/step  ETA {eta}")
        if time.monotonic() >= next_report or step == STEPS:
            done = report(step / STEPS, f"step {step} of {STEPS}", {"loss": round(loss, 6), "accuracy": round(accuracy, 6)})
            pause_s = REPORT_EVERY_S if done else min(60.0, pause_s * 2)
            next_report = time.monotonic() + pause_s
        stop.sleep(STEP_S - took_s)
    save(network, STEPS)
    say("Training is complete.")
    return 0


def main() -> int:
    say(f"quickstart: {os.environ.get('JOB_NAME', 'a job')} trains a small network on {describe_share()}, {STEPS} steps.")
    return train(Stop())


if __name__ == "__main__":
    sys.exit(main())
