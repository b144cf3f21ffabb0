# SPDX-License-Identifier: Apache-2.0
"""`Engine`: answers many requests at once. One thread owns the device and decides what it does."""

import collections
import math
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from dovetail.config import Component, ConfigError

from ._answer import Answer
from ._device import Device, Drawn, KernelUse
from ._pages import Usage
from ._request import Finish, QueueFull, Request, RequestError
from ._rows import RowArrays
from ._scheduler import Scheduler
from ._sequence import Call, Row
from ._stream import EngineClosed, Stream, Waiting, wake

_FAILURES = 3  # Calls that fail one after the other until an engine gives up.


class _Broken(Exception):
    """The device is of no use any more."""


class Stats(NamedTuple):
    """What an engine does now, and has done since it was started."""

    running: int  # Requests that have a slot,
    waiting: int  # and that have none.
    pages: dict[str, Usage]  # By group.
    snapshots: int  # Rows that are kept.
    prompt_tokens: int  # Of requests that were begun,
    cached_tokens: int  # and those of them that needed not be computed. What is computed again does not count.
    generated_tokens: int
    preemptions: int
    steps: int
    host_seconds: float  # In which the thread was busy,
    wait_seconds: float  # and in which it waited for the device.
    requests: int  # That have ended.
    drafted_tokens: int = 0  # Guesses that were verified,
    accepted_tokens: int = 0  # and those of them that held.
    kernels: tuple[KernelUse, ...] = ()  # What computes, where there is a choice.


class Engine(Component):
    """Answers requests: `Engine.Config().build(device=device)`, then `start`, and at the end `close`."""

    class Config(Component.Config):
        queue: int = 1024  # Requests that wait, at most; more are refused.
        prefix_cache: bool = True  # Whether what is known of a prompt from requests before is used again.
        chunk_budget: int = 512  # Tokens of prompts that are read in a step, at most, beside those that are answered.
        ageing: int = 1000  # Steps after which a request comes before later ones of the next priority.

    def __init__(self, cfg: Config, *, device: Device, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        for name, value in (("queue", cfg.queue), ("chunk_budget", cfg.chunk_budget), ("ageing", cfg.ageing)):
            if value < 1:
                raise ConfigError(f"{self._path or 'Engine.Config'}.{name}: is {value}, expected at least 1.")
        self._device = device
        self.shape = device.shape
        self._scheduler = Scheduler(
            device.shape, prefix_cache=cfg.prefix_cache, chunk_budget=cfg.chunk_budget, ageing=cfg.ageing
        )
        self.max_length = self._scheduler.max_length  # Tokens of a prompt and its answer that there is room for.
        self._arrays = RowArrays(device.shape)
        self._changed = threading.Condition()  # For all that follows until the next comment.
        self._inbox: collections.deque[Callable[[], None]] = collections.deque()
        self._open = 0  # Requests that have not ended,
        self._queued = 0  # and those that have not begun.
        self._state = "new"  # Then "running", "draining", "closed".
        self._reason = "it has not been started."
        # What only the thread touches.
        self._thread: threading.Thread | None = None
        self._answers: dict[Stream, Answer] = {}
        self._calls: collections.deque[list[tuple[Call, Any]]] = collections.deque()
        self._woken: list[Waiting] = []
        self._failures = 0
        self._prompt_tokens = self._cached_tokens = self._generated = self._ended = self._steps = 0
        self._host_seconds = self._wait_seconds = 0.0
        self._interval, self._last_end = 1.0, time.monotonic()  # Seconds between requests that end.

    # For any thread.

    def start(self) -> None:
        """Starts the thread."""
        with self._changed:
            if self._state != "new":
                raise EngineClosed(f"an engine can be started once: {self._reason}")
            self._state, self._reason = "running", ""
            self._thread = threading.Thread(target=self._run, name="dovetail-engine", daemon=True)
            self._thread.start()

    def __enter__(self) -> "Engine":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, request: Request) -> Stream:
        """Puts a request into the queue; raises a RequestError, QueueFull or EngineClosed."""
        self.check(request)
        stream = Stream(request, self._cancel)
        with self._changed:
            if self._state != "running":
                raise EngineClosed(f"the engine takes no requests: {self._reason}")
            if self._queued >= self.cfg.queue:
                raise QueueFull(min(60.0, max(1.0, self._interval)))
            self._queued += 1
            self._open += 1
            self._post(lambda: self._add(stream))
        return stream

    def check(self, request: Request) -> None:
        """Raises a RequestError if a request can never be answered."""
        vocab, most = self.shape.vocab_size, self.shape.max_logprobs
        if not request.tokens:
            raise RequestError("the prompt is empty, expected at least one token.", "tokens")
        if min(request.tokens) < 0 or max(request.tokens) >= vocab:
            bad = next(token for token in request.tokens if not 0 <= token < vocab)
            raise RequestError(f"the prompt has the token {bad}, expected 0 to {vocab - 1}.", "tokens")
        if request.max_tokens < 0:
            raise RequestError(f"max_tokens is {request.max_tokens}, expected at least 0.", "max_tokens")
        longest = self.max_length - (request.max_tokens > 0)
        if len(request.tokens) > longest:
            raise RequestError(
                f"the prompt has {len(request.tokens)} tokens, expected at most {longest}: there is room for"
                f" {self.max_length}, with the answer.",
                "tokens",
            )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(request, name)
            if value is not None and not 0 <= value <= most:
                raise RequestError(f"{name} is {value}, expected 0 to {most}.", name)
        if request.pooling is not None and self.shape.pooling is None:
            raise RequestError("pooling: this model is not served for embeddings.", "pooling")
        if not 0 <= request.choice < 2**31:
            raise RequestError(f"choice is {request.choice}, expected 0 to {2**31 - 1}.", "choice")
        request.draw.check()
        if (count := len(request.draw.logit_bias)) > self.shape.max_biased:
            found = f"logit_bias has {count} tokens, expected at most {self.shape.max_biased}."
            raise RequestError(found, "logit_bias")
        for token, bias in request.draw.logit_bias.items():
            if not 0 <= token < vocab or not math.isfinite(bias):
                message = f"logit_bias has {token}: {bias}, expected tokens from 0 to {vocab - 1} and finite numbers."
                raise RequestError(message, "logit_bias")

    def drain(self, timeout: float | None = None) -> bool:
        """Takes no new requests, and waits until all others have ended; returns whether they have in time."""
        with self._changed:
            if self._state == "running":
                self._state, self._reason = "draining", "it is about to end."
            return self._changed.wait_for(lambda: not self._open, timeout)

    def close(self) -> None:
        """Ends all requests with "abort", and the thread."""
        with self._changed:
            if self._state == "new":
                self._state, self._reason = "closed", "it has been closed."
            if self._state != "closed":
                self._state, self._reason = "closing", "it has been closed."
                self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def swap(self, params: Any, timeout: float | None = None) -> None:
        """Uses other parameters from now on. No request is dropped: what is written stays, and goes on with them."""
        done = threading.Event()
        errors = list[BaseException]()

        def swap() -> None:
            try:
                if self._state == "closed":
                    raise EngineClosed(f"the engine has ended before parameters were swapped: {self._reason}")
                self._settle()
                self._scheduler.preempt_all()
                self._device.swap(params)
            except _Broken:
                raise
            except Exception as e:
                errors.append(e)
            finally:
                done.set()

        with self._changed:
            if self._state not in ("running", "draining"):
                raise EngineClosed(f"the engine cannot swap parameters: {self._reason}")
            self._post(swap)
        deadline = None if timeout is None else time.monotonic() + timeout
        while not done.wait(0.1):
            if self._thread is None or not self._thread.is_alive():
                raise EngineClosed(f"the engine has ended before parameters were swapped: {self._reason}")
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"parameters have not been swapped after {timeout} s; they will be.")
        if errors:
            raise errors[0]

    def stats(self) -> Stats:
        """Returns numbers, which may be a step old."""
        scheduler = self._scheduler
        running = len(scheduler.running)
        return Stats(
            running=running,
            waiting=max(0, self._open - running),
            pages=scheduler.pages.usage(),
            snapshots=scheduler.pages.snapshots(),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated,
            preemptions=scheduler.preemptions,
            steps=self._steps,
            host_seconds=self._host_seconds,
            wait_seconds=self._wait_seconds,
            requests=self._ended,
            drafted_tokens=scheduler.drafted,
            accepted_tokens=scheduler.accepted,
            kernels=self._device.kernels,
        )

    @property
    def is_running(self) -> bool:
        """Whether requests are taken."""
        return self._state == "running"

    def _post(self, action: Callable[[], None]) -> None:
        self._inbox.append(action)
        self._changed.notify_all()

    def _cancel(self, stream: Stream) -> None:
        with self._changed:
            if self._state != "closed":
                self._post(lambda: self._end(stream, "abort"))

    # The thread.

    def _run(self) -> None:
        error = ""
        try:
            while self._turn():
                pass
        except _Broken as e:
            error = self._reason = str(e)
        except Exception as e:
            error = self._reason = f"the engine has failed: {_text(e)}"
            raise  # The thread says where.
        finally:
            self._finish(error)

    def _finish(self, error: str) -> None:
        """Ends all that is there: nobody may wait for ever."""
        with self._changed:
            self._state = "closed"
            inbox = list(self._inbox)
            self._inbox.clear()
        for action in inbox:
            action()
        for stream in list(self._answers):
            self._end(stream, "error" if error else "abort", error)
        self._wake()

    def _turn(self) -> bool:
        """Does one step, or waits; returns whether there is another one."""
        with self._changed:
            while not self._inbox and self._state != "closing" and not self._answers and not self._calls:
                self._changed.wait()
            if self._state == "closing":
                return False
            inbox = list(self._inbox)
            self._inbox.clear()
        begin, waited = time.perf_counter(), self._wait_seconds
        for action in inbox:
            action()
        self._step()
        self._wake()
        self._host_seconds += time.perf_counter() - begin - (self._wait_seconds - waited)
        return True

    def _step(self) -> None:
        scheduler = self._scheduler
        if any(sequence.pending and (sequence.grammar or sequence.drafted) for sequence in scheduler.running):
            self._settle()  # They cannot be written ahead, and would only get every other step.
        calls = scheduler.plan(settled=not self._calls)
        if calls is None:
            self._settle()
            calls = scheduler.plan(settled=True)
            assert calls is not None
        made = list[tuple[Call, Any]]()
        self._calls.append(made)
        for call in calls:
            if not self._make(call, made):
                return
        if made:
            self._steps += 1
        else:
            self._calls.pop()
        assert made or self._calls or not self._answers, "requests wait, and nothing can run"
        while len(self._calls) > bool(made):
            self._fetch()

    def _make(self, call: Call, made: list[tuple[Call, Any]]) -> bool:
        """Makes a call; returns whether it could be made."""
        try:
            rows = self._arrays.rows(call)
            for row in call.rows:
                sequence = row.sequence
                if not sequence.owner.begun:
                    self._begun(sequence.owner)
                if row.draws and not sequence.counted and sequence.request.draw.has_penalties:
                    sequence.counted = True
                    assert sequence.slot is not None
                    prompt = sequence.prompt
                    self._device.count(sequence.slot, sequence.tokens[:prompt], sequence.tokens[prompt:])
            made.append((call, self._device.run(rows)))
            for slot, snapshot in call.saves:
                self._device.save(slot, snapshot)
        except Exception as e:
            self._fail(call, e)
            return False
        return True

    def _fetch(self) -> None:
        """Takes what the oldest step that is under way has drawn."""
        for call, started in self._calls.popleft():
            begin = time.perf_counter()
            try:
                drawn = self._device.fetch(started)
            except Exception as e:
                self._fail(call, e)
                return
            finally:
                self._wait_seconds += time.perf_counter() - begin
            self._failures = 0
            self._learn(call, drawn)

    def _settle(self) -> None:
        while self._calls:
            self._fetch()

    def _learn(self, call: Call, drawn: Drawn) -> None:
        tokens: list[Any] = drawn.tokens.tolist()
        for i, row in enumerate(call.rows):
            sequence = row.sequence
            if sequence.ended:
                continue
            answer: Answer = sequence.owner
            if row.scores:
                answer.read(row, drawn)
            if row.draws:
                found = {(i, t): token for t, token in enumerate(tokens[i])} if call.verifies else {(i,): tokens[i]}
                self._drew(row, {at: token for at, token in found.items() if token >= 0}, drawn)
            elif row.start + row.count >= sequence.limit:
                self._tell(answer.stream, *answer.nothing())

    def _drew(self, row: Row, tokens: dict[tuple[int, ...], int], drawn: Drawn) -> None:
        """Takes the tokens that a row has drawn, each with its place in `drawn`."""
        sequence = row.sequence
        answer: Answer = sequence.owner
        if row.drafts:
            self._scheduler.accept(sequence, len(tokens) - 1)
        for at, token in tokens.items():
            self._scheduler.learn(sequence, token)
            self._generated += 1
            self._tell(answer.stream, *answer.draw(token, at, drawn))
            if sequence.ended:
                return

    # Requests come and go, in the thread.

    def _add(self, stream: Stream) -> None:
        try:
            answer = Answer(stream, self._scheduler.add(stream.request))
        except Exception as e:  # Of a grammar that cannot be copied.
            self._closed(stream, begun=False)
            self._push(stream, finish="error", error=_text(e))
            return
        answer.sequence.owner = answer
        self._answers[stream] = answer

    def _begun(self, answer: Answer) -> None:
        answer.begun = True
        self._prompt_tokens += answer.sequence.prompt
        self._cached_tokens += answer.sequence.cached
        answer.stream.push(cached=answer.sequence.cached)
        with self._changed:
            self._queued -= 1

    def _tell(self, stream: Stream, progress: Any, finish: Finish | None, error: str) -> None:
        if finish is None:
            self._push(stream, **progress)
        else:
            self._end(stream, finish, error, progress)

    def _end(self, stream: Stream, finish: Finish, error: str = "", progress: Any = None) -> None:
        answer = self._answers.pop(stream, None)
        if answer is None:
            return
        self._scheduler.end(answer.sequence)
        self._push(stream, finish=finish, error=error, **(progress or {}))
        self._closed(stream, answer.begun)

    def _closed(self, stream: Stream, begun: bool) -> None:
        now = time.monotonic()
        self._interval = 0.8 * self._interval + 0.2 * (now - max(self._last_end, stream.arrived))
        self._last_end = now
        self._ended += 1
        with self._changed:
            self._queued -= not begun
            self._open -= 1
            self._changed.notify_all()

    def _push(self, stream: Stream, **progress: Any) -> None:
        if (waiter := stream.push(**progress)) is not None:
            self._woken.append((stream, waiter))

    def _wake(self) -> None:
        if self._woken:
            woken, self._woken = self._woken, []
            wake(woken)

    def _fail(self, call: Call, error: Exception) -> None:
        """Ends the requests of a call that has failed; all others are computed again from their tokens."""
        self._calls.clear()
        self._failures += 1
        message = f"the device has failed: {_text(error)}"
        for row in call.rows:
            self._end(row.sequence.owner.stream, "error", message)
        self._scheduler.preempt_all()
        if self._failures >= _FAILURES:
            raise _Broken(f"{self._failures} calls have failed one after the other; {message}") from error


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
