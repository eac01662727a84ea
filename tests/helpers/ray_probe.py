"""What the tests of Ray look at: where workers are, and which processes live."""

import os
import sys
import time

import ray

from common.distributed.cluster import Cluster, host

# isort: split
import psutil  # comes with ray, which puts it on the path

SECONDS = 60.0  # for anything to happen

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers import from the course alone


class Probe:
    """An actor that tells where it is."""

    def where(self, loopback: bool) -> tuple[str, str, str | None, str | None]:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return ray.get_runtime_context().get_node_id(), host(loopback), os.environ.get("OMP_NUM_THREADS"), visible


def places(cluster: Cluster, count: int) -> list[tuple[str, str, str | None, str | None]]:
    """Start every worker, and return where each is."""
    actors = [ray.remote(Probe).options(**cluster.actor_options(number)).remote() for number in range(count)]
    return ray.get([actor.where.remote(cluster.loopback) for actor in actors], timeout=SECONDS)


def processes_of_ray(token: str) -> list[psutil.Process]:
    """The processes of a Ray of our own that live."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("RAY_AUTH_TOKEN") == token and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            pass
    return found


def assert_all_end(token: str) -> None:
    """Within 10 seconds. By themselves workers whose head is lost would live on for a minute."""
    give_up = time.monotonic() + 10
    while left := processes_of_ray(token):
        assert time.monotonic() < give_up, left
        time.sleep(0.05)
