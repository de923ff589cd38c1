"""Ray actors: one host actor per node owns that node's workers; conversion and measurement have actors of their own.

All are the same class around an `execution.Site`. The driver creates them before trials run and they outlive any trial. They hold no
CPU: the calling trial's CPU is their budget, since an actor that wants one from inside a trial could wait forever.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sweep.errors import StageFailed
from sweep.execution import Site
from sweep.host import cpus, local_host, memory_bytes
from sweep.plan import Host
from sweep.records import FAILED, Order, Result, Upload

RESTART_SECONDS = 30.0
HOST, CONVERTER, DEVICE = "host", "converter", "device"
_ROLES = {"convert": CONVERTER, "measure": DEVICE}
MEASURING_RESOURCE = "measure"
TOOLCHAIN_RESOURCE = "toolchain-"
"""With a toolchain's name after it: a node of a cluster declares it where it has that toolchain, and others don't."""
CONCURRENT_CALLS = 64
KEPT_WORKERS = 4
MEMORY_SHARE = 0.8
"""What all stages of a machine may use together of its memory, where the sweep sets no limit for one."""


@dataclass(frozen=True)
class SiteSettings:
    """What a site is made with; the cache is a path on each node."""

    cache: str
    slots: int  # on a machine of its own; a node of a cluster has its CPUs
    recycle_bytes: int
    environment: Mapping[str, str]


class RunFiles:
    """Artifacts of runs (`execution.FileStore`). MLflow is loaded when one is really fetched or uploaded, since that takes seconds."""

    def fetch(self, uri: str, folder: Path) -> None:
        from sweep import artifacts

        artifacts.fetch(uri, folder)

    def upload(self, upload: Upload, folder: Path) -> None:
        from sweep import artifacts

        artifacts.upload(upload, folder)


@ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=CONCURRENT_CALLS)
class SiteActor:
    """A site on one node. A killed one is started again; its guard ends the workers of the old one."""

    def __init__(self, settings: SiteSettings) -> None:
        os.environ.update(settings.environment)
        slots = min(settings.slots, cpus())
        memory = int(memory_bytes() * MEMORY_SHARE / slots)
        self._site = Site(Path(settings.cache), max(KEPT_WORKERS, 2 * slots), settings.recycle_bytes, memory, RunFiles())

    def run(self, order: Order, gpus: tuple[str, ...]) -> Result:
        return self._site.run(order, gpus)

    def host(self) -> Host:
        return local_host()

    def close(self) -> None:
        self._site.pool.close()


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Directory:
    """Creates sites and hands out handles on them; it lives as long as the driver, so sites on nodes that join later do too.

    A killed one is started again and makes its sites anew: they end with the process that created them.
    """

    def __init__(self, settings: SiteSettings, home: str) -> None:
        self._settings = settings
        self._sites = {(DEVICE, ""): self._create(next(iter(nodes_with(MEASURING_RESOURCE)), home))}

    def site(self, kind: str, node: str, toolchain: str) -> tuple[Any, str]:
        """The site for a stage whose trial was placed on a node, and that site's node: the one device's, else the trial's own; where nodes
        say which toolchains they have, and this one hasn't the stage's, one of those that have."""
        role = _ROLES.get(kind, HOST)
        if role != DEVICE and (having := nodes_with(TOOLCHAIN_RESOURCE + toolchain)) and node not in having:
            node = having[hash(node) % len(having)]
        at = (role, "") if role == DEVICE else (role, node)
        if at not in self._sites:
            self._sites[at] = self._create(node)
        return self._sites[at], node

    def close(self) -> None:
        """End the workers of every site."""
        ray.wait([site.close.remote() for site in self._sites.values()], num_returns=len(self._sites), timeout=10)

    def _create(self, node: str) -> Any:
        return SiteActor.options(  # type: ignore[attr-defined]
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote(self._settings)


def run(directory: Any, order: Order) -> Result:
    """Run an order from inside a trial, at the site for it. An actor that dies in the middle is a failure like any other."""
    try:
        here = ray.get_runtime_context().get_node_id()
        site, node = ray.get(directory.site.remote(order.stage.kind, here, order.stage.settings["toolchain"]))
        _wait_until_up(site)
        gpus = tuple(str(gpu) for gpu in ray.get_gpu_ids()) if node == here else ()  # the trial's own are no other node's
        return ray.get(site.run.remote(order, gpus))
    except StageFailed as failure:
        return _failed(order, failure.failure_class, failure.message)
    except ray.exceptions.RayTaskError as error:  # not the stage's own failure, which is a result, but one of ours
        return _failed(order, "internal", f" {type(error.cause).__name__}: {error.cause}"[:500])
    except ray.exceptions.RayActorError as error:
        return _failed(order, "preempted", f"the actor that ran the stage was lost: {' '.join(str(error).split())[:200]}")


class Cluster(NamedTuple):
    """A Ray cluster as it is when it is joined."""

    host: Host  # the node that measures, as keys name it, and whether there is a GPU to train on
    cpus: int
    gpus: int
    nodes: int
    measures_apart: bool  # whether a node is there for measurements alone


def cluster() -> Cluster:
    """The cluster that this driver has joined."""
    measuring = next(iter(nodes_with(MEASURING_RESOURCE)), None)
    strategy = NodeAffinitySchedulingStrategy(measuring or ray.get_runtime_context().get_node_id(), soft=False)
    host: Host = ray.get(ray.remote(local_host).options(num_cpus=0, scheduling_strategy=strategy).remote())
    resources = ray.cluster_resources()
    host = host._replace(processor="gpu" if resources.get("GPU") else "cpu")
    nodes = sum(1 for node in ray.nodes() if node["Alive"])
    return Cluster(host, int(resources.get("CPU", 0)), int(resources.get("GPU", 0)), nodes, measuring is not None)


def _wait_until_up(site: Any) -> None:
    deadline = time.monotonic() + RESTART_SECONDS
    while True:
        try:
            ray.get(site.host.remote())
            return
        except ray.exceptions.RayActorError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def nodes_with(resource: str) -> list[str]:
    """The living nodes that declare a resource."""
    return sorted(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get(resource))


def _failed(order: Order, failure_class: str, message: str) -> Result:
    return Result(order.stage.key, order.stage.kind, order.attempt, FAILED, failure_class=failure_class, message=message)
