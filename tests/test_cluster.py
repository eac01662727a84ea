"""Ray for stage 08: it lives as long as its Cluster, for this process alone, and has a place for each worker."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from common.stages import ROOT
from common.threads import on_a_passing_thread

ray = pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")  # comes with ray
cluster_utils = pytest.importorskip("ray.cluster_utils")
from common.distributed import cluster as module  # noqa: E402 (not before ray is known to be there)
from common.distributed import joining  # noqa: E402
from common.distributed.cluster import Cluster, host, plan  # noqa: E402

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


def processes_of_ray(token: str) -> dict[str, psutil.Process]:
    """The processes of a Ray of our own that live, by name."""
    found = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get("RAY_AUTH_TOKEN") == token and process.status() != psutil.STATUS_ZOMBIE:
                found[process.name()] = process
        except psutil.Error:
            pass
    return found


@pytest.fixture(scope="class")
def own() -> Iterator[Cluster]:
    cluster = on_a_passing_thread(Cluster, None, 3)
    yield cluster
    cluster.close()


class TestOurOwn:
    """A Ray of our own, in the order of its life."""

    def test_it_outlives_the_thread_that_asked_for_it(self, own):
        time.sleep(1)  # the signal comes when the thread has ended
        names = {name.removesuffix(".exe") for name in processes_of_ray(own._token)}
        assert {"gcs_server", "raylet"} <= names
        assert own.mine and own.failure is None and own.description == "Ray actors on 1 machine"
        cores = max(1, os.cpu_count() // 3)
        assert [own.threads(number) for number in range(3)] == [cores] * 3
        where = places(own, 3)
        assert {(address, threads) for _, address, threads, _ in where} == {("127.0.0.1", str(cores))}

    def test_it_listens_on_loopback(self, own):
        processes = [*processes_of_ray(own._token).values(), psutil.Process()]
        sockets = [
            (process.name(), connection.laddr.ip)
            for process in processes
            for connection in process.net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
        assert len(sockets) >= 4, "GCS, raylet, an agent and a worker listen"
        strangers = [where for where in sockets if where[1] not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")]
        assert strangers == []

    def test_it_wants_its_token(self, own):
        assert "RAY_AUTH_TOKEN" not in os.environ, "no process but Ray's has it"
        with joining.environment(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0"):  # or Ray would not look on loopback
            with pytest.raises(ValueError, match="cannot be joined: .*uthentication"):
                joining.find_head(own._head)
            with joining.environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=own._token):
                joining.find_head(own._head)

    def test_there_is_one_at_a_time(self, own):
        with pytest.raises(ValueError, match="joined a Ray already"):
            Cluster(None, 1)
        assert processes_of_ray(own._token)

    def test_it_ends_with_close(self, own):
        token = own._token
        own.close()
        own.close()
        assert not ray.is_initialized()
        give_up = time.monotonic() + SECONDS
        while left := processes_of_ray(token):
            assert time.monotonic() < give_up, left
            time.sleep(0.05)


@pytest.mark.parametrize(("device", "says"), [("mps", "not on 'mps'"), ("cuda", "Ray has 1 machine with 0 GPUs")])
def test_a_device_that_is_not_there(device, says):
    if device == "cuda" and os.path.exists("/dev/nvidia0"):
        pytest.skip("NOT RUN, needs a machine without a GPU")
    with pytest.raises(ValueError, match=says):
        Cluster(None, 2, device=device)
    assert not ray.is_initialized()


# ---- Several machines: nodes on this one, which claim the cores and GPUs that they have not ----


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[str]:
    """The address of a Ray of two nodes: 8 cores and a GPU, 2 cores and a GPU."""
    with joining.environment(RAY_AUTH_MODE="disabled"):
        joining.read_authentication_settings()
        node = {"num_gpus": 1, "object_store_memory": joining.OBJECT_STORE_BYTES, "include_dashboard": False}
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=node | {"num_cpus": 8})
        cluster.add_node(num_cpus=2, num_gpus=1, object_store_memory=joining.OBJECT_STORE_BYTES)
        cluster.wait_for_nodes()
        yield cluster.address
        cluster.shutdown()


@pytest.fixture
def joined(two_nodes) -> Iterator:
    """Makes Clusters, one after the other."""
    made: list[Cluster] = []

    def join(*arguments, **options) -> Cluster:
        made.append(Cluster(two_nodes, *arguments, **options))
        return made[-1]

    yield join
    for cluster in made:
        cluster.close()


def test_workers_have_the_cores_of_their_own_machine(joined):
    cluster = joined(2, device="cpu")
    assert sorted(cluster.threads(number) for number in range(2)) == [2, 8]
    assert not cluster.mine and cluster.device == "cpu" and cluster.description == "Ray actors on 2 machines"
    where = places(cluster, 2)
    assert len({node for node, *_ in where}) == 2
    assert [threads for _, _, threads, _ in where] == [str(cluster.threads(number)) for number in range(2)]
    assert all(address == ray.util.get_node_ip_address() != "127.0.0.1" for _, address, *_ in where)


def test_three_workers_share_two_gpus_and_leave_them_when_they_end(joined):
    """The machine of this process has none: what the cluster has counts."""
    for _ in range(2):  # the second time there is room only if the first has left
        cluster = joined(3)
        assert (cluster.device, cluster.gpu_share()) == ("cuda", 0.5)
        assert [cluster.actor_options(number)["num_gpus"] for number in range(3)] == [0.5] * 3
        where = places(cluster, 3)
        nodes = [node for node, *_ in where]
        assert sorted(map(nodes.count, set(nodes))) == [1, 2]
        assert [visible for *_, visible in where] == ["0"] * 3
        cluster.close()


def test_what_a_cluster_lacks_is_said(joined):
    start = time.monotonic()
    with pytest.raises(
        ValueError, match="2 workers were asked for, each on one machine with 2 GPUs, 2 CPUs, and Ray has"
    ):
        joined(2, ranks=2, device="cuda")
    with pytest.raises(ValueError, match="with 1 CPU, and Ray has 2 machines with (8 CPUs; 2 CPUs|2 CPUs; 8 CPUs)$"):
        joined(11, device="cpu")
    assert time.monotonic() - start < 30 and not ray.is_initialized()


def test_what_others_use_is_said(two_nodes, joined, monkeypatch):
    """Another process has reserved all cores."""
    other = "import sys; from common.distributed.cluster import Cluster; c = Cluster(sys.argv[1], 10, device='cpu')"
    command = [sys.executable, "-c", f"{other}; print('there', flush=True); sys.stdin.read()", two_nodes]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"there\n"
        monkeypatch.setattr(module, "PLACE_SECONDS", 2.0)
        with pytest.raises(ValueError, match="2 workers .* 1 CPU, and Ray has 2 machines.*, of which 0 CPUs are free"):
            joined(2, device="cpu")
        process.stdin.close()


def nodes(*resources: dict[str, float]) -> list[dict]:
    return [{"Resources": one} for one in resources]


SMALL, LARGE, NONE = {"CPU": 8, "GPU": 1}, {"CPU": 64, "GPU": 8}, {"CPU": 16}


@pytest.mark.parametrize(
    ("there", "count", "ranks", "device", "expected"),
    [
        (nodes(LARGE, LARGE), 16, 1, "auto", ("cuda", 1, 1)),
        (nodes(LARGE, NONE), 2, 4, "auto", ("cuda", 4, 1)),
        (nodes(SMALL, SMALL, SMALL), 7, 1, "cuda", ("cuda", 0.3333, 3)),
        (nodes(SMALL), 7, 1, "cuda", ("cuda", 0.1428, 7)),
        (nodes(NONE, NONE), 3, 1, "auto", ("cpu", 0, 1)),
        (nodes(LARGE), 3, 1, "cpu", ("cpu", 0, 1)),
    ],
)
def test_shares_of_gpus(there, count, ranks, device, expected):
    chosen, bundle, sharing = plan(there, count, ranks, device, mine=False)
    assert (chosen, bundle.get("GPU", 0), sharing) == expected
    assert bundle["CPU"] == ranks and bundle.get("GPU", 0) * sharing <= max(1, ranks)


@pytest.mark.parametrize(
    ("there", "count", "ranks", "device"),
    [
        (nodes(SMALL, SMALL), 1, 2, "cuda"),  # two GPUs, but not in one machine
        (nodes(LARGE), 3, 4, "auto"),
        (nodes(NONE), 1, 1, "cuda"),
        (nodes(NONE), 17, 1, "auto"),
        (nodes(), 1, 1, "auto"),
    ],
)
def test_too_small(there, count, ranks, device):
    with pytest.raises(ValueError, match=f"{count} workers were asked for, each on one machine with {ranks} .*Ray has"):
        plan(there, count, ranks, device, mine=False)


# ---- Addresses ----


class Page(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def addresses() -> Iterator[dict[str, str]]:
    """Where nobody listens, where nobody answers, and where something answers that is not Ray."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
    server = HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield {
            "nobody": nobody,
            "silent": f"127.0.0.1:{silent.getsockname()[1]}",
            "http": f"127.0.0.1:{server.server_port}",
        }
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("kind", "says"), [("nobody", "efused|10061"), ("silent", "does not answer as Ray"), ("http", "not answer as Ray")]
)
def test_an_address_without_ray(addresses, monkeypatch, kind, says):
    assert joining.REACH_SECONDS + joining.ANSWER_SECONDS < 20
    monkeypatch.setattr(joining, "ANSWER_SECONDS", 4.0)
    with pytest.raises(ValueError, match=f"there is no Ray at {addresses[kind]}: .*({says})"):
        Cluster(addresses[kind], 1)


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "auto", "6379", "127.0.0.1", ":6379", "127.0.0.1:99999"])
def test_what_is_no_address(address):
    with pytest.raises(ValueError, match=f"{address}"):
        Cluster(address, 1)


# ---- Whole programs ----

IMPORTS = f"""
import os, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
import ray
from common.distributed import cluster as module
from common.threads import on_a_passing_thread
from common.trace import Trace
import psutil  # from here on, since ray brings it

"""


def run(folder, program: str) -> str:
    """What a program prints that lies in `folder` and is started there. It must print nothing to stderr."""
    (folder / "driver.py").write_text(IMPORTS + program)
    command = [sys.executable, "driver.py"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    return result.stdout


def test_workers_import_the_course_and_ray_prints_nothing(tmp_path):
    """Not the packages of the same names in the driver's folder. One worker is killed, and the program just ends."""
    for name in ("common", "08_disaggregated"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('this is not the course')")
    program = """
cluster = module.Cluster(None, 2)
workers = [ray.remote(Trace).options(**cluster.actor_options(number)).remote() for number in range(2)]
modules = [ray.get(worker.__ray_call__.remote(lambda self: sys.modules["common"].__file__)) for worker in workers]
pid = ray.get(workers[0].__ray_call__.remote(lambda self: os.getpid()))
call = workers[0].__ray_call__.remote(lambda self: time.sleep(60))
time.sleep(0.5)
os.kill(pid, signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
try:
    ray.get(call)
except ray.exceptions.RayError:
    time.sleep(2)  # Ray takes its time to tell of it
    print(*modules, cluster._token)
"""
    *modules, token = run(tmp_path, program).split()
    assert modules == [str(ROOT / "common" / "__init__.py")] * 2
    assert processes_of_ray(token) == {}


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(
    ("victims", "sent"),
    [(["gcs_server"], "SIGKILL"), (["gcs_server"], "SIGSTOP"), (["gcs_server", "raylet"], "SIGKILL")],
)
def test_the_head_is_lost(tmp_path, victims, sent):
    """With the deadlines of the course it takes at most 12 seconds; shorter ones keep this test short."""
    assert module.LOOK_SECONDS + module.SILENCE_SECONDS < 15
    program = f"""
module.SILENCE_SECONDS = module.CLOSE_SECONDS = 4.0
cluster = module.Cluster(None, 1)
time.sleep(module.LOOK_SECONDS + 1)
print(cluster.failure)
for process in psutil.Process().children():
    if process.name() in {victims}:
        process.send_signal(signal.{sent})
start = time.monotonic()
while cluster.failure is None and time.monotonic() - start < 30:
    time.sleep(0.1)
print(cluster.failure)
cluster.close()
print(cluster._token)
"""
    before, failure, token = run(tmp_path, program).splitlines()
    assert before == "None" and failure.startswith("Ray's head at 127.0.0.1:") and " is lost: " in failure
    assert processes_of_ray(token) == {}
