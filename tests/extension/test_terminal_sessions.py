"""At a real terminal (a pty): rich tables, `bash` with raw keys, window size and exit code, questions without echo."""

from __future__ import annotations

import re
import subprocess

import pexpect  # type: ignore[import-untyped]  # no types; it is how IPython itself drives terminals
import pytest
from seats import RUNAI, Desk


class Terminal:
    """`runai WORDS` at a terminal of 30 rows and 160 columns."""

    def __init__(self, desk: Desk, words: list[str], **environment: str) -> None:
        everything = desk.environment(**({"TERM": "xterm"} | environment))
        self.child = pexpect.spawn(RUNAI[0], [*RUNAI[1:], *words], env=everything, encoding="utf8", timeout=60, dimensions=(30, 160))

    def until(self, pattern: str) -> str:
        self.child.expect(pattern)
        return str(self.child.before) + str(self.child.after)

    def to_the_end(self) -> str:
        self.child.expect(pexpect.EOF)
        shown = str(self.child.before)
        self.child.close()
        return shown

    @property
    def code(self) -> int | None:
        code: int | None = self.child.exitstatus
        return code


@pytest.fixture
def running(desk: Desk, job: str) -> str:
    desk.ok("submit", job, "-i", "python", "-g", "0.5", "--interactive", "--command", "sleep", "--args", "infinity")
    desk.until(job, "Running")
    return job


def test_bash_is_a_real_terminal_inside_the_job(desk: Desk, running: str) -> None:
    terminal = Terminal(desk, ["bash", running])
    terminal.until(r"[#$] ")
    terminal.child.sendline("echo inside $JOB_NAME; stty size; test -t 0 && echo a-tty")
    terminal.until(f"inside {running}\r\n30 160\r\na-tty")
    terminal.child.setwinsize(44, 99)
    terminal.child.sendline("while [ \"$(stty size)\" != '44 99' ]; do sleep 0.05; done; echo re''sized")
    terminal.until("resized")
    terminal.child.sendline("sh -c \"echo be''gun; exec sleep 600\"")  # one process: a shell's own Ctrl-C between two commands may be lost
    terminal.until("begun")
    terminal.child.sendintr()  # goes into the job, not to us
    terminal.until(r"[#$] ")  # what is typed before the new prompt may be thrown away with the interrupted line
    terminal.child.sendline("exit 5")
    terminal.to_the_end()
    assert terminal.code == 5


def test_the_terminal_is_as_before_when_the_shell_ends(desk: Desk, running: str) -> None:
    line = f"stty -g > before; {' '.join(RUNAI)} exec -it {running} -- true; stty -g > after; cmp before after && echo un''changed"
    child = pexpect.spawn("/bin/sh", ["-c", line], env=desk.environment(TERM="xterm"), encoding="utf8", timeout=60, cwd=str(desk.home))
    child.expect("unchanged")
    child.close()


def test_submit_and_list_at_a_terminal(desk: Desk, job: str) -> None:
    submitted = Terminal(desk, ["submit", job, "-i", "python", "-g", "8", "--interactive"]).to_the_end()
    assert f"The job '{job}' has been submitted successfully" in submitted
    coloured = Terminal(desk, ["list"]).to_the_end()
    assert "Showing jobs for project team-a" in coloured
    assert "\x1b[33mPending" in coloured
    plain = Terminal(desk, ["list"], NO_COLOR="1").to_the_end()
    assert re.search(rf"{job}\s+Pending", re.sub(r"\x1b\[[0-9;]*m", "", plain))
    assert "\x1b[33m" not in plain
    dumb = Terminal(desk, ["list"], TERM="dumb").to_the_end()
    assert "\x1b" not in dumb


def test_a_watched_list_ends_with_ctrl_c(desk: Desk, running: str) -> None:
    terminal = Terminal(desk, ["list", "-w"])
    terminal.until(running)
    terminal.child.sendintr()
    assert "the jobs go on" in terminal.to_the_end()
    assert terminal.code == 130


def test_deleting_everything_asks_at_a_terminal(desk: Desk, running: str) -> None:
    terminal = Terminal(desk, ["delete", "--all"])
    terminal.until(r"\[y/N\] ")
    terminal.child.sendline("n")
    assert "Nothing was done" in terminal.to_the_end()
    assert terminal.code == 1
    assert desk.data("describe", "job", running)["status"] == "Running"


def test_login_asks_for_the_token_without_echo(desk: Desk) -> None:
    terminal = Terminal(desk, ["login", "--url", desk.scheduler.url], HOTDESK_API_URL="", HOTDESK_TOKEN="")
    terminal.until("Token .*: ")
    terminal.child.sendline(desk.token)
    shown = terminal.to_the_end()
    assert "Logged in" in shown
    assert desk.token not in shown
    assert terminal.code == 0


def test_a_token_is_not_visible_in_the_process_list(desk: Desk, running: str) -> None:
    """Settings are read from the environment and the file, never passed on in an argument list."""
    terminal = Terminal(desk, ["logs", running, "-f"])
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert not [line for line in listed.splitlines() if "hotdesk.cli" in line and desk.token in line]
    terminal.child.sendintr()
    terminal.to_the_end()
