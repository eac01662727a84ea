"""What the tests of Ray share: a Ray of several nodes, where its workers are, and which processes live."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import ray
from ray._private.node import Node

from common.distributed.cluster import Cluster
from common.distributed.joining import NOT_STARTED, OBJECT_STORE_BYTES, environment, read_authentication_settings

# isort: split
import psutil  # comes with ray, which puts it on the path

SECONDS = 60.0  # for anything to happen

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers import from the course alone


@contextmanager
def ray_of(*nodes: dict[str, int]) -> Iterator[str]:
    """Start a Ray of several nodes on this machine, with these resources each; yield its address."""
    from ray.cluster_utils import Cluster as Nodes

    # As a Ray of our own, but without a token.
    started = {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0"}
    with environment(**started), patch.multiple(Node, **NOT_STARTED):
        read_authentication_settings()
        cluster = Nodes()
        for node in nodes:  # the first one is the head
            cluster.add_node(object_store_memory=OBJECT_STORE_BYTES, include_dashboard=False, **node)
        cluster.wait_for_nodes()
    yield cluster.address
    cluster.shutdown()


class Probe:
    """An actor that tells where it is."""

    def where(self) -> tuple[str, str, str | None, str | None]:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return (
            ray.get_runtime_context().get_node_id(),
            ray.util.get_node_ip_address(),
            os.environ.get("OMP_NUM_THREADS"),
            visible,
        )


def places(cluster: Cluster, count: int) -> list[tuple[str, str, str | None, str | None]]:
    """Start every worker, and return where each is."""
    actors = [ray.remote(Probe).options(**cluster.actor_options(number)).remote() for number in range(count)]
    return ray.get([actor.where.remote() for actor in actors], timeout=SECONDS)


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
    """Raise AssertionError unless all end in 10 seconds. By themselves workers of a lost head live on for a minute."""
    give_up = time.monotonic() + 10
    while left := processes_of_ray(token):
        assert time.monotonic() < give_up, left
        time.sleep(0.05)
