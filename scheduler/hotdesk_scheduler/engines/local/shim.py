"""The supervisor of one pod: runs its program, keeps its log, ends all of it, and writes down how it ended.

Run as `python -I -S -E shim.py RUN_DIRECTORY TOKEN`; imports nothing of Hotdesk and outlives the scheduler. Its run directory:
`run.json` what to run (in) · `stop` seconds of grace, read on SIGTERM (in) · `barred` never start (in) · `claim` locked by the one
supervisor of this run · `process.json` who runs · `log`, `log.1` … with `log.times` … beside them · `exit.json` how it ended,
written into a file that already had its blocks, then renamed.

Why it is safe to kill anything here: the program gets SIGKILL when this supervisor dies (PDEATHSIG), what the program starts
becomes this supervisor's child when orphaned (SUBREAPER), and `process.json` is there before the program is. One file on purpose,
however long: it is run by its path, without anything else to import.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import struct
import sys
import time

TYPE_CHECKING = False  # `typing` itself would cost a third of our start
if TYPE_CHECKING:
    from typing import Any, NoReturn


PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
RECORD_BYTES = 4096
RESERVE_BYTES = 16384
CHUNK_BYTES = 65536
TIMES = struct.Struct("<Qd")
TIMES_APART_S = 0.1
DEFAULT_GRACE_S = 10.0
RECORD_RETRY_S = 600.0
libc = ctypes.CDLL(None, use_errno=True)


def stat_fields(pid: int | str) -> tuple[str, int, int] | None:
    """(state, parent pid, start ticks) of a process, None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return fields[0], int(fields[1]), int(fields[19])
    except OSError:
        return None


def descendants() -> list[int]:
    """Pids of everything below this process, zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := stat_fields(entry)) and fields[0] not in "ZX":
            children.setdefault(fields[1], []).append(int(entry))
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def send(pid: int, number: int, *, group: bool = False) -> None:
    try:
        (os.killpg if group else os.kill)(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # gone already, or changed its user: then only its own end will tell


def replace_file(path: str, text: str) -> None:
    with open(path + ".new", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)


class Log:
    """The rotated log. Beside each file `.times` says when its bytes came: (offset, time) pairs, at most ten a second.

    A write that finds the disk full is dropped and counted; the program never waits for it.
    """

    def __init__(self, path: str, size: int, count: int) -> None:
        self.path, self.size, self.count = path, size, max(1, count)
        self.full_at = size
        self.dropped = self.dropped_in_all = 0
        self.timed_at = 0.0
        self.open()

    def open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.file = os.open(self.path, flags, 0o600)
        self.times = os.open(self.path + ".times", flags, 0o600)
        self.written = os.fstat(self.file).st_size

    def write(self, data: bytes) -> None:
        if self.written >= self.full_at:
            self.rotate()
        if self.dropped and not self.put(f"[hotdesk: {self.dropped} bytes of output are missing here: the disk was full]\n".encode()):
            self.drop(len(data))
            return
        self.dropped = 0
        while data:
            done = self.put(data)
            if not done:
                self.drop(len(data))
                return
            data = data[done:]

    def put(self, data: bytes) -> int:
        now = time.time()
        if now - self.timed_at >= TIMES_APART_S or not self.written:
            try:
                os.write(self.times, TIMES.pack(self.written, now))
                self.timed_at = now
            except OSError:
                pass  # a time is missing then; the nearest one before it stands for it
        try:
            done = os.write(self.file, data)
        except OSError:
            return 0
        self.written += done
        return done

    def drop(self, amount: int) -> None:
        self.dropped += amount
        self.dropped_in_all += amount

    def rotate(self) -> None:
        try:
            for number in range(self.count - 1, 0, -1):
                older, newer = f"{self.path}.{number}", self.path if number == 1 else f"{self.path}.{number - 1}"
                for ending in (".times", ""):
                    if os.path.exists(newer + ending):
                        os.rename(newer + ending, older + ending)
            if self.count == 1:
                os.truncate(self.path, 0)
                os.truncate(self.path + ".times", 0)
            before = self.file, self.times
            self.open()
            self.full_at = self.size
            for descriptor in before:
                os.close(descriptor)
        except OSError:
            self.full_at = self.written + self.size  # no new file can be made: go on with the open one, try again after as much again


class Supervisor:
    """One pod's program from its start to its exit record."""

    def __init__(self, directory: str, token: str) -> None:
        self.directory, self.token = directory, token
        self.child = 0
        self.status: int | None = None
        self.stopped_at: float | None = None
        self.deadline: float | None = None
        self.killed = False

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def claim(self) -> bool:
        """Whether this run is ours to start: nobody has it, had it, or forbade it. However often it is asked for, it runs once."""
        self.claimed = os.open(self.path("claim"), os.O_RDWR | os.O_CREAT, 0o600)  # locked until we die
        try:
            fcntl.flock(self.claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return not (os.path.exists(self.path("process.json")) or os.path.exists(self.path("barred")))

    def prepare(self) -> None:
        """Everything that needs disk space is taken before the program exists."""
        with open(self.path("run.json")) as file:
            self.run = json.load(file)
        for name, size in (("exit.pending", RECORD_BYTES), ("reserve", RESERVE_BYTES)):
            with open(self.path(name), "w") as file:
                file.write(" " * size)
                file.flush()
                os.fsync(file.fileno())
        self.log = Log(self.path("log"), self.run["log_bytes"], self.run["log_count"])
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.wake, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        self.write_process()

    def write_process(self) -> None:
        def told(pid: int) -> dict[str, int] | None:
            fields = stat_fields(pid) if pid else None
            return {"pid": pid, "start_ticks": fields[2]} if fields else None

        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        self.process: dict[str, Any] = {"token": self.token, "boot_id": boot, "shim": told(os.getpid()), "child": told(self.child)}
        if self.child:
            self.process["started_at"] = self.started_at
        replace_file(self.path("process.json"), json.dumps(self.process))

    def start(self) -> str | None:
        """Fork and exec the program; returns an error sentence, or None once the program has replaced our copy."""
        self.output, output_writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.output, False)
        try:
            fcntl.fcntl(output_writer, fcntl.F_SETPIPE_SZ, 262144)
        except OSError:
            pass  # over the user's pipe budget: the usual 64 KiB do
        failed, failed_writer = os.pipe2(os.O_CLOEXEC)
        supervisor = os.getpid()
        self.started_at = time.time()
        self.child = os.fork()
        if self.child == 0:
            self.become_program(supervisor, output_writer, failed_writer)
        os.close(output_writer)
        os.close(failed_writer)
        with open(failed, errors="replace") as file:
            error = file.read()
        try:
            self.write_process()
        except OSError:
            pass  # the disk filled up just now; the program is found by its token instead
        return error or None

    def become_program(self, supervisor: int, output: int, failed: int) -> NoReturn:
        try:
            os.setsid()
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != supervisor:
                os._exit(125)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            for standard, descriptor in ((0, os.open("/dev/null", os.O_RDONLY)), (1, output), (2, output)):
                os.dup2(descriptor, standard)
            what = f"the working directory {self.run['working_dir']}"
            os.chdir(self.run["working_dir"])
            what = f"the program {self.run['argv'][0]}"
            os.umask(0o022)
            os.execvpe(self.run["argv"][0], self.run["argv"], self.run["environment"])  # noqa: S606  # no shell is what is wanted
        except OSError as error:
            reason = {errno.ENOENT: "is not there", errno.EACCES: "may not be used (permission denied)"}.get(
                error.errno or 0, os.strerror(error.errno or 0)
            )
            os.write(failed, f"{what} {reason}".encode(errors="replace"))
        except BaseException as error:
            os.write(failed, f"the program could not be started: {error!r}".encode(errors="replace"))
        finally:
            os._exit(127)

    def watch(self) -> None:
        """Until the program itself has ended: move its output into the log, and stop it when asked."""
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        poll.register(self.output, select.POLLIN)
        while self.status is None:
            left = None if self.deadline is None else max(0.0, self.deadline - time.monotonic()) * 1000 + 1
            ready = {descriptor for descriptor, _ in poll.poll(left)}
            if self.output in ready and not self.drain():
                poll.unregister(self.output)
            if self.wake in ready:
                numbers = os.read(self.wake, 512)
                if signal.SIGTERM in numbers:
                    self.stop()
            self.reap()
            if self.status is None and self.deadline is not None and time.monotonic() >= self.deadline:
                self.killed = True
                send(self.child, signal.SIGKILL, group=True)
                self.kill_rest()

    def drain(self, chunks: int = 16) -> bool:
        """Copy what the pipe holds (a bounded part of it, so that a stop is never kept waiting); False at its end."""
        for _ in range(chunks):
            try:
                data = os.read(self.output, CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.log.write(data)
        return True

    def stop(self) -> None:
        """Notice: SIGTERM to everything; the deadline only ever moves nearer."""
        try:
            with open(self.path("stop")) as file:
                grace_s = float(file.read(64).strip() or DEFAULT_GRACE_S)
        except (OSError, ValueError):
            grace_s = DEFAULT_GRACE_S
        deadline = time.monotonic() + max(0.0, grace_s)
        first = self.deadline is None
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)
        if first:
            self.stopped_at = time.time()
            below = descendants()
            for number in (signal.SIGTERM, signal.SIGCONT):
                send(self.child, number, group=True)
                for pid in below:
                    try:
                        if os.getpgid(pid) != self.child:
                            send(pid, number)
                    except ProcessLookupError:
                        pass  # ended meanwhile

    def reap(self) -> bool:
        """Collect ended children; True while there are any left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.child:
                self.status = status
                self.ended_at = time.time()

    def kill_rest(self) -> None:
        """SIGKILL whatever is below us, again and again, until nothing is: a pod has ended only then."""
        pause_s = 0.001
        while self.reap():
            for pid in descendants():
                send(pid, signal.SIGKILL)
            self.drain()
            time.sleep(pause_s)
            pause_s = min(0.2, pause_s * 2)

    def record(self, error: str | None) -> dict[str, Any]:
        assert self.status is not None
        code = os.waitstatus_to_exitcode(self.status)
        return {
            "token": self.token,
            "exit_code": 128 - code if code < 0 else code,
            "signal": -code if code < 0 else None,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "stopped": self.stopped_at is not None,
            "killed": self.killed,
            "error": error or "",
            "lost_log_bytes": self.log.dropped_in_all,
        }

    def write_record(self, record: dict[str, Any]) -> None:
        """Into blocks the file already has, then renamed; on trouble the reserve is freed and it is tried again for ten minutes."""
        text = json.dumps(record).encode().ljust(RECORD_BYTES)[:RECORD_BYTES]
        give_up = time.monotonic() + RECORD_RETRY_S
        while True:
            try:
                descriptor = os.open(self.path("exit.pending"), os.O_WRONLY | os.O_CREAT, 0o600)
                try:
                    os.pwrite(descriptor, text, 0)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                os.rename(self.path("exit.pending"), self.path("exit.json"))
                break
            except OSError:
                if not os.path.isdir(self.directory) or time.monotonic() > give_up:
                    return
                self.free_reserve()
                time.sleep(0.5)
        self.free_reserve()
        descriptor = os.open(self.directory, os.O_RDONLY)
        os.fsync(descriptor)

    def free_reserve(self) -> None:
        try:
            os.unlink(self.path("reserve"))
        except OSError:
            pass  # freed before


def tell(answer: dict[str, Any]) -> None:
    """Answer the scheduler that started us, if it still listens, and let its pipe go."""
    try:
        os.write(1, json.dumps(answer).encode())
    except OSError:
        pass  # it died; it will find process.json
    os.dup2(2, 1)


def main(directory: str, token: str) -> None:
    if os.fork():
        os._exit(0)  # nobody's child any more: ending the scheduler's process tree does not reach us
    os.umask(0o077)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    supervisor = Supervisor(directory, token)
    try:
        if not supervisor.claim():
            tell({"taken": True})
            return
        supervisor.prepare()
    except OSError as trouble:
        tell({"error": f"the pod's directory could not be written ({os.strerror(trouble.errno or 0)})"})
        return
    error = supervisor.start()
    tell({**supervisor.process, "error": error})
    if error:
        supervisor.log.write(f"[hotdesk: {error}]\n".encode())
    supervisor.watch()
    supervisor.kill_rest()
    while supervisor.drain(chunks=1) and select.select([supervisor.output], [], [], 0)[0]:
        pass
    if supervisor.log.dropped:
        supervisor.log.write(b"")
    supervisor.write_record(supervisor.record(error))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
