"""The deliverer: does the jobs of all sinks beside the service. One thread has an event loop for those that send, and
each write to files has a thread of its own. Nothing that happens to a sink reaches another one, or the service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from contextlib import suppress
from threading import Event as Flag
from threading import Lock, Thread
from time import monotonic

from mmqjp.answers.output import Output
from mmqjp.present.match import Match
from mmqjp.sinks.jobs import Event, Read
from mmqjp.sinks.message import Message, Receiver, Verdict, down
from mmqjp.sinks.sink import MatchSink, Sink
from mmqjp.text import printable_line

ATTEMPT_SECONDS = 120.0
"""No attempt takes longer, whatever the receiver does."""

JOB_SECONDS = 5.0
"""A job that has sent messages for so long ends after the one at hand."""


class _Closed(Exception):
    """The service no longer answers: the job ends."""


class _Question:
    """What a sink of files asks for: the outputs after a number. `answer` is None if there is none any more."""

    def __init__(self, job: int, after: int) -> None:
        self.job, self.after = job, after
        self.answer: list[Output] | None = None
        self.done = Flag()


class Deliverer:
    """Does jobs (see `mmqjp.sinks.jobs.Jobs`). Its threads begin with the first job."""

    def __init__(self, attempt_seconds: float = ATTEMPT_SECONDS) -> None:
        self._attempt_seconds = attempt_seconds
        self._lock, self._changed = Lock(), Flag()
        self._events: list[Event] = []
        self._questions: list[_Question] = []
        self._writing: dict[int, Flag] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}  # for the thread of the loop alone
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    # ------------------------------------------------------------ for the thread of the service

    def send(self, job: int, receiver: Receiver, messages: Sequence[Message]) -> None:
        """Sends messages in their order, until one is not acknowledged."""
        self._started_loop().call_soon_threadsafe(self._begin, job, receiver, messages)

    def write(self, job: int, sink: Sink, matches: Sequence[Match]) -> None:
        """Writes outputs to a sink of files."""
        self._writing[job] = done = Flag()
        Thread(target=self._write, args=(job, sink, matches, done), name=f"sink job {job}", daemon=True).start()

    def cancel(self, job: int) -> None:
        """Ends a job that sends. One that writes goes on."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end, job)

    def events(self, read: Read) -> list[Event]:
        """Returns what happened since the last call, and answers what sinks of files ask for."""
        with self._lock:
            found, self._events = self._events, []
            asked, self._questions = self._questions, []
        for question in asked:
            try:
                question.answer = read(question.job, question.after)
            finally:
                question.done.set()
        for event in found:
            if event.kind == "ended":
                self._writing.pop(event.job, None)
        return found

    def close_receiver(self, receiver: Receiver | Sink) -> None:
        """Closes a receiver or sink whose jobs have ended."""
        if isinstance(receiver, Sink):
            Thread(target=_close_quietly, args=(receiver,), daemon=True).start()
        else:
            asyncio.run_coroutine_threadsafe(_close_receiver(receiver), self._started_loop())

    def wait(self, seconds: float) -> None:
        """Waits until something happens, or so long."""
        self._changed.wait(seconds)
        self._changed.clear()

    def close(self, seconds: float, receivers: Sequence[Receiver | Sink] = ()) -> None:
        """Ends all jobs, closes receivers, and ends the threads, if all that takes no longer."""
        until = monotonic() + seconds
        with self._lock:
            self._is_closed = True
            for question in self._questions:
                question.done.set()
            self._questions = []
        for done in list(self._writing.values()):
            done.wait(max(until - monotonic(), 0))
        for receiver in receivers:
            if isinstance(receiver, Sink):
                _close_quietly(receiver)
        if self._loop is not None:
            pushed = [receiver for receiver in receivers if not isinstance(receiver, Sink)]
            loop, self._loop = self._loop, None
            ending = asyncio.run_coroutine_threadsafe(_end_loop(pushed), loop)
            ending.add_done_callback(lambda ended: loop.call_soon_threadsafe(loop.stop))
            wait([ending], max(until - monotonic(), 0))

    # ------------------------------------------------------------ in other threads

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = loop = asyncio.new_event_loop()
            Thread(target=_run, args=(loop,), name="sinks", daemon=True).start()
        return self._loop

    def _begin(self, job: int, receiver: Receiver, messages: Sequence[Message]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            del self._tasks[job]
            self._tell(Event(job, "ended"))

        self._tasks[job] = task = asyncio.get_running_loop().create_task(self._send(job, receiver, messages))
        task.add_done_callback(ended)  # also if it is cancelled before it runs

    def _end(self, job: int) -> None:
        if (task := self._tasks.get(job)) is not None:
            task.cancel()

    def _tell(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
        self._changed.set()

    async def _send(self, job: int, receiver: Receiver, messages: Sequence[Message]) -> None:
        began = monotonic()
        for message in messages:
            verdict = await self._attempt(receiver, message)
            if verdict.kind != "acknowledged":
                self._tell(Event(job, "failed", verdict=verdict))
                return
            self._tell(Event(job, "acknowledged", message.last, verdict))
            if monotonic() - began > JOB_SECONDS:
                return

    async def _attempt(self, receiver: Receiver, message: Message) -> Verdict:
        try:
            async with asyncio.timeout(self._attempt_seconds):
                return await receiver.send(message)
        except TimeoutError:
            return down(f"no answer in {self._attempt_seconds:g} s")
        except Exception as error:
            return down(_reason(error))

    def _write(self, job: int, sink: Sink, matches: Sequence[Match], done: Flag) -> None:
        try:
            if sink.prepare(lambda: self._pending(job, sink.position().acked)):
                self._tell(Event(job, "prepared", position=sink.position()))
                return
            if isinstance(sink, MatchSink):
                sink.write_matches(matches)
            else:
                sink.write(match.output for match in matches)
            last = matches[-1].output.seq if matches else -1
            self._tell(Event(job, "written", last, position=sink.position()))
        except _Closed:
            pass
        except Exception as error:
            self._tell(Event(job, "failed", verdict=down(_reason(error))))
        finally:
            done.set()
            self._tell(Event(job, "ended"))

    def _pending(self, job: int, after: int) -> Iterator[Output]:
        """Yields the outputs after a number, which the thread of the service reads."""
        while found := self._asked(_Question(job, after)):
            yield from found
            after = found[-1].seq

    def _asked(self, question: _Question) -> list[Output]:
        with self._lock:
            if self._is_closed:
                raise _Closed
            self._questions.append(question)
        self._changed.set()
        question.done.wait()
        if question.answer is None:
            raise _Closed
        return question.answer


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _end_loop(receivers: Sequence[Receiver]) -> None:
    """Ends what is left in the loop, and closes receivers."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.gather(*map(_close_receiver, receivers))


async def _close_receiver(receiver: Receiver) -> None:
    with suppress(Exception):
        await receiver.close()


def _close_quietly(sink: Sink) -> None:
    with suppress(Exception):
        sink.close()


def _reason(error: Exception) -> str:
    return printable_line(str(error)) or type(error).__name__
