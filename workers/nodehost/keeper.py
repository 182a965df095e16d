"""The engines of a host: spawned once per (replica, generation), adopted by record, reaped, stopped."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workers.nodehost import records
from workers.nodehost.forkservers import ForkServers, Job, Plan
from workers.nodehost.launch import Launch, LaunchFailed, launch
from workers.nodehost.logs import rotate_log
from workers.nodehost.proc import find_process, is_same_process, kill_session, map_sessions, read_boot_id
from workers.nodehost.records import Record

# How long a new node host waits for an engine that holds its lock and has not yet written its pid.
ADOPTION_LIMIT_S = 2.0

Key = tuple[str, int]


class Refused(Exception):
    """A request that cannot be done; `code` is stable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Order:
    """One spawn request. `env` is complete, secrets included, and is kept nowhere."""

    key: Key
    address: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    plan: Plan | None
    title: str


class Keeper:
    """State of the loop; every method returns at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.forkservers = ForkServers(root / "forkserver.log")
        self._records: dict[Key, Record] = {}
        self._pidfds: dict[int, Key] = {}
        self._plans: dict[Key, Plan] = {}
        self._kill_at: dict[Key, float] = {}

    def adopt(self) -> None:
        """Takes over what an earlier node host left: running engines are watched, ended ones are closed."""
        for record in records.load_records(self.root):
            found = record
            if record.ended_at is None:
                found = self._identify(record)
                if found.pid is None or not _runs(found):
                    found = replace(found, ended_at=time.time())
                    if found.pid is not None and record.boot_id == read_boot_id():
                        kill_session(found.pid)
                else:
                    self._watch(found)
                records.write_record(self.root, found)
            self._records[found.key] = found

    def spawn(self, order: Order, *, now: float) -> Record:
        known = self._records.get(order.key)
        if known is not None and not _never_started(known):
            return known
        record = Record(
            replica_id=order.key[0],
            generation=order.key[1],
            address=order.address,
            argv=order.argv,
            boot_id=read_boot_id(),
            created_at=time.time(),
        )
        try:
            records.write_record(self.root, record)
            log, lock = records.open_log(self.root, order.key), records.open_lock(self.root, order.key)
        except BlockingIOError:
            raise Refused("still_running", "A process of this engine still lives.") from None
        except records.BadName as exc:
            raise Refused("bad_name", str(exc)) from None
        except OSError as exc:
            code = "disk_full" if exc.errno in (errno.ENOSPC, errno.EDQUOT) else "no_record"
            raise Refused(code, f"The engine's folder cannot be written: {exc.strerror}.") from None
        self._records[order.key] = record
        self._start(order, log, lock, now=now)
        return self._records[order.key]

    def find(self, key: Key) -> Record | None:
        return self._records.get(key)

    def list_records(self) -> list[Record]:
        return list(self._records.values())

    def stop(self, key: Key, *, grace_s: float, now: float) -> bool:
        record = self._records.get(key)
        if record is None or record.ended_at is not None:
            return False
        if record.pid is None:
            # Not forked yet: it is killed as soon as it is.
            self._kill_at[key] = now
            return True
        self._kill_at[key] = min(now + grace_s, self._kill_at.get(key, now + grace_s))
        if grace_s > 0 and _runs(record):
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.pid, signal.SIGTERM)
        self._kill_overdue(now)
        return True

    def forget(self, key: Key) -> bool:
        record = self._records.get(key)
        if record is None or record.ended_at is None:
            return False
        del self._records[key]
        records.drop_record(self.root, key)
        return True

    def running(self) -> list[Record]:
        return [record for record in self._records.values() if record.ended_at is None]

    def pidfds(self) -> list[int]:
        return list(self._pidfds)

    def on_pidfd(self, descriptor: int) -> None:
        """An adopted engine ended. Its exit status went to whoever was its parent."""
        key = self._pidfds.pop(descriptor)
        os.close(descriptor)
        record = self._records.get(key)
        if record is not None and record.pid is not None and record.ended_at is None:
            kill_session(record.pid)
            self._end(record, exit_code=None, signum=None)

    def reap(self, *, now: float) -> None:
        """Every child that ended. The session of an engine is swept before its leader is reaped."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            pid = found.si_pid
            record = self._record_of(pid)
            if record is not None:
                kill_session(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            if record is not None:
                by_signal = found.si_code != os.CLD_EXITED
                self._end(
                    record,
                    exit_code=None if by_signal else found.si_status,
                    signum=found.si_status if by_signal else None,
                )
            else:
                self.forkservers.on_exit(pid, now=now)

    def on_time(self, *, now: float) -> None:
        self._kill_overdue(now)
        used = {plan for key, plan in self._plans.items() if self._is_running(key)}
        self.forkservers.on_time(now=now, used=used)

    def rotate_logs(self) -> None:
        rotate_log(self.root / "forkserver.log")
        for record in self.running():
            rotate_log(records.engine_folder(self.root, record.key) / "engine.log")

    def next_kill_at(self) -> float | None:
        return min(self._kill_at.values(), default=None)

    def _start(self, order: Order, log: int, lock: int, *, now: float) -> None:
        if order.plan is None:
            self._start_directly(order, log, lock)
            return

        def done(pid: int) -> None:
            _close(log, lock)
            self._begin(order.key, pid, forked=True)

        def failed(reason: str) -> None:
            self._after_failed_fork(order, log, lock, reason=reason)

        self._plans[order.key] = order.plan
        folder = records.engine_folder(self.root, order.key)
        entry = order.argv.index(order.plan.module) if order.plan.module in order.argv else 0
        message = {
            "argv": list(order.argv[entry:]),
            "env": dict(order.env),
            "cwd": order.cwd,
            "title": order.title,
            "module": order.plan.module,
            "pid_file": str(folder / "pid"),
        }
        self.forkservers.submit(order.plan, Job(message, log, lock, done, failed), now=now)

    def _after_failed_fork(self, order: Order, log: int, lock: int, *, reason: str) -> None:
        """Starts the engine directly, unless the fork had happened before the server failed."""
        os.write(log, f"[nodehost] started directly: {reason}\n".encode())
        os.close(lock)
        if records.is_locked(self.root, order.key):
            found = self._identify(self._records[order.key])
            if found.pid is not None:
                os.close(log)
                self._begin(order.key, found.pid, forked=True)
                return
        if order.key in self._kill_at:
            os.close(log)
            self._end(self._records[order.key], exit_code=None, signum=signal.SIGKILL)
            return
        try:
            self._start_directly(order, log, records.open_lock(self.root, order.key))
        except (Refused, OSError) as exc:
            os.write(2, f"nodehost: {order.key}: {exc}\n".encode())

    def _start_directly(self, order: Order, log: int, lock: int) -> None:
        pid_file = str(records.engine_folder(self.root, order.key) / "pid")
        try:
            pid = launch(Launch(order.argv, order.env, order.cwd, pid_file, log, lock))
        except LaunchFailed as exc:
            os.write(log, f"[nodehost] MissingRuntime: {exc}\n".encode())
            self._end(self._records[order.key], exit_code=127, signum=None)
            raise Refused("missing_runtime", f"The runtime cannot be executed: {exc}.") from None
        finally:
            _close(log, lock)
        self._begin(order.key, pid, forked=False)

    def _begin(self, key: Key, pid: int, *, forked: bool) -> None:
        found = find_process(pid)
        ticks = found.started_ticks if found else 0
        record = replace(self._records[key], pid=pid, started_ticks=ticks, forked=forked)
        self._records[key] = record
        records.write_record(self.root, record)
        if key in self._kill_at:
            self._kill_overdue(self._kill_at[key])

    def _identify(self, record: Record) -> Record:
        """Finds the pid of an engine that was being forked while its node host died."""
        deadline = time.monotonic() + ADOPTION_LIMIT_S
        while True:
            found = records.identify(self.root, record)
            if found.pid is not None or time.monotonic() > deadline:
                return found
            if not records.is_locked(self.root, record.key):
                return found
            time.sleep(0.02)

    def _watch(self, record: Record) -> None:
        if record.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                self._pidfds[os.pidfd_open(record.pid)] = record.key

    def _kill_overdue(self, now: float) -> None:
        for key, at in list(self._kill_at.items()):
            record = self._records.get(key)
            if record is None or record.ended_at is not None:
                del self._kill_at[key]
            elif at <= now and record.pid is not None:
                kill_session(record.pid)
                if _runs(record):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(record.pid, signal.SIGKILL)

    def _end(self, record: Record, *, exit_code: int | None, signum: int | None) -> None:
        ended = replace(record, ended_at=time.time(), exit_code=exit_code, signal=signum)
        self._records[record.key] = ended
        self._plans.pop(record.key, None)
        self._kill_at.pop(record.key, None)
        records.drop_socket(record)
        with contextlib.suppress(OSError):
            records.write_record(self.root, ended)

    def _record_of(self, pid: int) -> Record | None:
        return next((one for one in self.running() if one.pid == pid), None)

    def _is_running(self, key: Key) -> bool:
        record = self._records.get(key)
        return record is not None and record.ended_at is None


def session_members(record: Record, sessions: Mapping[int, set[int]]) -> list[int]:
    """Pids of the engine's session, leader first, that live now."""
    if record.pid is None or record.ended_at is not None:
        return []
    return [record.pid, *sorted(sessions.get(record.pid, set()) - {record.pid})]


def _runs(record: Record) -> bool:
    if record.pid is None or record.started_ticks is None or record.boot_id != read_boot_id():
        return False
    return is_same_process(record.pid, started_ticks=record.started_ticks)


def _never_started(record: Record) -> bool:
    return (
        record.ended_at is not None and record.pid is None and record.exit_code is None and not record.signal
    )


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def as_answers(found: Iterable[Record], root: Path) -> list[dict[str, Any]]:
    wanted = list(found)
    sessions = map_sessions() if any(record.ended_at is None for record in wanted) else {}
    return [_as_answer(record, root, sessions) for record in wanted]


def _as_answer(record: Record, root: Path, sessions: Mapping[int, set[int]]) -> dict[str, Any]:
    return {
        "replica_id": record.replica_id,
        "generation": record.generation,
        "pid": record.pid,
        "started_ticks": record.started_ticks,
        "running": record.ended_at is None,
        "exit_code": record.exit_code,
        "signal": record.signal,
        "forked": record.forked,
        "created_at": record.created_at,
        "ended_at": record.ended_at,
        "log_path": str(records.engine_folder(root, record.key) / "engine.log"),
        "address": record.address,
        "members": session_members(record, sessions),
    }
