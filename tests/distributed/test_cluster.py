"""Ray under a Cluster: it lives as long as the Cluster, serves one process, and its loss is noticed; and where workers
run, with which GPUs and threads, or the error if there is no room."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from unittest.mock import patch

import pytest

from common.process import free_port, run_on_temporary_thread
from common.stages import ROOT

ray = pytest.importorskip("ray", reason="needs the package ray")
import psutil  # noqa: E402 (comes with ray, which puts it on the path)

from common.distributed import cluster as module  # noqa: E402 (not if ray is missing)
from common.distributed import joining  # noqa: E402
from common.distributed.cluster import Cluster, plan  # noqa: E402
from tests.helpers.serving_stage_03 import wait_until  # noqa: E402

pytestmark = pytest.mark.ray
SECONDS = 60.0  # the longest wait for anything
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Workers import only the course's modules.


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
    wait_until(lambda: not processes_of_ray(token), 10)


@pytest.fixture(scope="class")
def own() -> Iterator[Cluster]:
    cluster = run_on_temporary_thread(Cluster, None, 3)
    yield cluster
    cluster.close()


class TestOurOwn:
    """A Ray of our own, in the order of its life."""

    def test_it_outlives_the_thread_that_started_it(self, own):
        time.sleep(1)  # Linux sends the signal when the thread has ended
        processes = processes_of_ray(own._token)
        assert {"gcs_server", "raylet"} <= {process.name().removesuffix(".exe") for process in processes}
        programs = {os.path.basename(part) for process in processes for part in process.cmdline()}
        assert not programs & {"monitor.py", "dashboard.py", "log_monitor.py"}, "nothing here asks them"
        assert len(processes) >= 4, "two agents are found, too, and end with the rest"
        assert own.loopback and own.failure is None and own.description == "Ray actors on 1 machine"
        cores = max(1, os.cpu_count() // 3)
        assert [own.threads(number) for number in range(3)] == [cores] * 3
        [(_, address, threads, _)] = places(own, 1)
        assert (address, threads) == ("127.0.0.1", str(cores))
        assert {process.nice() for process in processes_of_ray(own._token)} == {psutil.Process().nice()}

    def test_it_listens_on_loopback(self, own):
        processes = [*processes_of_ray(own._token), psutil.Process()]
        sockets = [
            (process.name(), connection.laddr.ip)
            for process in processes
            for connection in process.net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
        assert len(sockets) >= 4, "GCS, raylet, an agent and a worker listen"
        assert [where for where in sockets if where[1] not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")] == []

    def test_it_refuses_calls_without_its_token(self, own):
        assert "RAY_AUTH_TOKEN" not in os.environ, "no process but Ray's has it"
        with pytest.raises(ValueError, match="cannot be joined: .*uthentication"):
            joining.find_head(own._head)
        with patch.dict(os.environ, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=own._token):
            joining.find_head(own._head)

    def test_a_second_one_is_refused(self, own):
        with pytest.raises(ValueError, match="joined a Ray already"):
            Cluster(None, 1)
        assert processes_of_ray(own._token)

    def test_it_ends_with_close(self, own):
        token = own._token
        own.close()
        own.close()
        assert not ray.is_initialized()
        assert_all_end(token)


# ---- Addresses ----


def test_an_address_without_a_ray_is_refused(monkeypatch):
    """No program listens there, or one that never answers, or a web server. All at once: two wait for the deadline."""
    monkeypatch.setattr(joining, "ANSWER_SECONDS", 4.0)
    here = ("127.0.0.1", 0)
    with socket.create_server(here) as silent, HTTPServer(here, BaseHTTPRequestHandler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        said = {free_port(): "efused|10061", silent.getsockname()[1]: "another program"}
        said[http.server_port] = "another program"
        with ThreadPoolExecutor() as pool:
            joined = {port: pool.submit(Cluster, f"127.0.0.1:{port}", 1) for port in said}
        http.shutdown()
    for port, says in said.items():
        with pytest.raises(ValueError, match=f"there is no Ray at 127.0.0.1:{port}.*({says})"):
            joined[port].result()


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "auto", "6379", "127.0.0.1", ":6379", "127.0.0.1:99999"])
def test_malformed_addresses_are_refused(address):
    with pytest.raises(ValueError, match=address):
        Cluster(address, 1)


# ---- Whole programs ----

PROGRAM = f"""
import os, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
import ray
from common.distributed import cluster as module
from common.trace import Trace
import psutil  # from here on, since ray brings it

def lose(cluster, victims, how):
    "Print what is said of a head when it is well, and when these processes of it have got this signal."
    print(cluster.failure)
    module.SILENCE_SECONDS = 3.0  # not before: a busy machine may be as slow
    for process in psutil.Process().children():
        if process.name() in victims:
            process.send_signal(how)
    start = time.monotonic()
    while cluster.failure is None and time.monotonic() - start < 30:
        time.sleep(0.1)
    print(cluster.failure)

module.LOOK_SECONDS = 0.5
cluster = module.Cluster(None, 2)
print(cluster._token)
workers = [ray.remote(Trace).options(**cluster.actor_options(number)).remote("cpu") for number in range(2)]
for worker in workers:
    print(ray.get(worker.__ray_call__.remote(lambda self: sys.modules["common"].__file__)))
pid = ray.get(workers[0].__ray_call__.remote(lambda self: os.getpid()))
call = workers[0].__ray_call__.remote(lambda self: time.sleep(60))
time.sleep(0.5)
os.kill(pid, signal.SIGKILL)
try:
    ray.get(call)
except ray.exceptions.RayError:
    time.sleep(2)  # Ray takes its time to tell of it
# Of a process that stops nobody tells, and the rest of its Ray lives on; of those that die the connections end.
lose(cluster, ["gcs_server"], signal.SIGSTOP)
cluster.close()
cluster = module.Cluster(None, 1)
print(cluster._token)
lose(cluster, ["gcs_server", "raylet"], signal.SIGKILL)
"""


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_program_survives_lost_workers_and_heads_and_ray_prints_nothing(tmp_path):
    """Its folder has packages of the course's names, and its workers import the course's. It ends without `close`.

    With the course's deadlines it takes at most 12 seconds until a lost head is reported; the program shortens them.
    """
    assert module.LOOK_SECONDS + module.SILENCE_SECONDS < 15
    for name in ("common", "08_disaggregated"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('this is not the course')")
    (tmp_path / "driver.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, "driver.py"], cwd=tmp_path, capture_output=True, text=True, timeout=4 * SECONDS
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    first, *modules, well, stopped, second, well_again, killed = ended.stdout.splitlines()
    assert modules == [str(ROOT / "common" / "__init__.py")] * 2 and {well, well_again} == {"None"}
    for failure in (stopped, killed):
        assert failure.startswith("Ray's head at 127.0.0.1:") and " is lost: " in failure
    for token in (first, second):
        assert_all_end(token)


# ---- Places ----


def test_workers_share_gpus_and_have_the_cores_of_their_own_machine(two_nodes, monkeypatch):
    """The cluster's GPUs count, not those of this process's machine, which has none."""
    monkeypatch.setattr(joining, "ANSWER_SECONDS", 60.0)  # a head answers late beside programs that compute
    with closing(Cluster(two_nodes, 3)) as cluster:
        assert (cluster.device, cluster.gpu_share()) == ("cuda", 0.5)
        assert [cluster.actor_options(number)["num_gpus"] for number in range(3)] == [0.5] * 3
        where = places(cluster, 3)
        nodes = [node for node, *_ in where]
        assert sorted(map(nodes.count, set(nodes))) == [1, 2]
        assert [visible for *_, visible in where] == ["0"] * 3
        assert [threads for _, _, threads, _ in where] == [str(cluster.threads(number)) for number in range(3)]
        assert all(reached == ray.util.get_node_ip_address() != "127.0.0.1" for _, reached, *_ in where)
    with closing(Cluster(two_nodes, 2)) as cluster:  # It has room only if the first one has left.
        assert not cluster.loopback and cluster.gpu_share() == 1.0
        assert cluster.description == "Ray actors on 2 machines"
        assert sorted(cluster.threads(number) for number in range(2)) == [2, 3]
        monkeypatch.setattr(module, "PLACE_SECONDS", 2.0)
        left = "9 workers need 1 GPU, 1 CPU each.*Ray has 2 machines.*, of which 0 GPUs, 3 CPUs are free"
        with pytest.raises(ValueError, match=left):
            cluster._reserve(9)


SMALL, LARGE, NONE = {"CPU": 8, "GPU": 1}, {"CPU": 64, "GPU": 8}, {"CPU": 16}


@pytest.mark.parametrize(
    ("there", "count", "device", "expected"),
    [
        ([LARGE, LARGE], 16, "auto", ("cuda", 1, 1)),
        ([SMALL, SMALL, SMALL], 7, "cuda", ("cuda", 0.3333, 3)),
        ([SMALL], 7, "cuda", ("cuda", 0.1428, 7)),
        ([NONE, NONE], 3, "auto", ("cpu", 0, 1)),
        ([SMALL], 3, "cpu", ("cpu", 0, 1)),
        ([NONE], 3, "cuda", "1 GPU, 1 CPU each"),
        ([{"CPU": 0, "GPU": 1}, NONE], 1, "cuda", "1 GPU, 1 CPU each"),  # a GPU and a core, but not in one machine
        ([NONE, SMALL], 25, "cpu", "1 CPU each"),
        ([], 1, "auto", "1 CPU each"),
    ],
)
def test_workers_share_gpus_if_there_are_too_few_and_are_refused_without_room_for_all(there, count, device, expected):
    nodes = [{"Resources": one} for one in there]
    if isinstance(expected, str):
        says = f"{count} workers need {expected}, on one machine, and Ray has {len(there)} machine"
        with pytest.raises(ValueError, match=says):
            plan(nodes, count, device, mine=False)
        return
    chosen, bundle, sharing = plan(nodes, count, device, mine=False)
    assert (chosen, bundle.get("GPU", 0), sharing) == expected
    assert bundle["CPU"] == 1 and bundle.get("GPU", 0) * sharing <= 1


def test_an_unknown_device_is_refused():
    with pytest.raises(ValueError, match="cannot run on 'mps'"):
        Cluster(None, 2, device="mps")
    assert not ray.is_initialized()
