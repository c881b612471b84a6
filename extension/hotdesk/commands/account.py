"""Who one is and where: project choice, login, logout, whoami, version; help and completion scripts."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hotdesk_api.errors import HotdeskError, Invalid, NotFound, Unauthorized, Unavailable
from hotdesk_api.version import VERSION

from hotdesk import settings
from hotdesk.answers import Answer
from hotdesk.commands import document
from hotdesk.commands.parse import Typed, unknown
from hotdesk.completion import script
from hotdesk.render.view import View
from hotdesk.session import Session

if TYPE_CHECKING:
    from hotdesk_api.models import ProjectOut

SERVICE_PATH = "/services/hotdesk"


def config_project(session: Session, typed: Typed) -> Answer:
    if typed.on("unset"):
        file = settings.change(session.environment, project=None)
        return Answer(talk=(f"No project is chosen any more ({file}).",))
    if not typed.words:
        project = session.project()
        said = [f"Project {project} is in use ({session.project_in_force()[1]})."]
        with suppress(HotdeskError):  # which is in use is known also where no scheduler answers
            said += _past_use(_mine(session, project))
        return Answer(names=(project,), talk=tuple(said))
    name = typed.words[0]
    chosen = _mine(session, name)
    file = settings.change(session.environment, project=name)
    talk = [f"Project {name} has been set as default project", *_past_use(chosen)]
    in_force = session.settings
    if in_force.project != name:
        talk.append(f"But {in_force.project_from} says {in_force.project} here, and wins over {file}.")
    return Answer(names=(name,), talk=tuple(talk))


def _mine(session: Session, name: str) -> ProjectOut:
    from hotdesk_api import calls  # only this verb of the module needs the models

    projects = {project.name: project for project in session.client.call(calls.projects()).items}
    if name not in projects:
        raise unknown("a project you are in", name, list(projects))
    return projects[name]


def _past_use(project: ProjectOut) -> list[str]:
    """What past use has made of its weight, where it counts."""
    from hotdesk.render.cluster import weight  # as above

    now = project.gpu_over_quota_weight_now
    return [] if now is None else [f"Its over-quota weight is {weight(project)}."]


def whoami(session: Session, typed: Typed) -> Answer:
    from hotdesk.render.cluster import me  # as above

    project, source = session.project_in_force()
    view = me(session.me, url=session.client.url, project=project, project_from=source)
    return Answer(view, session.me, names=(session.me.name,))


def login(session: Session, typed: Typed) -> Answer:
    """Ask for what is missing, try it, and only then save it."""
    current = session.settings
    url = (
        typed.text("url")
        or (current.url if current.url_from not in settings.URL_NAMES else None)
        or session.ask("Address of Hotdesk: ", False)
    )
    if not url:
        raise Invalid("login needs --url.", field="url", next_step="For example `hotdesk login --url http://127.0.0.1:8000`.")
    url = _root_of(url)
    token = typed.text("token") or session.ask(f"Token (made at {url}/hub/token): ", True)
    if not token:
        raise Invalid("login needs --token.", field="token", next_step=f"Make one at {url}/hub/token.")
    found, name = _try(url, token.strip())
    file = settings.change(session.environment, url=found, token=token.strip())
    talk = [f"Logged in at {found} as {name}; saved in {file}."]
    session.url = session.token = None
    for variable in (session.settings.url_from, session.settings.token_from):
        if variable in (*settings.URL_NAMES, *settings.TOKEN_NAMES):
            talk.append(f"But {variable} is set here, and wins over what was saved.")
    return Answer(names=(name,), talk=tuple(talk))


def _root_of(url: str) -> str:
    """Where the hub begins, for any of its pages: people copy what their browser shows (`…/hub/token`, `…/user/alice/lab`)."""
    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    scheme, _, rest = url.partition("?")[0].partition("#")[0].partition("://")
    for page in ("/hub/", "/user/"):
        rest = (rest + "/").partition(page)[0]
    return f"{scheme}://{rest.rstrip('/')}"


def _try(url: str, token: str) -> tuple[str, str]:
    """The hub's address will do as well: the scheduler is one of its services. Answers (scheduler's address, user)."""
    from hotdesk_api import calls  # as above
    from hotdesk_api.client import Client

    failure: HotdeskError | None = None
    for candidate in dict.fromkeys((url, url + SERVICE_PATH)):
        client = Client(candidate, token, timeout_s=10)
        try:
            return candidate, client.call(calls.whoami()).name
        except Unauthorized as error:
            raise Unauthorized("That token is not valid here.", field="token", next_step=f"Make a new one at {url}/hub/token.") from error
        except (Unavailable, NotFound, HotdeskError) as error:
            failure = failure or error
        finally:
            client.close()
    raise Unavailable(
        f"There is no Hotdesk at {url} ({failure.sentence if failure else ''})", next_step="Is the address right, and the hub running?"
    )


def logout(session: Session, typed: Typed) -> Answer:
    file = settings.change(session.environment, token=None)
    talk = [f"The token in {file} has been forgotten."]
    if session.settings.token_from in settings.TOKEN_NAMES:
        talk.append(f"But {session.settings.token_from} is set here, and goes on being used.")
    return Answer(talk=tuple(talk))


def version(session: Session, typed: Typed) -> Answer:
    if typed.on("short"):
        return Answer(text=VERSION + "\n", names=(VERSION,))
    from hotdesk_api import calls

    from hotdesk.render.cluster import versions  # as above

    try:
        there, problem = session.client.call(calls.version()), ""
    except HotdeskError as error:
        there, problem = None, f"not reachable: {error.sentence}"
    return Answer(versions(VERSION, there, problem), there, names=(VERSION,))


def help_text(session: Session, typed: Typed) -> Answer:
    return Answer(text=document.help_for(typed.words, word=session.word), view=View(()))


def completion(session: Session, typed: Typed) -> Answer:
    return Answer(text=script(typed.words[0]))
