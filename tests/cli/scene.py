"""A store with something to do for every command, with plain or hostile names."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from longshore import Harbor, Job, Outcome, Queue, Repeat, connect
from longshore.backends.base import WorkerInfo
from longshore.backends.token_store import SupportsTokens

FORMS = ("plain", "json", "terminal")
"""The forms of output; each is a separate run on separate jobs."""
WAITING, DONE, DEAD, DELAYED = ("cancel",), ("delete",), ("retry", "dlq requeue", "dlq purge"), ("promote",)
"""Commands that change jobs, by the state that the jobs must be in."""


@dataclass(frozen=True)
class Names:
    """Names and texts that a user chooses."""

    suffix: str = ""
    """Appended to every id and name; without control characters, which names may not have."""
    text: str = "plain text"
    """Used in payloads, errors, results and logs, which may hold any text."""

    def name(self, what: str) -> str:
        return f"{what}{self.suffix}"

    def job(self, command: str, form: str) -> str:
        return self.name(f"{command.replace(' ', '-')}-{form}")


@dataclass
class Scene:
    """A prepared store."""

    url: str
    folder: Path
    names: Names = field(default_factory=Names)
    flow_id: str = ""
    tokens: dict[str, str] = field(default_factory=dict)

    async def prepare(self) -> None:
        names, text = self.names, self.names.text
        async with Queue(connect(self.url)) as queue:
            await queue.enqueue_jobs([job for form in FORMS for job in self._jobs(form)])
            claimed = await queue.dequeue_jobs(names.name("worker"), [names.name("tag")], 100)
            await queue.append_log(names.name("shown"), f"{text}\n{text}", "warn")
            await queue.set_progress(names.name("shown"), {names.name("at"): text})
            outcomes = [
                Outcome(job.id, job.lease, "bury", error=f"{text}\nTraceback {text}")
                if job.id.startswith(tuple(one.replace(" ", "-") for one in DEAD))
                else Outcome(job.id, job.lease, "complete", result=json.dumps(text).encode())
                for job in claimed
                if not job.id.startswith("running")
            ]
            assert not (await queue.settle_jobs(outcomes)).refused
            await queue.set_limits(names.name("queue"), running=100, per_key=5)
            await queue.heartbeat_worker(WorkerInfo(id=names.name("worker"), queues=(names.name("queue"),), host=text))
            for form in FORMS:
                for command in ("list", "run", "pause", "resume", "remove"):
                    await queue.add(
                        names.name("task"), {"text": text}, repeat=Repeat(every=3600), job_id=names.job(command, form)
                    )
            for form in FORMS:
                assert isinstance(queue.backend, SupportsTokens)
                token, _ = await queue.backend.issue_token(
                    names.job("caller", form), ["read"], queues=[names.name("queue")]
                )
                self.tokens[form] = token.id
        await self._prepare_flow()

    def _jobs(self, form: str) -> list[Job]:
        names, text = self.names, self.names.text
        payload = json.dumps({"text": text, names.name("key"): [1, None]}).encode()
        like = Job(type=names.name("task"), queue=names.name("queue"), payload=payload, concurrency_key=names.name("k"))
        claimed = like.replace(tags=[names.name("tag")], max_attempts=1)
        jobs = [claimed.replace(id=names.job(command, form)) for command in (*DONE, *DEAD)]
        jobs += [like.replace(id=names.job(command, form)) for command in WAITING]
        jobs += [like.replace(id=names.job(command, form), delay=3600) for command in DELAYED]
        if form == FORMS[0]:
            jobs += [claimed.replace(id=names.name("shown")), claimed.replace(id=names.name("running"))]
        return jobs

    async def _prepare_flow(self) -> None:
        async with Harbor(self.url) as harbor:

            @harbor.task(name=self.names.name("task"))
            async def work(text: str) -> str:
                return text

            flow = harbor.flow(self.names.name("flow"))
            first = flow.add(work.call(self.names.text), name=self.names.name("first"))
            flow.add(work.call(self.names.text), after=first, name=self.names.name("second"))
            self.flow_id = (await flow.enqueue()).id

    def use(self, command: str, form: str) -> list[str]:
        """The arguments of one use of a command."""
        names = self.names
        acted = names.job(command, form)
        shown, queue = names.name("shown"), names.name("queue")
        uses: dict[str, list[str]] = {
            "list": ["--queue", queue, "--limit", "50"],
            "show": [shown],
            "explain": [shown],
            "logs": [shown],
            "events": ["--limit", "200", "--queue", queue],
            "stats": ["--queue", queue],
            "queues": [],
            "workers": [],
            "limits": [queue, "--running", "50"],
            "pause": [names.name("paused")],
            "resume": [names.name("paused")],
            "enqueue": [names.name("task"), json.dumps({"text": names.text}), "--queue", queue, "--job-id", acted],
            "schedule list": [],
            "schedule add": [acted, names.name("task"), "--every", "1h", "--immediate", "--queue", queue],
            "schedule preview": [names.job("list", form)],
            "flow show": [self.flow_id],
            "token create": [names.job("somebody", form), "--scope", "read"],
            "token revoke": [self.tokens[form]] if self.tokens else [],
            "backup": [str(self.folder / f"{form}.db")],
        }
        if command in (*WAITING, *DONE, *DEAD, *DELAYED):
            return [acted]
        if command.startswith("schedule ") and command not in uses:
            return [names.job(command.removeprefix("schedule "), form)]
        return uses.get(command, [])
