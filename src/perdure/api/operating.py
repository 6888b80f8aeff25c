"""What concerns everybody: the whole store at a glance, queues, dependencies, workers, the trail. Scope `operate`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from perdure.api.caller import Operator
from perdure.api.overview import Acts, ActView, Changed, Dependencies, Overview, Queues, Workers
from perdure.api.shared import PROBLEMS, Bounded, Service
from perdure.api.views import Act
from perdure.operate.acts import not_needed

router = APIRouter(prefix="/v3", tags=["operators"], responses=PROBLEMS, route_class=Bounded)
Name = Annotated[str, Path(max_length=200, description="As it is called in the list.")]


class HoldAct(Act):
    """Why, and whether a dependency is meant that nothing is known to need yet."""

    new: bool = False


@router.get("/status", response_model=Overview)
async def status(service: Service, caller: Operator) -> Any:
    """The whole store: what needs a person first, documents by state, queues, workers, services, dead groups."""
    return await service.overview()


@router.get("/queues", response_model=Queues)
async def queues(service: Service, caller: Operator) -> Any:
    """Queues with what waits in them and since when."""
    return {"queues": (await service.overview())["queues"]}


@router.post("/queues/{name}/pause", response_model=Changed)
async def pause(service: Service, caller: Operator, name: Name, act: Act | None = None) -> Changed:
    """No worker takes anything more from the queue."""
    await service.pause(name, reason=(act or Act()).reason, who=caller.who)
    return Changed(name=name, state="paused")


@router.post("/queues/{name}/resume", response_model=Changed)
async def resume(service: Service, caller: Operator, name: Name, act: Act | None = None) -> Changed:
    """They do again."""
    await service.resume(name, reason=(act or Act()).reason, who=caller.who)
    return Changed(name=name, state="running")


@router.get("/dependencies", response_model=Dependencies)
async def dependencies(service: Service, caller: Operator) -> Dependencies:
    """Services that stages need: up, down or ramping, since when and why, documents held; how calls went."""
    return Dependencies(dependencies=await service.dependencies(), calls=await service.kpis())


@router.post("/dependencies/{name}/hold", response_model=Changed)
async def hold(service: Service, caller: Operator, name: Name, act: HoldAct | None = None) -> Changed:
    """Documents that need it wait until somebody releases it."""
    known = await service.needed()
    told = act or HoldAct()
    await service.hold(name, told.reason or "held by hand", who=caller.who, new=told.new)
    return Changed(name=name, state="down", warning=not_needed(name, known))


@router.post("/dependencies/{name}/release", response_model=Changed)
async def release(service: Service, caller: Operator, name: Name, act: Act | None = None) -> Changed:
    """They go on."""
    await service.release(name, (act or Act()).reason, who=caller.who)
    return Changed(name=name, state="up")


@router.get("/workers", response_model=Workers)
async def workers(service: Service, caller: Operator) -> Any:
    """Who works on this store, and who is gone without saying so."""
    return {"workers": (await service.overview())["workers"]}


@router.get("/acts", response_model=Acts)
async def acts(
    service: Service, caller: Operator,
    who: Annotated[str | None, Query(max_length=200)] = None,
    verb: Annotated[str | None, Query(max_length=50)] = None,
    target: Annotated[str | None, Query(max_length=1000)] = None,
    after: Annotated[int | None, Query(ge=1, le=1 << 53)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Acts:  # fmt: skip
    """What was done by whom, when, to what and why, the newest first."""
    found = await service.acts(who=who, verb=verb, target=target, after=after, limit=limit)
    views = [ActView(**asdict(one)) for one in found]
    return Acts(acts=views, next=found[-1].id if len(found) == limit else None)
