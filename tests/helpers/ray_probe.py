"""What the tests of Ray share: a Ray of several nodes, where its workers are, and which processes live."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from common.distributed.cluster import Cluster
from common.distributed.joining import OBJECT_STORE_BYTES, environment, read_authentication_settings

# isort: split
import psutil  # comes with ray, which puts it on the path

SECONDS = 60.0  # for anything to happen

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers import from the course alone


@contextmanager
def ray_of(*nodes: dict[str, int]) -> Iterator[str]:
    """Start a Ray of several nodes on this machine, with these resources each; yield its address."""
    from ray.cluster_utils import Cluster as Nodes

    # Without what no test looks at: each of these is one more process.
    spare = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    head, *others = ({"object_store_memory": OBJECT_STORE_BYTES} | spare | node for node in nodes)
    started = {"RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0"}  # as a Ray of our own
    with environment(RAY_AUTH_MODE="disabled", **started):
        read_authentication_settings()
        cluster = Nodes(initialize_head=True, head_node_args=head)
        for node in others:
            cluster.add_node(**node)
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
