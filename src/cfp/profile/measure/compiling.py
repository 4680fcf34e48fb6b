"""The programs in the worker: given to it, compiled there, then held for another use or dropped."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cfp.profile.measure.progress import kind_of
from cfp.profile.measure.rounds import OutOfTime, seconds_left
from cfp.profile.programs.requests import Request
from cfp.profile.runners.job import Compiled, Failed
from cfp.profile.runners.runner import Runner

SOON_S = 0.1  # a program that compiles faster leaves time for any number of others
Wave = tuple[Request, ...]


@dataclass
class WorkerPrograms:
    """`answers` is what the worker made of the programs it was given. `compiled` counts those that
    it compiled, and `compile_s` is what that took, side by side: `abreast` of them take about as
    long as one."""

    runner: Runner
    abreast: int = 1
    compiled: int = 0
    compile_s: float = 0.0

    def __post_init__(self) -> None:
        self.answers: dict[str, Compiled | Failed] = {}
        self._sent: set[str] = set()  # given to the worker
        self._held: set[str] | None = None  # stays in the worker after it was measured
        self._last_s: dict[str, float] = {}  # that the last program of a kind took to compile

    def expected_s(self, request: Request) -> float:
        """Returns what a program will take to compile, as far as the last of its kind tells."""
        return self._last_s.get(kind_of(request.name), 0.0)

    def submit(self, requests: Sequence[Request]) -> None:
        """Gives the worker the programs that it does not have."""
        for request in requests:
            if request.key not in self._sent:
                self.runner.submit(request.make())
                self._sent.add(request.key)

    def compile(self, requests: Wave, following: Wave, deadline: float) -> None:
        """Gives the worker these programs, and waits until all are compiled or have failed to. It
        has the `following` ones from the start: a wave is fewer than the compiler has threads."""
        self.submit(requests)
        self.submit(following)
        self._collect(requests, deadline)

    def compile_in_time(
        self, anchor: Wave, wave: Wave, deadline: float, usual_s: float | None
    ) -> Wave:
        """Compiles the first program, and of the others those that half of the time left is enough
        for; returns what is compiled. Where all of them in turn would take longer, by what one
        usually takes, the others wait until the first is done: then it is known how many there is
        time for, and compilers side by side take cores from one another (on a machine with an H200
        three large steps took about twice as long as one)."""
        start = time.monotonic()
        half = start + (deadline - start) / 2
        first, others = wave[:1], wave[1:]
        try:
            self.submit((*anchor, *first))
            if others and start + len(wave) * (usual_s or 0.0) > half:
                self._collect((*anchor, *first), deadline)
                took_s = max(time.monotonic() - start, SOON_S)
                others = others[: self.abreast * max(0, int((half - time.monotonic()) / took_s))]
            self.submit(others)
            self._collect((*anchor, *first), deadline)
            self._collect(others, deadline, half)
        except OutOfTime:
            self.drop([one.key for one in others])
            raise
        late = [request.key for request in others if request.key not in self.answers]
        if late:
            self.drop(late)
        return tuple(one for one in (*first, *others) if one.key not in late)

    def _collect(self, requests: Wave, deadline: float, until: float = math.inf) -> None:
        """Waits until all of them are compiled, or have failed to, or until a time."""
        keys = {request.key for request in requests}
        while not keys <= self.answers.keys():
            if time.monotonic() >= until:
                return
            for answer in self.runner.finished(min(1.0, seconds_left(deadline))):
                self.answers[answer.key] = answer
                if isinstance(answer, Compiled) and answer.seconds > 0:
                    self.compiled += 1
                    self.compile_s += answer.seconds

    def ready(self) -> dict[str, Compiled]:
        """Returns the programs that can run, by key."""
        return {key: one for key, one in self.answers.items() if isinstance(one, Compiled)}

    def learn(self, request: Request) -> Compiled | Failed:
        """Returns what became of a program, and remembers what its kind takes to compile."""
        answer = self.answers[request.key]
        if isinstance(answer, Compiled) and answer.seconds > 0:
            self._last_s[kind_of(request.name)] = answer.seconds
        return answer

    def drop(self, keys: Sequence[str]) -> None:
        """Frees those of these programs that the worker has."""
        self.runner.drop([key for key in keys if key in self._sent])
        for key in keys:
            self._sent.discard(key)
            self.answers.pop(key, None)

    def lost(self) -> None:
        """Notes that the worker is gone, with all that it had."""
        self._sent.clear()
        self.answers.clear()

    def retire(self, keys: Sequence[str]) -> None:
        """Frees programs that were measured, or holds them while that is asked for."""
        if self._held is None:
            self.drop(keys)
        else:
            self._held.update(keys)

    def hold(self) -> None:
        """Holds what is measured from now on, until `release`."""
        self._held = set()

    def release(self) -> None:
        self.let_go()
        self._held = None

    def let_go(self, but: Iterable[str] = ()) -> None:
        """Frees the programs that are held, but for some."""
        gone = sorted((self._held or set()) - {*but})
        if gone:
            self.drop(gone)
            self._held = (self._held or set()) - {*gone}
