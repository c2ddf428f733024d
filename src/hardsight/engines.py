"""Where units of work run: in this process, or on the workers of a Ray cluster.

An engine takes a `Job` and the numbers of the remaining units. Workers write their results themselves; the driver only
hands out numbers, so a lost worker costs one unit.
"""

from __future__ import annotations

import math
import os
import platform
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from hardsight.errors import DiskError, InputError, StateError, StoreError
from hardsight.extras import first_line, need
from hardsight.registry import Range, whole_number
from hardsight.userfile import USER_MODULE

_ANSWER_SECONDS = 5
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # which gRPC answers at once


class Job(Protocol):
    """Work in units. It is pickled and sent to every worker."""

    def open(self) -> Callable[[int], list[str]]:
        """Prepare a worker, once; returns a function that computes and commits a unit and returns notes about the
        result.
        """
        ...

    def samples(self, unit: int) -> int:
        """How many samples a unit has, for the progress bar."""
        ...


@dataclass
class Outcome:
    """The outcome of the units: why some failed on every try, notes about the result, and lost workers."""

    failed: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    lost: int = 0


@dataclass(frozen=True)
class Ray:
    """The workers of a Ray cluster (extra ``ray``), or of a Ray instance that is started on this machine.

    Every worker holds the model and the data, and asks for one unit after another. A worker that dies is restarted, and
    its unit is computed again; a unit that fails on every try is listed as bad, and the run continues.

    Args:
        workers: How many; if not given, one per GPU of the cluster, or per processor core if it has none.
        address: Address of a running cluster (``host:6379``, ``auto``, or ``ray://host:10001``); if not given, the
            running Ray of this process, or else a new one on this machine.
        cpus: Processor cores that each worker reserves; it uses as many threads.
        gpus: GPUs that each worker reserves; if not given, 1 if the cluster has any.
        tries: How often a unit may fail before its samples are bad.
        timeout: Seconds after which a worker that is still busy with one unit is restarted; never if not given.
        patience: Seconds without a working worker after which the run stops and can be resumed: the nodes are gone,
            or none has what a worker needs.

    Examples:
        >>> engine = Ray(workers=2, timeout=600)
        >>> engine.tries
        3
    """

    workers: int | None = None
    address: str | None = None
    cpus: int = 1
    gpus: float | None = None
    tries: int = 3
    timeout: float | None = None
    patience: float = 600

    def __post_init__(self) -> None:
        for name in ("cpus", "tries", *(["workers"] if self.workers is not None else [])):
            whole_number(name, getattr(self, name), 1)
        if self.address is not None and not self.address.strip():  # an unset shell variable
            raise InputError("address must be that of a Ray cluster, as in host:6379, or auto; got an empty text.")
        above, least = Range(0, ends="(]"), Range(0)
        for name, limits in {"patience": above, "timeout": above, "gpus": least}.items():
            if (value := getattr(self, name)) is not None:
                limits.check(value, name)

    def run(self, job: Job, units: Sequence[int], progress: bool = True) -> Outcome:
        """Run the units; those that failed on every try are in the outcome."""
        # Under `uv run`, Ray would upload the current folder and build a new environment from it for the workers.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        ray = need("ray")
        with _session(ray, self.address):
            return _Dispatch(self, ray, job).run(units, progress)


class _Dispatch:
    """Hands units to workers until none is left. A worker is prepared first, and again after it was lost."""

    def __init__(self, engine: Ray, ray: Any, job: Job) -> None:
        self.engine, self.ray, self.job, self.outcome = engine, ray, job, Outcome()
        resources = ray.cluster_resources()
        gpus = (1 if resources.get("GPU") else 0) if engine.gpus is None else engine.gpus
        usual = resources.get("GPU", 0) / gpus if gpus else resources.get("CPU", 1) / engine.cpus
        self.count = engine.workers or max(1, int(usual))
        for module in [module for name, module in sys.modules.items() if name.startswith(USER_MODULE)]:
            ray.cloudpickle.register_pickle_by_value(module)  # no worker can import a user's file by its name
        options = {"num_cpus": engine.cpus, "num_gpus": gpus, "max_restarts": 0}
        self.actor, self.packed = ray.remote(**options)(_Worker), ray.put(job)
        self.needs = f"each needs {engine.cpus} CPU" + (f" and {gpus:g} GPU" if gpus else "")
        # What each worker is doing: a unit, or None while it is prepared, and since when.
        self.running: dict[Any, tuple[Any, int | None, float]] = {}

    def run(self, units: Sequence[int], progress: bool) -> Outcome:
        from tqdm import tqdm

        todo, failures = deque(units), Counter[int | None]()
        total, hidden = sum(map(self.job.samples, units)), None if progress else True
        with ExitStack() as stack:
            bar = stack.enter_context(tqdm(total=total, unit=" samples", desc="scoring", disable=hidden))
            stack.callback(self._end)
            for _ in range(min(self.count, len(todo))):
                self._prepare(self.actor.remote())
            last_worker = time.monotonic()
            while todo or any(unit is not None for _, unit, _ in self.running.values()):
                ended = self.ray.wait(list(self.running), timeout=1)[0]
                for task in ended:
                    worker, unit, _ = self.running.pop(task)
                    reason, lost = self._reason(task)
                    if reason is not None:
                        failures[unit] += 1
                        # A lost node takes all its workers with it, even idle ones: that is one loss, not many.
                        last = failures[unit] >= self.engine.tries * (self.count if unit is None else 1)
                        if unit is None and last:
                            raise WorkerError("workers are lost while they start: look at Ray's logs for the reason.")
                        if unit is not None and last:
                            self.outcome.failed[unit] = f"{reason} ({self.engine.tries} tries)"
                        elif unit is not None:
                            todo.append(unit)
                    if unit is None and reason is None:
                        failures[None] = 0  # only consecutive losses mean that no worker can start
                    elif unit is not None and (reason is None or unit in self.outcome.failed):
                        bar.update(self.job.samples(unit))
                    if lost:
                        self.ray.kill(worker)  # a worker that is merely unreachable would keep its GPU
                        self._prepare(self.actor.remote())
                    elif todo:
                        unit = todo.popleft()
                        self.running[worker.run.remote(unit)] = worker, unit, time.monotonic()
                    else:
                        self._prepare(worker)  # another may fail and leave its unit to this one
                self._stop_hanging()
                at_work = sum(unit is not None for _, unit, _ in self.running.values())
                bar.set_postfix(workers=at_work, lost=self.outcome.lost, refresh=not ended)
                if at_work:
                    last_worker = time.monotonic()
                elif time.monotonic() - last_worker > self.engine.patience:  # Ray itself waits forever
                    raise WorkerError(
                        f"Ray could start no worker for {self.engine.patience:g} seconds ({self.needs}): check the "
                        "cluster and run the same command again, which resumes."
                    )
        return self.outcome

    def _prepare(self, worker: Any) -> None:
        # In a list, so that the worker fetches it.
        task = worker.prepare.remote([self.packed], _versions(), self.engine.cpus, str(Path.cwd()))
        self.running[task] = worker, None, time.monotonic()

    def _reason(self, task: Any) -> tuple[str | None, bool]:
        """Why a task failed, if it did, and whether its worker was lost with it."""
        try:
            notes = self.ray.get(task)
        except self.ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", error)
            if isinstance(cause, (InputError, DiskError, StoreError, WorkerError)):  # the same on every try
                raise cause from None
            return f"{type(cause).__name__}: {first_line(cause)}", False
        except self.ray.exceptions.RayError:  # of the worker, its node, or its memory
            self.outcome.lost += 1
            return "its worker was lost", True
        self.outcome.notes += [note for note in notes if note not in self.outcome.notes]
        return None, False

    def _stop_hanging(self) -> None:
        """Kill the workers that take too long over one unit: they count as lost, and their unit as failed once."""
        for task, (worker, unit, started) in self.running.items():
            if unit is not None and time.monotonic() - started > (self.engine.timeout or math.inf):
                self.ray.kill(worker)
                self.running[task] = worker, unit, math.inf  # once

    def _end(self) -> None:
        """Release the workers; a Ray that the user started keeps running."""
        for worker, *_ in self.running.values():
            self.ray.kill(worker)


class WorkerError(StateError):
    """A worker could not be prepared, so none can run there."""


class _Worker:
    """A process of the cluster that holds the model and the data."""

    score: Callable[[int], list[str]] | None = None

    def prepare(self, packed: list[Any], versions: dict[str, str], threads: int, folder: str) -> list[str]:
        if self.score is not None:
            time.sleep(0.2)  # it has nothing to do
            return []
        place, mine = platform.node(), _versions()
        others = [f"{name} {mine[name]} and not {versions[name]}" for name in mine if mine[name] != versions[name]]
        if others:
            raise WorkerError(f"a worker on {place} has {', '.join(others)}: install the same versions there.")
        torch.set_num_threads(threads)
        with suppress(OSError):  # if it exists there, relative paths mean the same as to the driver
            os.chdir(folder)
        try:
            self.score = need("ray").get(packed[0]).open()
        except Exception as error:  # anything may be missing: a file, a library, memory
            raise WorkerError(
                f"a worker on {place} cannot start: {type(error).__name__}: {first_line(error)}"
            ) from error
        return []

    def run(self, unit: int) -> list[str]:
        if self.score is None:
            raise WorkerError("a worker was not prepared.")
        return self.score(unit)


def _versions() -> dict[str, str]:
    """What must be the same on all workers."""
    from hardsight import __version__

    python = ".".join(platform.python_version_tuple()[:2])
    return {"hardsight": __version__, "torch": str(torch.__version__), "Python": python}


@contextmanager
def _session(ray: Any, address: str | None) -> Iterator[None]:
    """A connection to a cluster; an existing one stays open."""
    if ray.is_initialized():
        running = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", running):
            raise StateError(
                f"address: this process uses the Ray at {running} already; leave the address out, or call "
                "ray.shutdown() first."
            )
        yield
        return
    if address is not None and ":" in (place := address.removeprefix("ray://")):
        host, _, port = place.rpartition(":")
        try:  # Ray itself would wait for a minute, and forever for a server that accepts connections and never answers
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS) as connection:
                connection.sendall(_GREETING)
                connection.recv(1)
        except (OSError, ValueError, OverflowError) as error:
            raise StateError(f"address: no Ray answers at {address} ({first_line(error)}).") from None
    try:
        ray.init(
            address or "local",
            log_to_driver=False,
            logging_level="ERROR",
            include_dashboard=False if address is None else None,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise StateError(f"address: Ray could not be reached or started ({first_line(error)}).") from error
    try:
        yield
    finally:
        ray.shutdown()
