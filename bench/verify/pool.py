"""Worker processes of the sweep. XLA aborts its process on some errors: then the case has failed,
a new worker takes the place, and the sweep goes on."""

from __future__ import annotations

import multiprocessing as mp
import os
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from multiprocessing.connection import Connection, wait
from typing import Any

from bench.verify.case import Case, Result

CASE_LIMIT_S = 900.0
CLEAR_AFTER = 8  # cases, after which compiled programs are forgotten
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "2",  # the partitioner warns of every expensive reshard
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8"
    " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
}
if metadata.version("jaxlib").startswith("0.10."):  # the older emitters compile in half the time
    ENVIRONMENT["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"


def run(cases: Sequence[Case], jobs: int) -> Iterator[Result]:
    """Yields results as they are made, in no order. A worker keeps to one step while it can."""
    todo = list(cases)
    workers = [Worker() for _ in range(min(jobs, len(todo)))]
    try:
        for worker in workers:
            worker.give(_next(todo, worker, workers))
        while any(worker.case for worker in workers):
            busy = {worker.conn: worker for worker in workers if worker.case}
            ready = wait(list(busy), timeout=1.0)
            for conn, worker in busy.items():
                result = worker.result(conn in ready)
                if result is None:
                    continue
                yield result
                if todo:
                    worker.give(_next(todo, worker, workers))
    finally:
        for worker in workers:
            worker.stop()


def _next(todo: list[Case], worker: Worker, workers: Sequence[Worker]) -> Case:
    """Returns a case of the worker's own step, else of a step that nobody has, else the last
    one."""
    taken = {other.step for other in workers if other is not worker}
    for i, case in enumerate(todo):
        if case.step == worker.step:
            return todo.pop(i)
    for i, case in enumerate(todo):
        if case.step not in taken:
            return todo.pop(i)
    return todo.pop()


class Worker:
    """One process and the case it is at."""

    def __init__(self) -> None:
        self.case: Case | None = None
        self.step: str | None = None
        self.since = 0.0
        self._start()

    def _start(self) -> None:
        context = mp.get_context("spawn")
        self.conn, theirs = context.Pipe()
        self.process: Any = context.Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # so that its end is seen here when the process dies

    def give(self, case: Case) -> None:
        self.case, self.step, self.since = case, case.step, time.monotonic()
        self.conn.send(case)

    def result(self, ready: bool) -> Result | None:
        """Returns what came of the case; None while it runs."""
        assert self.case is not None
        time_s = time.monotonic() - self.since
        if ready:
            try:
                found: Result = self.conn.recv()
            except (EOFError, ConnectionResetError):
                self.process.join()
                code = self.process.exitcode
                found = Result(self.case, "failed", f"the process died, exit code {code}")
                self._start()
        elif time_s > CASE_LIMIT_S:
            self.stop()
            found = Result(self.case, "failed", f"not done after {CASE_LIMIT_S:.0f} s")
            self._start()
        else:
            return None
        self.case = None
        return found

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.conn.close()


def work(conn: Connection) -> None:
    """Runs cases as they come, as a worker that keeps the last step's reference."""
    os.environ.update(ENVIRONMENT)
    import jax

    from bench.verify.subject import Subject

    subject: Subject | None = None
    done = 0
    while True:
        try:
            case: Case = conn.recv()
        except EOFError:
            return
        try:
            if subject is None or subject.name != case.step:
                subject = None
                jax.clear_caches()
                subject = Subject.make(case.step)
        except Exception as error:  # noqa: BLE001  # the sweep goes on
            conn.send(Result(case, "failed", f"cannot make the step: {error!r}"))
            continue
        conn.send(subject.check(case))
        done += 1
        if done % CLEAR_AFTER == 0:
            jax.clear_caches()
