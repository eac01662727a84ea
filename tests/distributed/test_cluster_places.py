"""Where a Cluster places its workers, with which GPUs and threads, and its error if there is no room.

Several nodes of Ray run on this machine. They claim cores and GPUs that it does not have.
"""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from common.stages import ROOT

ray = pytest.importorskip("ray", reason="needs the package ray")
from tests.helpers.ray_probe import places, ray_of  # noqa: E402 (not before ray is known to be there)

pytestmark = pytest.mark.ray

from common.distributed import cluster as module  # noqa: E402
from common.distributed import joining  # noqa: E402
from common.distributed.cluster import Cluster, plan  # noqa: E402


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A head answers late beside programs that compute."""
    monkeypatch.setattr(joining, "ANSWER_SECONDS", 60.0)


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[str]:
    """The address of a Ray of two nodes: 8 cores and a GPU, 2 cores and a GPU."""
    with ray_of({"num_cpus": 8, "num_gpus": 1}, {"num_cpus": 2, "num_gpus": 1}) as address:
        yield address


@pytest.fixture
def joined(two_nodes) -> Iterator:
    """A function that makes a Cluster, after closing the one before."""
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
    """The cluster's GPUs count, not those of this process's machine, which has none."""
    cluster = joined(3)
    assert (cluster.device, cluster.gpu_share()) == ("cuda", 0.5)
    assert [cluster.actor_options(number)["num_gpus"] for number in range(3)] == [0.5] * 3
    where = places(cluster, 3)
    nodes = [node for node, *_ in where]
    assert sorted(map(nodes.count, set(nodes))) == [1, 2]
    assert [visible for *_, visible in where] == ["0"] * 3
    cluster.close()
    joined(3)  # which has room only if the first one has left


def test_the_error_names_what_the_cluster_lacks(joined):
    with pytest.raises(ValueError, match="2 workers need 2 GPUs, 2 CPUs each, on one machine, and Ray has .* CPUs$"):
        joined(2, ranks=2, device="cuda")
    with pytest.raises(
        ValueError, match="1 CPU each, on one machine, and Ray has 2 machines with (8 CPUs; 2 CPUs|2 CPUs; 8 CPUs)$"
    ):
        joined(11, device="cpu")
    assert not ray.is_initialized()


def test_the_error_names_what_others_have_left(two_nodes, joined, monkeypatch):
    """Another process has reserved all cores."""
    other = "import sys; from common.distributed.cluster import Cluster; c = Cluster(sys.argv[1], 10, device='cpu')"
    command = [sys.executable, "-c", f"{other}; print('there', flush=True); sys.stdin.read()", two_nodes]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"there\n"
        monkeypatch.setattr(module, "PLACE_SECONDS", 2.0)
        with pytest.raises(
            ValueError, match="2 workers need 1 CPU each.*Ray has 2 machines.*, of which 0 CPUs are free"
        ):
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
def test_workers_share_gpus_if_there_are_too_few(there, count, ranks, device, expected):
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
def test_clusters_without_room_for_all_workers_are_refused(there, count, ranks, device):
    with pytest.raises(ValueError, match=f"{count} workers need {ranks} .* each, on one machine, and Ray has"):
        plan(there, count, ranks, device, mine=False)
