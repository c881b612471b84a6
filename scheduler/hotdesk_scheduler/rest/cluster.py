"""Everything that is not a workload: who am I, the cluster, nodes, images, projects, departments, health."""

from __future__ import annotations

from hotdesk_api import models
from hotdesk_api.version import VERSION

from hotdesk_scheduler.rest import openapi
from hotdesk_scheduler.rest.base import Handler
from hotdesk_scheduler.service import departments, pausing, projects
from hotdesk_scheduler.service.summaries import cluster_out, nodes_out


class Version(Handler):
    async def get(self) -> None:
        snapshot = self.desk.engine.snapshot()
        simulated = any(node.simulated for node in snapshot.nodes)
        self.answer(models.Version(hotdesk=VERSION, engine=self.desk.engine.name, simulated=simulated))


class Me(Handler):
    async def get(self) -> None:
        caller = self.caller
        known = {project.name for project in self.desk.engine.snapshot().projects}
        mine = sorted(known & caller.groups) if not caller.admin else sorted(known)
        own = sorted(known & caller.groups)
        default = own[0] if len(own) == 1 else None
        self.answer(models.Me(name=caller.name, admin=caller.admin, projects=mine, scopes=sorted(caller.scopes), default_project=default))


class Cluster(Handler):
    async def get(self) -> None:
        self.caller.require_read()
        self.answer(cluster_out(self.desk.engine, self.desk.engine.snapshot()))


class Scheduling(Handler):
    async def get(self) -> None:
        self.answer(pausing.show(self.desk, self.caller))

    async def put(self) -> None:
        self.answer(await pausing.put(self.desk, self.caller, self.parsed(models.SchedulingSpec)))


class Images(Handler):
    async def get(self) -> None:
        self.caller.require_read()
        items = [models.ImageOut(name=image.name, description=image.description) for image in self.desk.engine.images()]
        self.answer(models.ImageList(items=items))


class Nodes(Handler):
    async def get(self) -> None:
        self.caller.require_read()
        self.answer(models.NodeList(items=nodes_out(self.desk.engine, self.desk.engine.snapshot())))


class Projects(Handler):
    async def get(self) -> None:
        self.answer(models.ProjectList(items=projects.listing(self.desk, self.caller)))

    async def post(self) -> None:
        self.answer(await projects.create(self.desk, self.caller, self.parsed(models.ProjectSpec)), 201)


class Project(Handler):
    async def get(self, name: str) -> None:
        self.answer(projects.show(self.desk, self.caller, name))

    async def patch(self, name: str) -> None:
        self.answer(await projects.update(self.desk, self.caller, name, self.parsed(models.ProjectSpec)))

    async def delete(self, name: str) -> None:
        await projects.delete(self.desk, self.caller, name)
        self.no_content()


class Departments(Handler):
    async def get(self) -> None:
        self.answer(models.DepartmentList(items=departments.listing(self.desk, self.caller)))

    async def post(self) -> None:
        self.answer(await departments.create(self.desk, self.caller, self.parsed(models.DepartmentSpec)), 201)


class Department(Handler):
    async def get(self, name: str) -> None:
        self.answer(departments.show(self.desk, self.caller, name))

    async def patch(self, name: str) -> None:
        self.answer(await departments.update(self.desk, self.caller, name, self.parsed(models.DepartmentSpec)))

    async def delete(self, name: str) -> None:
        await departments.delete(self.desk, self.caller, name)
        self.no_content()


class Healthy(Handler):
    """The process answers."""

    public = True

    async def get(self) -> None:
        self.answer_json(b'{"status":"ok"}')


class Ready(Handler):
    """Everything works; else 503 and what does not."""

    public = True

    async def get(self) -> None:
        problems = self.desk.problems()
        self.answer_json(openapi.dumps({"ready": not problems, "problems": problems}), 503 if problems else 200)


class Metrics(Handler):
    public = True

    async def get(self) -> None:
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.finish(self.desk.metrics.text())


class OpenApi(Handler):
    public = True

    async def get(self) -> None:
        self.answer_json(openapi.dumps(openapi.document()))
