"""Where Hotdesk is, who we are to it, and the project: flag > environment > `~/.config/hotdesk/config.json` (XDG, mode 0600).

One exception: inside a workspace or job the environment's project is only where we happen to be, so a `config project` choice wins.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from hotdesk_api.errors import HotdeskError, Invalid, Unauthorized, Unavailable

URL_NAMES = ("HOTDESK_API_URL",)
TOKEN_NAMES = ("HOTDESK_TOKEN", "JUPYTERHUB_API_TOKEN")
PROJECT_NAMES = ("HOTDESK_PROJECT", "RUNAI_PROJECT")
INSIDE_NAMES = ("HOTDESK_WORKSPACE", "JUPYTERHUB_USER", "JOB_NAME", "RUNAI_JOB_NAME")
PROGRAM_IMAGE = "python"


@dataclass(frozen=True, slots=True)
class Saved:
    """What the file holds."""

    url: str | None = None
    token: str | None = None
    project: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The values in force, and the name of where each came from."""

    url: str | None
    url_from: str
    token: str | None
    token_from: str
    project: str | None
    project_from: str
    file: Path

    def reachable(self) -> tuple[str, str]:
        """(url, token). Raises if either is missing, with what to do."""
        if not self.url:
            raise Unavailable(
                "No scheduler is known here: HOTDESK_API_URL is not set and nobody has logged in.",
                next_step="Run `hotdesk login --url http://127.0.0.1:8000`, or open a workspace, where it is set.",
            )
        if not self.token:
            raise Unauthorized(
                f"There is no token for {self.url}.",
                next_step="Run `hotdesk login`, or set HOTDESK_TOKEN; a token is made on the hub's page Token.",
            )
        if not _is_address(self.url):
            raise Invalid(
                f"{self.url} (from {self.url_from}) is not the address of a scheduler.",
                field="url",
                value=self.url,
                next_step="Write for example http://127.0.0.1:8000.",
            )
        if not self.token.isascii() or not self.token.isprintable() or " " in self.token:
            raise Unauthorized(
                f"What {self.token_from} holds is not a token: there are blanks or line breaks in it.",
                next_step="Copy the token once more, alone.",
            )
        return self.url, self.token


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def config_file(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CONFIG_HOME") or os.path.join(environment.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(base) / "hotdesk" / "config.json"


def read_saved(file: Path) -> Saved:
    """What was saved; nothing if there is no file. A file that is not ours to understand is an error, not silently replaced."""
    try:
        values = json.loads(file.read_text())
        known = {name: values.get(name) for name in ("url", "token", "project")}
    except FileNotFoundError:
        return Saved()
    except (OSError, ValueError, AttributeError) as error:
        raise HotdeskError(f"The settings in {file} cannot be read ({error}).", next_step="Correct or delete that file.") from error
    return Saved(**{name: value for name, value in known.items() if isinstance(value, str)})


def save(file: Path, saved: Saved) -> None:
    """Replace the file in one step; only its owner can read it."""
    values = {name: getattr(saved, name) for name in ("url", "token", "project") if getattr(saved, name) is not None}
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".config-")
        try:
            with os.fdopen(handle, "w") as stream:
                json.dump(values, stream, indent=2)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, file)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise Unavailable(
            f"The settings could not be saved in {file} ({error}).", next_step="Is the disk full, or not writable?"
        ) from error


def change(environment: Mapping[str, str], **values: str | None) -> Path:
    """Change some of what is saved, keep the rest; the file's path."""
    file = config_file(environment)
    save(file, replace(read_saved(file), **values))
    return file


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str] | None:
    return next(((environment[name], name) for name in names if environment.get(name)), None)


def load(environment: Mapping[str, str], *, url: str | None = None, token: str | None = None, project: str | None = None) -> Settings:
    """The settings in force. `url`, `token`, `project` are what flags said."""
    file = config_file(environment)
    saved = read_saved(file)
    inside = any(environment.get(name) for name in INSIDE_NAMES)
    here = _first(environment, PROJECT_NAMES)
    chosen = (saved.project, "config project") if saved.project else None
    projects = [(project, "-p") if project else None, *((chosen, here) if inside else (here, chosen))]
    urls = [(url, "--url") if url else None, _first(environment, URL_NAMES), (saved.url, str(file)) if saved.url else None]
    the_url = next((found for found in urls if found), (None, ""))
    ours = saved.token if saved.url in (None, the_url[0]) else None  # a saved token goes nowhere but where it was saved for
    tokens = [(token, "--token") if token else None, _first(environment, TOKEN_NAMES), (ours, str(file)) if ours else None]
    the_token = next((found for found in tokens if found), (None, ""))
    the_project = next((found for found in projects if found), (None, ""))
    return Settings(the_url[0], the_url[1], the_token[0], the_token[1], the_project[0], the_project[1], file)


def program_image(environment: Mapping[str, str] = os.environ) -> str:
    """What a cell or program runs in when no image is named: on a cluster the workspace's own, where it finds the same packages."""
    own = environment.get("JUPYTER_IMAGE") if "HOTDESK_WORKSPACE" in environment else None
    return own or PROGRAM_IMAGE
