"""Ray under a Cluster: it lives as long as the Cluster, serves one process, and its loss is noticed; and where workers
run, with which GPUs and threads, or the error if there is no room."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
        [(_, address, threads, _)] = places(own, 1)
        assert (address, threads) == ("127.0.0.1", str(max(1, os.cpu_count() // 3)))
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


def test_what_sigterm_does_is_not_rays_to_change():
    told = []
    before = signal.signal(signal.SIGTERM, lambda *_: told.append("ours"))
    with joining.own_sigterm():
        ctypes.pythonapi.PyOS_setsig(signal.SIGTERM, 0)  # as Ray's library does, behind Python's back
    signal.raise_signal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)
    assert told == ["ours"]


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


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "auto", "127.0.0.1", ":6379", "127.0.0.1:99999"])
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

module.LOOK_SECONDS = 0.5
cluster = module.Cluster(None, 1)
print(cluster._token)
worker = ray.remote(Trace).options(**cluster.actor_options(0)).remote("cpu")
print(ray.get(worker.__ray_call__.remote(lambda self: sys.modules["common"].__file__)))
pid = ray.get(worker.__ray_call__.remote(lambda self: os.getpid()))
call = worker.__ray_call__.remote(lambda self: time.sleep(60))
time.sleep(0.5)
os.kill(pid, signal.SIGKILL)
try:
    ray.get(call)
except ray.exceptions.RayError:
    time.sleep(2)  # Ray takes its time to tell of it
print(cluster.failure)
module.SILENCE_SECONDS = 3.0  # not before: a busy machine may be as slow
for process in psutil.Process().children():
    if process.name() in ("gcs_server", "raylet"):
        process.kill()
start = time.monotonic()
while cluster.failure is None and time.monotonic() - start < 30:
    time.sleep(0.1)
print(cluster.failure)
"""


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_program_survives_a_lost_worker_and_a_lost_head_and_ray_prints_nothing(tmp_path):
    """Its folder has a package of the course's name, and its worker imports the course's. It ends without `close`."""
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").write_text("raise ImportError('this is not the course')")
    (tmp_path / "driver.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, "driver.py"], cwd=tmp_path, capture_output=True, text=True, timeout=4 * SECONDS
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    token, imported, before, failure = ended.stdout.splitlines()
    assert (imported, before) == (str(ROOT / "common" / "__init__.py"), "None")
    assert failure.startswith("Ray's head at 127.0.0.1:") and " is lost: " in failure
    assert_all_end(token)


def test_a_head_that_does_not_answer_counts_as_lost(monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.1)
    cluster, answer = Cluster.__new__(Cluster), threading.Event()
    cluster._closing, cluster._head, cluster.failure, cluster._look = Future(), "here", None, answer.wait
    cluster._watch()
    answer.set()
    assert cluster.failure.startswith("Ray's head at here is lost: no answer for")


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


SMALL, LARGE, NONE = {"CPU": 8, "GPU": 1}, {"CPU": 64, "GPU": 8}, {"CPU": 16}


@pytest.mark.parametrize(
    ("there", "count", "device", "expected"),
    [
        ([LARGE, LARGE], 16, "auto", ("cuda", {"CPU": 1, "GPU": 1}, 1)),
        ([SMALL, SMALL, SMALL], 7, "cuda", ("cuda", {"CPU": 1, "GPU": 0.3333}, 3)),
        ([NONE, NONE], 3, "auto", ("cpu", {"CPU": 1}, 1)),
    ],
)
def test_workers_share_gpus_if_there_are_too_few(there, count, device, expected):
    assert plan([{"Resources": one} for one in there], count, device, mine=False) == expected


@pytest.mark.parametrize(
    ("there", "count", "device", "needs"),
    [
        ([{"CPU": 0, "GPU": 1}, NONE], 1, "cuda", "1 GPU, 1 CPU"),  # a GPU and a core, but not in one machine
        ([NONE, SMALL], 25, "cpu", "1 CPU"),
    ],
)
def test_without_room_for_all_workers_a_sentence_says_what_they_need(there, count, device, needs):
    with pytest.raises(ValueError, match=f"{count} workers need {needs} each, on one machine, and Ray has 2 machines"):
        plan([{"Resources": one} for one in there], count, device, mine=False)


def test_a_gpu_with_a_number_is_refused():
    with pytest.raises(ValueError, match="cannot run on 'cuda:1'"):
        Cluster(None, 2, device="cuda:1")
