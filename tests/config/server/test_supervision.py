"""Workers that die, retire and drain: what callers of the service notice of it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import requests
import uvicorn
from django.conf import settings

from config.server.processes.worker import WorkerServer
from config.server.readiness import readiness
from inference.models import Generation
from tests.support.bulkheads.counters import authorization
from tests.support.inference.site import Site, content_of, events_of
from tests.support.machine.ports import reserved_port
from tests.support.machine.waiting import wait_until
from tests.support.processes import Served, manage, serve


def workers_of(served: Served) -> set[int]:
    """Returns the process ids of the workers of a service."""
    path = f"/proc/{served.process.pid}/task/{served.process.pid}/children"
    return set(map(int, Path(path).read_text().split()))


def is_alive(pid: int) -> bool:
    # A process may also end between the opening and the reading of its file.
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def ready_status(served: Served) -> int:
    return requests.get(f"{served.address}/readyz", timeout=60).status_code


def refuses_connections(served: Served) -> bool:
    try:
        address = ("127.0.0.1", int(served.address.rpartition(":")[2]))
        socket.create_connection(address, 10).close()
    except ConnectionError:
        return True
    return False


def test_a_killed_worker_is_replaced(site: Site) -> None:
    site.publish()
    with serve("--workers", "2") as served:
        site.server = served.address
        wait_until(lambda: len(workers_of(served)) == 2)
        before = workers_of(served)
        killed = min(before)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(workers_of(served) - {killed}) == 2)
        assert workers_of(served) > before - {killed}
        assert [site.chat().status_code for _ in range(4)] == [200] * 4
        code, errors = served.stop()
    assert code == 0, errors
    assert f"worker {killed} ended with -9; another one starts" in errors
    site.eventually(lambda: Generation.objects.filter(status="completed").count() == 4)


def test_what_is_loaded_for_the_workers_leaves_no_thread_and_no_connection(site: Site) -> None:
    """A fork would copy the locks of threads, and workers would write to one connection."""
    with serve("--workers", "2") as served:
        wait_until(lambda: len(workers_of(served)) == 2)
        process = Path(f"/proc/{served.process.pid}")
        threads = list((process / "task").iterdir())
        targets = [os.readlink(each) for each in (process / "fd").iterdir()]
        code, errors = served.stop()
    assert code == 0, errors
    # The listener.
    assert (len(threads), sum(each.startswith("socket:") for each in targets)) == (1, 1)


def test_sighup_replaces_the_workers_and_ends_no_stream(site: Site) -> None:
    site.publish("sim-gated")
    with serve("--workers", "2", DRAIN_SECONDS="1") as served:
        site.server = served.address
        answer = site.post(site.chat_body("one two", stream=True), stream=True)
        chunks = answer.iter_content(None)
        first = next(chunks)
        before = workers_of(served)
        served.process.send_signal(signal.SIGHUP)
        # The worker with the stream stays until the stream has ended.
        wait_until(lambda: len(workers_of(served) - before) == 2)
        wait_until(lambda: len(before & workers_of(served)) == 1)
        assert ready_status(served) == 200
        site.upstream.release(20)
        events = events_of((first + b"".join(chunks)).decode())
        answer.close()
        assert content_of(events) == "You said: one two"
        wait_until(lambda: not before & workers_of(served))
        code, errors = served.stop()
    assert (code, "Traceback" in errors) == (0, False), errors


def test_sighup_leaves_the_only_worker_and_its_streams_alone(site: Site) -> None:
    site.publish("sim-gated")
    with serve() as served:
        site.server = served.address
        answer = site.post(site.chat_body("one two", stream=True), stream=True)
        chunks = answer.iter_content(None)
        first = next(chunks)
        served.process.send_signal(signal.SIGHUP)
        assert ready_status(served) == 200
        site.upstream.release(20)
        events = events_of((first + b"".join(chunks)).decode())
        answer.close()
        assert content_of(events) == "You said: one two"
        code, errors = served.stop()
    assert code == 0, errors


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_stopping_service_tells_its_proxy_and_still_serves(site: Site, workers: str) -> None:
    site.publish()
    with serve("--workers", workers, DRAIN_SECONDS="6") as served:
        site.server = served.address
        assert ready_status(served) == 200
        with requests.Session() as session:
            session.get(f"{served.address}/healthz", timeout=60)
            served.process.send_signal(signal.SIGTERM)
            wait_until(lambda: ready_status(served) == 503)
            answer = session.get(f"{served.address}/readyz", timeout=60)
            assert answer.json()["reason"] == "stopping"
            assert answer.headers["Connection"] == "close"
        for stream in (False, True):
            late = site.chat(stream=stream)
            assert late.status_code == 200
            assert late.headers["Connection"] == "close"
        code, errors = served.wait()
    assert (code, "Traceback" in errors) == (0, False), errors


def test_one_ctrl_c_ends_no_stream_and_loses_no_bill(site: Site) -> None:
    """A terminal sends SIGINT to the workers too, to which the supervisor sends it again."""
    site.publish("sim-gated")
    with serve("--workers", "2") as served:
        site.server = served.address
        answer = site.post(site.chat_body("one two", stream=True), stream=True)
        chunks = answer.iter_content(None)
        first = next(chunks)
        for pid in (*workers_of(served), served.process.pid):
            os.kill(pid, signal.SIGINT)
        # The worker without a stream ends at once, so the signals have come.
        wait_until(lambda: len(workers_of(served)) < 2)
        site.upstream.release(20)
        assert events_of((first + b"".join(chunks)).decode())[-1] == "[DONE]"
        answer.close()
        assert served.wait()[0] == 0
    assert site.settled().status == "completed"


def test_sigint_a_second_later_ends_the_streams_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "is_draining", False)
    config = uvicorn.Config("unused", log_config=None)
    server = WorkerServer(config, drain_seconds=60, notify=lambda: None)

    def is_forced() -> bool:
        server.handle_exit(signal.SIGINT, None)
        return server.force_exit

    assert (is_forced(), is_forced(), server.should_exit) == (False, False, True)
    wait_until(is_forced)


def test_a_stopped_service_refuses_connections_while_its_streams_end(site: Site) -> None:
    site.publish("sim-gated")
    with serve("--workers", "2") as served:
        site.server = served.address
        answer = site.post(site.chat_body("one two", stream=True), stream=True)
        chunks = answer.iter_content(None)
        first = next(chunks)
        served.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refuses_connections(served))
        site.upstream.release(20)
        assert events_of((first + b"".join(chunks)).decode())[-1] == "[DONE]"
        answer.close()
        assert served.wait()[0] == 0


def test_the_metrics_stay_until_the_last_worker_has_ended(site: Site) -> None:
    site.publish("sim-gated")
    with reserved_port() as port, serve("--workers", "2", METRICS_PORT=str(port)) as served:
        site.server = served.address
        answer = site.post(site.chat_body("one two", stream=True), stream=True)
        chunks = answer.iter_content(None)
        first = next(chunks)
        served.process.send_signal(signal.SIGTERM)
        # The one without a stream ends; the other one and the metrics are left.
        wait_until(lambda: len(workers_of(served)) == 2 and refuses_connections(served))
        url = f"http://127.0.0.1:{port}/metrics"
        assert requests.get(url, headers=authorization(), timeout=60).status_code == 200
        site.upstream.release(20)
        assert events_of((first + b"".join(chunks)).decode())[-1] == "[DONE]"
        answer.close()
        code, errors = served.wait()
    assert (code, "Traceback" in errors) == (0, False), errors


def test_workers_stop_when_their_supervisor_was_killed(site: Site) -> None:
    with serve("--workers", "2") as served:
        workers = workers_of(served)
        assert len(workers) == 2
        served.process.kill()
        wait_until(lambda: not any(map(is_alive, workers)))


@contextmanager
def supervise(folder: Path) -> Iterator[Served]:
    """Runs two workers; those that start while the file ``slow`` is there wait for ``go``.

    A worker that is replaced ends when the file ``end`` is there.
    """
    program = (
        "import os, pathlib, signal, socket, sys, time\n"
        "from config.server.processes.supervisor import Supervisor\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "def run(notify):\n"
        "    retired = []\n"
        "    signal.signal(signal.SIGUSR1, lambda *_: retired.append(1))\n"
        "    if (folder / 'slow').exists():\n"
        "        while not (folder / 'go').exists(): time.sleep(0.01)\n"
        "    (folder / f'ready-{os.getpid()}').touch()\n"
        "    notify()\n"
        "    while not (retired and (folder / 'end').exists()): time.sleep(0.01)\n"
        "sys.exit(Supervisor([run, run], socket.socket(), grace=5, start_timeout=60).supervise())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stderr=subprocess.DEVNULL, text=True
    )
    served = Served("", process, folder / "log")
    try:
        wait_until(lambda: count_ready(folder) == 2)
        yield served
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("asked_meanwhile", [False, True])
def test_a_successor_that_hangs_is_killed_and_the_next_sighup_replaces_the_workers(
    site: Site, tmp_path: Path, *, asked_meanwhile: bool
) -> None:
    """A worker reads its certificates at its start; a pipe without a text lets it hang."""
    site.publish()
    bundle = tmp_path / "ca.pem"
    good = Path(settings.EGRESS_POLICY.ca_bundle).read_text()
    bundle.write_text(good)
    changes = {"UPSTREAM_CA_BUNDLE": str(bundle), "WORKER_START_TIMEOUT": "10"}
    with serve("--workers", "2", **changes) as served:
        site.server = served.address
        before = workers_of(served)
        bundle.unlink()
        os.mkfifo(bundle)
        served.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(workers_of(served)) == 3)
        [hung] = workers_of(served) - before
        with open_when_it_is_read(bundle):
            bundle.unlink()
            bundle.write_text(good)
            if asked_meanwhile:
                served.process.send_signal(signal.SIGHUP)
            wait_until(lambda: not is_alive(hung))
        assert f"worker {hung} was not ready within 10 s and is killed" in served.log
        if not asked_meanwhile:
            wait_until(lambda: workers_of(served) == before)
            assert site.chat().status_code == 200
            served.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(workers_of(served)) == 2 and not before & workers_of(served))
        assert site.chat().status_code == 200
        code, errors = served.stop()
    assert (code, "Traceback" in errors) == (0, False), errors
    text = f"worker {hung} ended with -9; the worker that it should have replaced stays"
    assert errors.count("was not ready") == errors.count(text) == 1


@contextmanager
def open_when_it_is_read(pipe: Path) -> Iterator[None]:
    """Waits until a process reads a named pipe, and keeps it open without a text."""
    found: list[int] = []

    def is_read() -> bool:
        with suppress(OSError):
            found.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return bool(found)

    wait_until(is_read)
    try:
        yield
    finally:
        os.close(found[0])


@pytest.mark.parametrize(
    ("work", "start_timeout", "text"),
    [
        ("time.sleep(600)", 1, "no worker was ever ready, so the service stops"),
        ("raise SystemExit(3)", 60, "ended with 3"),
    ],
    ids=["hang", "fail"],
)
def test_a_service_whose_first_workers_hang_or_fail_ends(
    work: str, start_timeout: int, text: str
) -> None:
    program = (
        "import socket, sys, time; from config.server.processes.supervisor import Supervisor\n"
        f"def run(notify): {work}\n"
        "supervisor = Supervisor([run, run], socket.socket(), grace=5, "
        f"start_timeout={start_timeout})\n"
        "sys.exit(supervisor.supervise())"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 1
    assert text in result.stderr


@pytest.mark.parametrize(
    ("number", "code"), [("SIGTERM", -15), ("SIGINT", -2), ("SIGHUP", 3)], ids=str
)
def test_a_signal_just_after_the_fork_reaches_the_worker(number: str, code: int) -> None:
    """The worker still has the supervisor's handlers then; SIGHUP is for the supervisor alone."""
    program = (
        "import os, signal, socket, sys\n"
        "from config.server.processes.supervisor import Supervisor\n"
        "fork = os.fork\n"
        "def fork_and_signal():\n"
        "    if (pid := fork()) == 0:\n"
        f"        os.kill(os.getpid(), signal.{number})\n"
        "    return pid\n"
        "os.fork = fork_and_signal\n"
        "def run(notify): raise SystemExit(3 + len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))\n"
        "supervisor = Supervisor([run], socket.socket(), grace=5, start_timeout=60)\n"
        "code = supervisor.supervise()\n"
        "sys.exit(code + len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 1
    assert f"ended with {code}; no worker was ever ready" in result.stderr


@pytest.mark.parametrize(
    ("asks", "text"),
    [
        ("raise SystemExit(3)", "it is tried again in a second"),
        ("renew()", "the worker that it should have replaced stays"),
    ],
    ids=["death", "SIGHUP"],
)
def test_a_worker_that_cannot_be_forked_ends_no_service(
    tmp_path: Path, asks: str, text: str
) -> None:
    """The second fork is refused, as for want of memory; the third worker ends the service."""
    program = (
        "import errno, os, pathlib, signal, socket, sys, time\n"
        "from config.server.processes.supervisor import Supervisor\n"
        "refused = pathlib.Path(sys.argv[1]) / 'refused'\n"
        "fork, forks = os.fork, []\n"
        "def fork_or_refuse():\n"
        "    forks.append(1)\n"
        "    if len(forks) == 2:\n"
        "        refused.touch()\n"
        "        raise OSError(errno.ENOMEM, 'Cannot allocate memory')\n"
        "    return fork()\n"
        "os.fork = fork_or_refuse\n"
        "def renew():\n"
        "    os.kill(os.getppid(), signal.SIGHUP)\n"
        "    while not refused.exists(): time.sleep(0.01)\n"
        "    os.kill(os.getppid(), signal.SIGHUP)\n"
        "    signal.pause()\n"
        "def run(notify):\n"
        "    notify()\n"
        f"    if not refused.exists(): {asks}\n"
        "    os.kill(os.getppid(), signal.SIGTERM)\n"
        "    signal.pause()\n"
        "supervisor = Supervisor([run], socket.socket(), grace=5, start_timeout=60)\n"
        "code = supervisor.supervise()\n"
        "sys.exit(code + len(forks) - 3)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    refusal = "a worker cannot be started ([Errno 12] Cannot allocate memory)"
    assert f"{refusal}; {text}" in result.stderr


def count_ready(folder: Path) -> int:
    return len(list(folder.glob("ready-*")))


def test_a_worker_that_dies_before_its_successor_is_ready_is_replaced_once(tmp_path: Path) -> None:
    """After SIGHUP two of the four starts are slow; the old worker is killed during the first."""
    (tmp_path / "end").touch()
    with supervise(tmp_path) as served:
        before = workers_of(served)
        (tmp_path / "slow").touch()
        served.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(workers_of(served)) == 3)
        os.kill(min(before), signal.SIGKILL)
        wait_until(lambda: min(before) not in workers_of(served))
        (tmp_path / "go").touch()
        wait_until(lambda: not before & workers_of(served))
        time.sleep(0.5)
        assert len(workers_of(served)) == 2


@pytest.mark.parametrize("ends_at_once", [False, True])
def test_a_second_sighup_replaces_no_worker_that_is_being_replaced(
    tmp_path: Path, *, ends_at_once: bool
) -> None:
    if ends_at_once:
        (tmp_path / "end").touch()
    with supervise(tmp_path) as served:
        before = workers_of(served)
        (tmp_path / "slow").touch()
        served.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(workers_of(served)) == 3)
        # The first successor, which is not ready yet, is replaced too.
        served.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        (tmp_path / "go").touch()
        wait_until(lambda: count_ready(tmp_path) == 5)
        (tmp_path / "end").touch()
        wait_until(lambda: len(workers_of(served)) == 2)
        time.sleep(0.5)
        assert len(workers_of(served)) == 2
        assert not before & workers_of(served)
        assert (served.process.poll(), count_ready(tmp_path)) == (None, 5)


def test_the_metrics_have_a_port_of_their_own(transactional_db: None) -> None:
    port = "8123"  # It is refused before anything listens there.
    result = manage("serve", "--port", port, "--workers", "2", METRICS_PORT=port)
    assert result.returncode == 1
    assert f"METRICS_PORT is {port}, the port of the service" in result.stderr


def test_the_probes_need_no_statement_and_no_host(server: str) -> None:
    for path in ("/healthz", "/readyz"):
        answer = requests.get(f"{server}{path}", headers={"Host": "10.1.2.3"}, timeout=60)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        refused = requests.post(f"{server}{path}", timeout=60)
        assert (refused.status_code, refused.headers["Allow"]) == (405, "GET, HEAD")


def test_a_worker_starts_no_thread_before_it_is_forked(site: Site) -> None:
    """A thread that holds a lock during a fork would leave it locked in the worker for ever."""
    with serve("--workers", "2") as served:
        status = Path(f"/proc/{served.process.pid}/status").read_text()
    assert re.search(r"^Threads:\s+1$", status, re.MULTILINE)
