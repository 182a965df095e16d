"""`./sluice up`: sets up, starts everything, tells how to reach it, and supervises until it is stopped."""

import argparse
import os
import signal
import sys
import threading
import traceback

from launcher.bring_up import BringUp
from launcher.commands.up_detached import NOT_ANSWERING, run_detached
from launcher.credentials import Credentials, ensure_credentials, find_credentials
from launcher.demo_answer import MODEL, wait_for_answer
from launcher.errors import LauncherError
from launcher.identity import find_start_time
from launcher.installation import Installation, read_installation
from launcher.layout import find_layout
from launcher.listening import check_port_free
from launcher.locks import FileLock
from launcher.progress import Progress
from launcher.record import SupervisorRecord, format_now, read_record
from launcher.servers import choose_identity
from launcher.stopping import stop_installation
from launcher.supervise import Supervisor
from pool.domain.errors import PoolError

LEFTOVER_WAIT_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--detach", action="store_true", help="go to the background once everything answers")
    parser.add_argument(
        "--engine", choices=("vllm", "sim"), default="vllm", help="sim needs no engine environment"
    )
    parser.add_argument(
        "--demo",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="register and serve SmolLM2-135M-Instruct",
    )
    # What --detach starts: its output is a log, in which no secret belongs.
    parser.add_argument("--unattended", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--data", metavar="DIR", help="the data folder (default: SLUICE_DATA_DIR, else var/)")


def run(options: argparse.Namespace) -> int:
    layout = find_layout(options.data)
    if options.detach:
        installation = read_installation(layout, engine=options.engine, has_demo=options.demo)
        status = run_detached(options, layout)
        credentials = find_credentials(layout.secrets)
        if status in (0, NOT_ANSWERING) and credentials:
            sys.stdout.write(describe_access(installation, credentials) + "\n")
        return status
    installation = read_installation(layout, engine=options.engine, has_demo=options.demo)
    layout.create()
    lock = FileLock(layout.lock)
    if not lock.try_acquire():
        raise _already_running(installation)
    try:
        lock.write(f"{os.getpid()}\n")
        return Up(installation, is_unattended=options.unattended).run()
    finally:
        lock.release()


def _already_running(installation: Installation) -> LauncherError:
    record = read_record(installation.layout.record)
    who = (
        f"process {record.pid} since {record.since}, console {record.web_url}"
        if record
        else "another process"
    )
    return LauncherError(
        f"The data folder {installation.layout.data} belongs to a running installation: {who}."
        " Stop it with `./sluice down`, or name another folder with --data."
    )


class Up:
    """One foreground run: a thread brings everything up while the main thread supervises."""

    def __init__(self, installation: Installation, *, is_unattended: bool) -> None:
        self._installation = installation
        self._progress = Progress()
        self._supervisor = Supervisor(installation.layout, describe=self._describe)
        self._is_unattended = is_unattended
        self._since = format_now()
        self._phase, self._message = "setting_up", ""
        self._failure: PoolError | None = None

    def run(self) -> int:
        self._end_leftovers()
        self._check_ports()
        choose_identity()
        credentials = ensure_credentials(self._installation.layout.secrets)
        self._supervisor.catch_signals()
        threading.Thread(target=self._bring_up, args=(credentials,), daemon=True, name="bring-up").start()
        self._supervisor.run()
        self._stop()
        if self._failure:
            sys.stderr.write(f"sluice: {self._failure.message}\n")
        return 1 if self._failure else 0

    def _bring_up(self, credentials: Credentials) -> None:
        try:
            BringUp(self._installation, credentials, self._supervisor, self._progress).run()
        except PoolError as error:
            self._give_up(error)
            return
        except Exception:
            traceback.print_exc()
            self._give_up(LauncherError("The start failed for a reason that is a defect: see above."))
            return
        self._finish(credentials)

    def _give_up(self, error: PoolError) -> None:
        if not self._supervisor.is_stopping:
            self._failure = error
            self._supervisor.ask_stop()

    def _finish(self, credentials: Credentials) -> None:
        """The processes run. A demo that does not answer is told, and stops nothing: its reason is on the
        page."""
        answer = None
        if self._installation.has_demo:
            try:
                answer = self._ask_demo(credentials)
            except PoolError as error:
                if self._supervisor.is_stopping:
                    return
                self._message = error.message
                self._progress.say(f"\n{error.message}\nThe console shows more.")
        self._phase = "degraded" if self._message else "ready"
        if answer:
            self._progress.say(f"{MODEL} says: {answer.strip()}")
        if not self._is_unattended:
            self._progress.say(describe_access(self._installation, credentials))
        self._supervisor.wake()

    def _ask_demo(self, credentials: Credentials) -> str:
        with self._progress.step("demo model: start") as step:
            return wait_for_answer(
                web_url=self._installation.local_web_url,
                token=credentials.read("api_token"),
                gateway_url=self._installation.gateway_url,
                key=credentials.read("gateway_key"),
                step=step,
                is_stopping=lambda: self._supervisor.is_stopping,
            )

    def _describe(self) -> SupervisorRecord:
        return SupervisorRecord(
            pid=os.getpid(),
            start_time=find_start_time(os.getpid()) or 0,
            since=self._since,
            web_url=self._installation.local_web_url,
            gateway_url=self._installation.gateway_url,
            engine=self._installation.engine,
            phase=self._phase,
            message=self._message,
            processes=self._supervisor.list_records(),
        )

    def _stop(self) -> None:
        hurry = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: hurry.set())
        self._phase = "stopping"
        self._progress.say("Stopping (once more: at once)")
        stop_installation(
            self._supervisor.list_records(),
            self._installation.layout,
            say=self._progress.say,
            on_stopped=self._supervisor.note_stopped,
            hurry=hurry,
        )
        self._supervisor.reap(patience=False)
        self._installation.layout.record.unlink(missing_ok=True)

    def _end_leftovers(self) -> None:
        """After a kill -9 of a supervisor its processes are on their way out; engines stay and are
        adopted."""
        record = read_record(self._installation.layout.record)
        if record is None:
            return
        alive = [process for process in record.processes if process.is_alive]
        if alive:
            self._progress.say(
                "Ending what an earlier run left: " + ", ".join(process.name for process in alive)
            )
            stop_installation(alive, self._installation.layout, say=self._progress.say, keep_engines=True)

    def _check_ports(self) -> None:
        bind, web, gateway = (
            self._installation.bind,
            self._installation.web_port,
            self._installation.gateway_port,
        )
        if web == gateway:
            raise LauncherError(f"SLUICE_WEB_PORT and SLUICE_GATEWAY_PORT are both {web}: they must differ.")
        check_port_free(bind, web, purpose="console", variable="SLUICE_WEB_PORT")
        check_port_free(bind, gateway, purpose="gateway", variable="SLUICE_GATEWAY_PORT")


def describe_access(installation: Installation, credentials: Credentials) -> str:
    """What a person needs next: addresses, the first sign-in, a key, and a line to try."""
    key = credentials.read("gateway_key")
    lines = [
        "",
        f"  Console   {installation.local_web_url}   sign in as admin / {credentials.read('admin_password')}",
        f"  Gateway   {installation.gateway_url}/v1   key {key}",
    ]
    if installation.has_demo:
        question = '{"role": "user", "content": "What is the capital of France?"}'
        body = f'{{"model": "{MODEL}", "messages": [{question}], "temperature": 0}}'
        lines += [
            "",
            f"  curl {installation.gateway_url}/v1/chat/completions \\",
            f"    -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\",
            f"    -d '{body}'",
        ]
    return "\n".join([*lines, ""])
