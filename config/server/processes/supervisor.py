"""The supervisor of ``serve --workers N``: forks the workers and replaces those that die."""

from __future__ import annotations

import gc
import logging
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

logger = logging.getLogger(__name__)

# Tells a worker that a newer one takes its place, while the service goes on.
RETIRE: Final = signal.SIGUSR1
# Serves until a signal stops it; calls its argument when it is ready.
Run = Callable[[Callable[[], None]], None]
_READY: Final = b"r"
# A worker that died before it was ready is started again after this pause.
_PAUSE_SECONDS: Final = 1.0
_HANDLED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(eq=False, slots=True)
class _Worker:
    """A forked process. A byte in ``pipe`` says that it is ready; the end, that it has died."""

    pid: int
    pipe: int
    run: Run
    # When it is killed unless it is ready; infinite once it is ready or killed.
    ready_by: float
    is_ready: bool = False
    is_retiring: bool = False
    # The worker that retires once this one is ready.
    predecessor: _Worker | None = field(default=None, repr=False)


class Supervisor:
    """Keeps workers alive, one for each function that it is given, until SIGTERM or SIGINT.

    The application is loaded once, before the first fork, and its objects are frozen, so that the
    workers share their memory. SIGHUP replaces the workers one by one: a worker retires when its
    successor is ready, and stays when its successor dies or hangs. If the supervisor dies, its
    workers stop.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        listener: socket.socket,
        *,
        companions: Sequence[Run] = (),
        grace: float,
        start_timeout: float,
    ) -> None:
        """Stores the functions and the socket on which their workers accept connections.

        The service has started when a worker of the first function was ready. A function calls its
        argument when its worker is ready, and returns when a signal has stopped it. A worker that
        needs more than ``start_timeout`` seconds to be ready is killed, and so is one that needs
        more than ``grace`` seconds to stop. Companions are workers that accept no connections:
        they end when the others have ended.
        """
        self._runs = (*runs, *companions)
        self._companions = companions
        self._listener = listener
        self._grace = grace
        self._start_timeout = start_timeout
        self._workers: dict[int, _Worker] = {}
        # The workers that SIGHUP replaces, and the successor that is starting for one of them.
        self._outdated: list[_Worker] = []
        self._successor: _Worker | None = None
        self._has_been_ready = False
        self._stop_signal = 0
        self._kill_at = float("inf")
        self._delayed: list[tuple[float, Run]] = []
        self._signals: list[int] = []

    def supervise(self) -> int:
        """Returns the exit code when all workers have ended: 1 if none of them ever was ready."""
        self._selector = selectors.DefaultSelector()
        self._wakeup, wakeup_write = os.pipe()
        self._parent_read, self._parent_write = os.pipe()
        os.set_blocking(wakeup_write, False)
        os.set_blocking(self._wakeup, False)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        for number in _HANDLED:
            signal.signal(number, lambda number, _: self._signals.append(number))
        # The collector would write to every object that it visits, and so copy its page.
        gc.disable()
        gc.collect()
        gc.freeze()
        for run in self._runs:
            self._start(run)
        while self._workers or (self._delayed and not self._stop_signal):
            self._wait()
            self._handle_signals()
            now = time.monotonic()
            while self._delayed and self._delayed[0][0] <= now and not self._stop_signal:
                self._start(self._delayed.pop(0)[1])
            if self._stop_signal and not any(map(self._accepts, self._workers.values())):
                self._signal_all(signal.SIGTERM)
            self._kill_hung(now)
            if now >= self._kill_at:
                self._signal_all(signal.SIGKILL)
                self._kill_at = float("inf")
        return 0 if self._has_been_ready else 1

    def _wait(self) -> None:
        """Waits for a signal, for news of a worker, or until the next start or kill is due."""
        starts = (worker.ready_by for worker in self._workers.values())
        due = min([self._kill_at, *starts, *(at for at, _ in self._delayed)])
        timeout = None if due == float("inf") else max(due - time.monotonic(), 0)
        for key, _ in self._selector.select(timeout):
            if key.fd == self._wakeup:
                os.read(self._wakeup, 4096)
            elif os.read(key.fd, 1) == _READY:
                self._note_ready(self._workers[key.fd])
            else:
                self._note_death(self._workers.pop(key.fd))

    def _handle_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if number == signal.SIGHUP:
                self._outdated = [each for each in self._workers.values() if not each.is_retiring]
                if self._successor is None:
                    self._replace_next()
            else:
                self._stop(number)

    def _stop(self, number: int) -> None:
        """Sends a signal to those that accept, and closes the listener: the port closes with them.

        Their companions stay until the last of them has ended.
        """
        self._stop_signal = number
        self._kill_at = time.monotonic() + self._grace
        self._listener.close()
        for worker in filter(self._accepts, self._workers.values()):
            os.kill(worker.pid, number)

    def _accepts(self, worker: _Worker) -> bool:
        return worker.run not in self._companions

    def _start(self, run: Run, predecessor: _Worker | None = None) -> _Worker | None:
        """Forks a worker and returns it; ``None`` if the system refuses one now.

        One without a predecessor is then tried again in a second.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid, pipe = self._fork(run)
        except OSError as exc:
            # For want of memory, processes or files. The other workers serve meanwhile.
            remedy = "the worker that it should have replaced stays"
            if predecessor is None:
                self._delayed.append((time.monotonic() + _PAUSE_SECONDS, run))
                remedy = "it is tried again in a second"
            logger.error("a worker cannot be started (%s); %s", exc, remedy)
            return None
        ready_by = time.monotonic() + self._start_timeout
        worker = self._workers[pipe] = _Worker(pid, pipe, run, ready_by, predecessor=predecessor)
        self._selector.register(pipe, selectors.EVENT_READ)
        return worker

    def _fork(self, run: Run) -> tuple[int, int]:
        """Forks a worker; returns its process id and the pipe that is read; raises ``OSError``."""
        read, write = os.pipe()
        # A signal to the worker waits until it no longer has the supervisor's handler, which would
        # lose it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            pid = os.fork()
            if pid == 0:
                self._become_worker(run, write)
        except OSError:
            os.close(read)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
            os.close(write)
        return pid, read

    def _become_worker(self, run: Run, write: int) -> NoReturn:
        """Runs a worker in this forked process and ends it."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in _HANDLED:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            if run in self._companions:
                # It would keep the port open, and end with the first Ctrl-C of a terminal.
                self._listener.close()
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
            self._selector.close()
            for descriptor in (self._parent_write, *self._workers):
                os.close(descriptor)
            threading.Thread(target=self._stop_with_parent, daemon=True).start()
            gc.enable()
            run(lambda: _write_ready(write))
            code = 0
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else 1
        except BaseException:
            logger.exception("a worker failed")
        finally:
            logging.shutdown()
            os._exit(code)

    def _stop_with_parent(self) -> None:
        """Stops the worker when the supervisor has died, which closes its end of the pipe."""
        os.read(self._parent_read, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def _note_ready(self, worker: _Worker) -> None:
        worker.is_ready, worker.ready_by = True, float("inf")
        logger.info("worker %d is ready", worker.pid)
        if worker.run is self._runs[0]:
            self._has_been_ready = True
        if worker is self._successor:
            self._retire_predecessor(worker)
            self._successor = None
            self._replace_next()

    def _note_death(self, worker: _Worker) -> None:
        """Starts another worker, unless this one was told to end."""
        self._selector.unregister(worker.pipe)
        os.close(worker.pipe)
        _, status = os.waitpid(worker.pid, 0)
        if self._stop_signal or worker.is_retiring:
            return
        successor = self._successor
        if worker is successor:
            # One that dies at once would die again, so the other old workers stay too. A SIGHUP
            # that came after its start has listed it, and is obeyed: the cause may be mended.
            self._successor = None
            if worker not in self._outdated:
                self._outdated.clear()
        if successor is not None and successor.predecessor is worker:
            successor.predecessor = None
            remedy = "its successor starts already"
        elif worker is successor and worker.predecessor is not None:
            remedy = "the worker that it should have replaced stays"
        elif worker.is_ready:
            self._start(worker.run)
            remedy = "another one starts"
        elif self._has_been_ready:
            self._delayed.append((time.monotonic() + _PAUSE_SECONDS, worker.run))
            remedy = "another one starts in a second"
        else:
            # The settings or the database are wrong: the log of the worker says it.
            self._stop(signal.SIGTERM)
            remedy = "no worker was ever ready, so the service stops"
        code = os.waitstatus_to_exitcode(status)
        logger.error("worker %d ended with %d; %s", worker.pid, code, remedy)
        if worker is successor:
            self._replace_next()

    def _kill_hung(self, now: float) -> None:
        """Kills the workers that hang at their start; their deaths are handled like any other."""
        for worker in self._workers.values():
            if now >= worker.ready_by:
                worker.ready_by = float("inf")
                logger.error(
                    "worker %d was not ready within %g s and is killed",
                    worker.pid,
                    self._start_timeout,
                )
                os.kill(worker.pid, signal.SIGKILL)

    def _replace_next(self) -> None:
        while self._outdated:
            worker = self._outdated.pop(0)
            # An earlier SIGHUP may have replaced it already, or it has died.
            is_left = self._workers.get(worker.pipe) is worker and not worker.is_retiring
            if is_left and not self._stop_signal:
                self._successor = self._start(worker.run, worker)
                if self._successor is None:
                    self._outdated.clear()
                return

    def _retire_predecessor(self, worker: _Worker) -> None:
        if (predecessor := worker.predecessor) is not None:
            worker.predecessor = None
            predecessor.is_retiring = True
            os.kill(predecessor.pid, RETIRE)

    def _signal_all(self, number: int) -> None:
        for worker in self._workers.values():
            os.kill(worker.pid, number)


def _write_ready(descriptor: int) -> None:
    os.write(descriptor, _READY)
