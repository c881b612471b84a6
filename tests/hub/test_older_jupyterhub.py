"""The oldest supported JupyterHub, 5.5: the tests marked `hub_versions` again, in an environment of their own with that version.

The environment is kept in the cache, under a hash of what goes into it and of where the checkout lies: only the first run is slow.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.xdist_group("workspaces")]
ROOT = Path(__file__).parents[2]
PINS = ["jupyterhub==5.5.*"]
TEST_TOOLS = ["pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis", "websocket-client"]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hotdesk"


def _requirements() -> list[str]:
    """What the project needs without itself (it is read from the checkout), and of a cluster only what the hub's modules import."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["notebook"], *extras["workspace"], *extras["scheduler"], *extras["hub"]]
    wanted += [item for item in extras["kubespawner"] if item.startswith("aiohttp")]
    tools = [item for item in extras["dev"] if item.split(">")[0] in TEST_TOOLS]
    return [*(item for item in [*wanted, *tools] if not item.startswith("hotdesk")), *PINS]


@pytest.fixture(scope="module")
def python() -> Path:
    """Python of an environment with the old hub; skips, saying why, if it cannot be installed here."""
    wanted = _requirements()
    key = hashlib.sha256("\n".join([sys.version, str(ROOT), *wanted]).encode()).hexdigest()[:16]
    folder = _cache() / f"jupyterhub-5-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            installed = subprocess.run(
                [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted],
                capture_output=True,
                text=True,
            )
            if installed.returncode:
                pytest.skip(f"JupyterHub 5.5 cannot be installed here: {installed.stderr.strip()[-300:]}")
            _link_ourselves(folder)
            (folder / "complete").touch()
    return folder / "bin" / "python"


def _link_ourselves(folder: Path) -> None:
    """Our packages, commands and IPython's configuration, from this checkout."""
    (folder / "etc" / "ipython").mkdir(parents=True)
    (folder / "etc" / "ipython" / "ipython_config.py").symlink_to(ROOT / "spawner" / "ipython_config.py")
    site = next((folder / "lib").glob("python*/site-packages"))
    parts = ("hub", "extension", "spawner", "scheduler")
    (site / "hotdesk.pth").write_text("\n".join(str(ROOT / part) for part in parts))
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, target in scripts.items():
        module, _, function = target.partition(":")
        script = folder / "bin" / name
        script.write_text(f"#!{folder / 'bin' / 'python'}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        script.chmod(0o755)


def test_workspaces_behave_the_same_on_jupyterhub_5(python: Path, tmp_path: Path) -> None:
    version = subprocess.run([python, "-c", "import jupyterhub; print(jupyterhub.__version__)"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("5.5.")
    command = [str(python), "-m", "pytest", "-q", "-m", "hub_versions", "--basetemp", str(tmp_path / "runs"), str(Path(__file__).parent)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=1000)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout
