"""One gateway process: its socket, its clock, its signals, its orderly end."""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket

from pool.gateway.config import Config
from pool.gateway.delivery import Delivery
from pool.gateway.listener import GatewayRuns, Seat, open_socket, stop_handshakes
from pool.gateway.plane import Plane
from pool.gateway.server import ClientConnection
from pool.gateway.sharing import Sharing
from pool.gateway.state import describe_plane, set_gauges
from pool.gateway.upstream import IDLE_MAX_S

logger = logging.getLogger(__name__)

_BACKLOG = 4096
_CANCEL_TRIES = 3
_GC_THRESHOLD = 20_000
_CANCEL_WAIT_S = 0.5
_QUICK_TICK_S = 0.02
# Beyond its drain a process that leaves needs a moment to end; its seat is looked at so often.
_LEAVING_S = 5.0
_LEAVING_LOOK_S = 0.05
_LOOKS_PER_S = 4
# What a handshake that has begun may still take: some round trips over the sea.
_HANDSHAKE_S = 0.4
# An idle client may be about to send; it gets this long before its connection is closed in a drain.
_IDLE_GRACE_S = 0.5


def raise_file_limit() -> None:
    """Each request takes two descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Gateway:
    def __init__(self, config: Config) -> None:
        self.plane = Plane(config)
        self.port = 0
        self._config = config
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None
        self._listener: socket.socket | None = None
        self._seat: Seat | None = None
        self._stopping = asyncio.Event()
        self._delivery: Delivery | None = None

    async def start(self) -> None:
        """Serves from the table on disk, if there is a good one, before anything else answers."""
        loop = asyncio.get_running_loop()
        config = self._config
        config.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._listener = await self._listen()
        self.plane.routes.load_from_disk(now_s=loop.time())
        self.port = self._listener.getsockname()[1]
        self._server = await loop.create_server(self._accept, sock=self._listener, backlog=_BACKLOG)
        plane = self.plane
        sharing = Sharing(
            config.redis_url, plane.view, plane.limits,
            prefix=lambda: f"sluice:{plane.routes.installation}" if plane.routes.installation else None,
            on_view=plane.hear, on_gauges=plane.neighbours.take_gauges,
        )  # fmt: skip
        plane.usage.open()
        delivery = Delivery(plane, sharing=sharing, describe=lambda now_s: describe_plane(plane, now_s))
        self._delivery = delivery
        clocks = (self._sweep(), self._tick(), self._look())
        self._tasks = [*(loop.create_task(clock) for clock in clocks), *delivery.start()]

    async def run(self) -> None:
        """Until SIGTERM or SIGINT and the drain after it; a second signal ends the process at once."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        await self.start()
        # What lives as long as the process is not looked at again in each collection; and requests leave no rings
        # of references behind, so that a collection finds next to nothing.
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD, 20, 50)
        logger.info("gateway serves", extra={"port": self.port, "gateway": self._config.gateway_id})
        await self._stopping.wait()
        await self.drain()

    async def drain(self) -> None:
        """Takes no new connection, answers what has come, and cuts what is not done in time."""
        self.plane.draining = True
        loop = asyncio.get_running_loop()
        await self._empty_backlog()
        started_s = loop.time()
        while self.plane.clients and loop.time() < started_s + self._config.drain_s:
            if loop.time() > started_s + _IDLE_GRACE_S:
                self._close_idle_clients()
            await asyncio.sleep(0.02)
        for exchange in list(self.plane.exchanges):
            exchange.cut_off()
        self.plane.shadows.end_all()
        await asyncio.sleep(0)
        await self.stop()

    async def stop(self) -> None:
        """At once, without a drain."""
        if self._delivery is not None:
            await self._delivery.say_farewell()
        await self._end_tasks()
        if self._server is not None:
            self._server.close()
        for client in list(self.plane.clients):
            client.cut_off()
        if self._seat is not None:
            self._seat.leave()
        for replica in self.plane.routes.replicas:
            replica.pool.close()
        self.plane.readers.close()
        self.plane.usage.close()
        with contextlib.suppress(OSError):
            (self._config.state_dir / f"metrics-{self._config.worker}.json").unlink(missing_ok=True)
        await asyncio.sleep(0)

    async def _end_tasks(self) -> None:
        """Asks again when a library took the cancel for a time-out of its own, and does not wait for ever."""
        running = set(self._tasks)
        for _ in range(_CANCEL_TRIES):
            for task in running:
                task.cancel()
            if running:
                _, running = await asyncio.wait(running, timeout=_CANCEL_WAIT_S)

    async def _listen(self) -> socket.socket:
        """On any free port nobody else can be. Raises PortTaken or GatewayRuns."""
        config = self._config
        if not config.port:
            return open_socket(config.host, config.port)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + config.drain_s + _LEAVING_S
        while True:
            try:
                self._seat = Seat(config.state_dir, config.port, config.worker)
                return self._seat.open_socket(config.host)
            except GatewayRuns as error:
                if not error.details["is_leaving"] or self._stopping.is_set() or loop.time() > until_s:
                    raise
                await asyncio.sleep(_LEAVING_LOOK_S)

    def _accept(self) -> ClientConnection:
        return ClientConnection(self.plane)

    async def _empty_backlog(self) -> None:
        """Closing a socket resets the connections that wait in its backlog; so they are taken first."""
        if self._listener is None or self._server is None:
            return
        loop = asyncio.get_running_loop()
        if self._seat is not None:
            self._seat.mark_leaving()
        if stop_handshakes(self._listener):
            await asyncio.sleep(_HANDSHAKE_S)
        waiting = []
        with contextlib.suppress(BlockingIOError, InterruptedError):
            while True:
                waiting.append(self._listener.accept()[0])
        self._server.close()
        for connection in waiting:
            connection.setblocking(False)
            await loop.connect_accepted_socket(self._accept, connection)

    def _close_idle_clients(self) -> None:
        for client in list(self.plane.clients):
            if client.is_idle:
                client.transport.close()

    async def _sweep(self) -> None:
        """One clock for all time-outs."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._config.sweep_s)
            now_s = loop.time()
            for client in list(self.plane.clients):
                client.check_deadline(now_s)
            self.plane.sweep(now_s)
            for replica in self.plane.routes.replicas:
                replica.pool.close_idle(before_s=now_s - IDLE_MAX_S)

    async def _tick(self) -> None:
        """The queues' clock: quick only while somebody waits."""
        loop = asyncio.get_running_loop()
        waits = False
        while True:
            await asyncio.sleep(_QUICK_TICK_S if waits else self._config.sweep_s)
            waits = self.plane.tick_gates(loop.time())

    async def _look(self) -> None:
        """Gauges, and how late the loop is: it should wake when it asked to."""
        loop = asyncio.get_running_loop()
        lag = self.plane.metrics.gauge("sluice_loop_lag_seconds")
        while True:
            worst_s = 0.0
            for _ in range(_LOOKS_PER_S):
                due_s = loop.time() + 1 / _LOOKS_PER_S
                await asyncio.sleep(1 / _LOOKS_PER_S)
                worst_s = max(worst_s, loop.time() - due_s)
            lag.value = round(worst_s, 4)
            set_gauges(self.plane, loop.time())

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            os._exit(1)
        self._stopping.set()
