"""Start a Ray for this process, or join a running one. cluster.py uses it.

Six things here depend on undocumented parts of Ray: its choice of an address, the client of its head, the processes it
starts, its reading of tokens, the import path of its workers, and its messages. Each has a test; they pass with Ray
2.52, the first version with tokens, and with 2.60.
"""

import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest.mock import patch

import ray
from ray._private import ray_constants
from ray._private import worker as ray_driver
from ray._private.node import Node
from ray._raylet import AuthenticationTokenLoader, Config
from ray.job_config import JobConfig

from ..errors import InvalidInput
from ..stages import ROOT

REACH_SECONDS = 5.0  # for a connection to the address of a running Ray
ANSWER_SECONDS = 20.0  # for the process there to answer as the head of a Ray
OBJECT_STORE_BYTES = 80 << 20  # about Ray's minimum: messages are small, and pages do not pass through the store
LOOPBACK = "127.0.0.1"
# Processes of Ray's head that nothing here needs: an autoscaler, a web server, a log reader. Each takes a second.
NOT_STARTED = dict.fromkeys(("start_monitor", "start_api_server", "start_log_monitor"), lambda *_, **__: None)
# A program that connects to the head at an address, or aborts if there is none.
CONNECT = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1])"


def find_head(address: str) -> None:
    """Raise InvalidInput unless a Ray's head answers at `address` and accepts our token."""
    name, _, port = address.rpartition(":")
    if "/" in address or not name or not port.isdecimal():
        raise InvalidInput(f"{address!r} is not the address of a Ray: give host:port, as `ray start --head` prints it")
    try:
        socket.create_connection((name.strip("[]"), int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InvalidInput(f"there is no Ray at {address} ({error}): start one with `ray start --head`") from error
    try:
        connected = subprocess.run(
            [sys.executable, "-c", CONNECT, address],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise InvalidInput(
            f"there is no Ray at {address}: another program listens there; check the port of `ray start --head`"
        ) from None
    if connected.returncode:
        reason = connected.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise InvalidInput(f"the Ray at {address} cannot be joined: {reason}")


def join_ray(address: str) -> None:
    """Join the Ray at `address`, with the token from Ray's own settings if it requires one."""
    silence_ray()
    read_authentication_settings()
    with own_sigterm():
        ray.init(address, job_config=CourseJobConfig(), log_to_driver=False, configure_logging=False)


def start_ray(token: str) -> None:
    """Start a Ray on this machine, which listens on loopback and takes only calls with `token`."""
    import torch  # Imported only here: workers import this module too, and may do without torch.

    silence_ray()
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_worker_niceness": "0"}
    own["RAY_prestart_worker_first_driver"] = "0"  # Otherwise Ray starts a process that no worker uses.
    own["SPT_NOENV"] = "1"  # Otherwise a process's title overwrites its environment, and `end_processes` misses it.
    # On Linux, Ray would replace 127.0.0.1 by an address that other machines can reach.
    on_loopback = patch.object(ray_constants, "ENABLE_RAY_CLUSTER", False)
    # Ray's processes get these variables when they start, and pass them on to their workers.
    with patch.dict(os.environ, own), on_loopback, patch.multiple(Node, **NOT_STARTED), own_sigterm():
        read_authentication_settings()
        ray.init(
            "local",
            num_cpus=os.cpu_count(),
            num_gpus=torch.cuda.device_count(),  # Ray would also count GPUs that this torch cannot use
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            job_config=CourseJobConfig(),
            log_to_driver=False,
            configure_logging=False,
            _node_ip_address=LOOPBACK,
        )


class CourseJobConfig(JobConfig):
    """Make workers import the course's modules before others of the same name.

    In a new worker Ray puts the driver's working directory and the directory of its script before PYTHONPATH, and then
    imports the actor's class. A folder named `common` there would be imported in place of the course's.
    """

    def _serialize(self) -> str:  # Ray calls it after it has set its directories, and before it sends them
        self._py_driver_sys_path = [str(ROOT)]
        return super()._serialize()


@contextmanager
def own_sigterm() -> Iterator[None]:
    """Keep this process's handler of SIGTERM. Ray's handler prints the stack, and leaves processes behind.

    Python sets handlers only on the main thread, so this calls Python's C library.
    """
    library = ctypes.pythonapi
    library.PyOS_getsig.restype = ctypes.c_void_p
    before = ctypes.c_void_p(library.PyOS_getsig(signal.SIGTERM))
    try:
        yield
    finally:
        library.PyOS_setsig(signal.SIGTERM, before)


def read_authentication_settings() -> None:
    """Make Ray read its environment variables now; by itself it reads them only when it is imported."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def silence_ray() -> None:
    """Keep Ray's own messages off the terminal. Its errors reach the caller as exceptions."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # the course sends no reports
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the default since Ray 2.60; older versions warn
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    ray_driver.print_to_stdstream = lambda *_, **__: None  # called for every worker that dies, whatever the log level


def end_processes(token: str) -> None:
    """Kill all processes of the Ray that was started with `token`, whatever their parents."""
    import psutil  # comes with Ray

    for process in psutil.process_iter():
        with suppress(psutil.Error):  # the process has just ended, or is another user's
            if process.environ().get("RAY_AUTH_TOKEN") == token:
                process.kill()
