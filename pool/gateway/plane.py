"""What connections and exchanges of one process share: routes, ids, counts; and which path is what."""

import itertools
import secrets
import time
from collections.abc import Callable

import orjson

from pool.domain.breaker import Fault
from pool.domain.quarantine import Quarantine
from pool.gateway import metrics as metrics_page
from pool.gateway import response
from pool.gateway.accounting import account
from pool.gateway.answer_cache import AnswerCache
from pool.gateway.auth import Callers
from pool.gateway.captures import Captures
from pool.gateway.config import Config
from pool.gateway.facts import FactBuffer
from pool.gateway.following import follow_table
from pool.gateway.heads import Heads
from pool.gateway.limits import Limits
from pool.gateway.metrics import Labels, Metrics
from pool.gateway.neighbours import Neighbours
from pool.gateway.openai import GatewayError, InvalidApiKey, MethodNotAllowed, PathNotFound
from pool.gateway.reading.readers import Readers
from pool.gateway.regions import Regions
from pool.gateway.relay import Exchange
from pool.gateway.request import Head, Request
from pool.gateway.routes import Routes
from pool.gateway.server import ClientConnection
from pool.gateway.shadow import Shadows
from pool.gateway.shared_view import SharedView
from pool.gateway.tallies import Tallies
from pool.gateway.usage_book import UsageBook
from pool.gateway.vigil import Vigil

# All that can be reached, byte for byte; everything else of an engine stays closed (FC-19).
_METHODS = {
    b"/v1/chat/completions": b"POST",
    b"/v1/completions": b"POST",
    b"/v1/embeddings": b"POST",
    b"/v1/responses": b"POST",
    b"/v1/models": b"GET",
    b"/healthz": b"GET",
    b"/readyz": b"GET",
    b"/metrics": b"GET",
}
_NO_LABELS: Labels = ("", "", "", "")


class Plane:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.routes = Routes(config)
        self.regions = Regions(config.region_header, config.trusted_proxies)
        self.callers = Callers(self.routes, secret=config.secret)
        self.facts = FactBuffer()
        self.captures = Captures()
        self.usage = UsageBook(config.state_dir, config.gateway_id)
        self.metrics = Metrics()
        self.tallies = Tallies()
        self.clients: set[ClientConnection] = set()
        self.exchanges: set[Exchange] = set()
        self.limits = Limits(
            processes=config.workers, has_ledger=config.redis_url is not None, window_s=config.limit_window_s
        )
        self.readers = Readers(config)
        self.routes.on_table.append(lambda table: self.readers.follow(table.models))
        self.routes.on_table.append(lambda table: follow_table(self, table))
        self.quarantine = Quarantine()
        self.answers = AnswerCache(secret=config.secret)
        self.shadows = Shadows(self.metrics)
        self.vigil = Vigil(lambda: self.routes.replicas, self.quarantine)
        self.view = SharedView(config.gateway_id, processes=config.workers)
        self.neighbours = Neighbours(self.view, lambda: self.routes.replicas, self.routes.list_gates)
        self.vigil.share(self.view)
        self.view.provide("prefixes", self.routes.tell_prefixes)
        self.endings: dict[tuple[str, int], int] = {}
        """Of the table in force: by model and release, after how many more tokens running streams end."""
        self.draining = False
        self.received_bytes = self.sent_bytes = 0
        """Of bodies, since the start."""
        self._heads: Heads[Head] = Heads()
        self._heads_keys = self.routes.keys
        self._id_prefix = f"req-{secrets.token_hex(6)}"
        self._ids = itertools.count(1)
        self._local: dict[bytes, Callable[[Request], bytes]] = {
            b"/v1/models": self._list_models,
            b"/healthz": lambda request: self._page(request, 200, b'{"alive":true}'),
            b"/readyz": self._tell_readiness,
            b"/metrics": self._render_metrics,
        }

    def new_request_id(self) -> str:
        return f"{self._id_prefix}{next(self._ids):08x}"

    def check_head(self, request: Request, peer: str) -> GatewayError | None:
        """Refuses before the body has come what will be refused anyway."""
        path = request.path
        try:
            allowed = _METHODS.get(path)
            if allowed is None:
                raise PathNotFound("There is nothing at this path.")
            if request.method != allowed:
                raise MethodNotAllowed(f"This path takes {allowed.decode()} only.", allow=allowed.decode())
            if path[:4] == b"/v1/":
                request.caller = self.callers.find(request.headers.get(b"authorization"))
            elif path == b"/metrics":
                self._check_metrics_access(request, peer)
        except GatewayError as error:
            return error
        return None

    def recall(self, data: bytes, now_s: float) -> Request | None:
        if self._heads_keys is not self.routes.keys:
            # A revoked key is forgotten with the table that named it.
            self._heads_keys = self.routes.keys
            self._heads.forget_all()
        found = self._heads.find(data)
        if found is None or found[2] > self.config.max_body_bytes:
            return None
        return found[0].make_request(data[found[1] :], now_s)

    def remember(self, data: bytes, request: Request) -> None:
        headers = request.headers
        if (
            request.refusal is None
            and request.caller is not None
            and request.method == b"POST"
            and b"content-length" in headers
            and b"expect" not in headers
        ):
            self._heads.remember(data, Head(request))

    def serve(self, client: ClientConnection, request: Request) -> Exchange | None:
        """None if the request is answered already."""
        answer_locally = self._local.get(request.path)
        if answer_locally is not None:
            client.write(answer_locally(request))
            client.finish(keep_alive=request.keep_alive)
            return None
        assert request.caller is not None
        self.received_bytes += request.body_bytes
        exchange = Exchange(self, client, request, request.caller)
        exchange.start()
        return None if exchange.done else exchange

    def note_refusal(self, error: GatewayError) -> None:
        """Before anything was known of the request but its head."""
        self.metrics.series(_NO_LABELS).count(error.code)
        self.metrics.counter("sluice_refusals_total", code=error.code).value += 1.0

    def begin(self, exchange: Exchange) -> None:
        model = exchange.model
        assert model is not None
        exchange.series = self.metrics.series((model.name, "", exchange.lane, exchange.tier))
        exchange.series.in_flight += 1

    def note_sent(self, exchange: Exchange, now_s: float) -> None:
        model, replica = exchange.model, exchange.replica
        assert model is not None
        assert replica is not None
        if replica.cached is not None and (exchange.blocks or model.has_choice):
            model.indexes[replica.release].note_sent(replica.cached, exchange, now_s)
        if model.plan is not None and model.plan.shadow and exchange.attempts == 1:
            self.shadows.offer(exchange, model.plan.shadow, now_s)

    def note_retry(self, exchange: Exchange, fault: Fault) -> None:
        model = exchange.model
        self.metrics.counter(
            "sluice_retries_total", model=model.name if model is not None else "", fault=fault.value
        ).value += 1.0
        if model is not None and exchange.attempt is not None:
            self.tallies.of(model.name, exchange.attempt.replica.release).spilled_errors += 1

    def account(self, exchange: Exchange, *, outcome: str) -> None:
        account(self, exchange, outcome)

    def hear(self, now_s: float) -> None:
        """After each look at the other processes' entries, and while there is none."""
        self.neighbours.hear(now_s)
        self.vigil.hear(self.view, now_s)
        for gateway_id, told in self.view.list_sections("prefixes", now_s):
            self.routes.hear_prefixes(gateway_id, told)
        self.routes.set_process_count(self.view.process_count, now_s)
        self.limits.count_processes(self.view.process_count, now_s)

    def sweep(self, now_s: float) -> None:
        """From the clock, some times a second."""
        for exchange in list(self.exchanges):
            exchange.check_deadline(now_s)
        self.shadows.check_deadlines(now_s)
        self.vigil.sweep(now_s)

    def tick_gates(self, now_s: float) -> bool:
        """True while somebody waits."""
        waiting = 0
        for model in self.routes.models.values():
            for gate in model.gates.values():
                gate.tick(now_s)
                waiting += gate.waiting
        return waiting > 0

    def _list_models(self, request: Request) -> bytes:
        caller = request.caller
        assert caller is not None
        rows: list[dict[str, object]] = []
        for model in self.routes.models.values():
            if caller.models is None or model.name in caller.models:
                row = {"id": model.name, "object": "model", "created": 0, "owned_by": "sluice"}
                rows.append({**row, "max_model_len": model.max_model_len} if model.max_model_len else row)
        return self._page(request, 200, orjson.dumps({"object": "list", "data": rows}))

    def _tell_readiness(self, request: Request) -> bytes:
        order = self.routes.order
        ready = order is not None and not self.draining
        state = {"ready": ready, "table": order, "draining": self.draining}
        return self._page(request, 200 if ready else 503, orjson.dumps(state))

    def _render_metrics(self, request: Request) -> bytes:
        self.metrics.table_version = self.routes.order[1] if self.routes.order else 0
        self.metrics.facts_dropped = self.facts.dropped
        folder, worker = self.config.state_dir, self.config.worker
        merged = metrics_page.merge_host(self.metrics, folder, worker=worker, now_s=time.time())
        return self._page(request, 200, merged.render(), kind=b"text/plain; version=0.0.4")

    def _page(
        self, request: Request, status: int, body: bytes, *, kind: bytes = b"application/json"
    ) -> bytes:
        close = not request.keep_alive or self.draining
        extra = b"x-request-id: %b\r\n" % self.new_request_id().encode()
        return response.whole_response(status, body, kind=kind, extra=extra, close=close)

    def _check_metrics_access(self, request: Request, peer: str) -> None:
        token = self.config.metrics_token
        shown = request.headers.get(b"authorization", b"").partition(b" ")[2].strip()
        if token is not None and secrets.compare_digest(shown, token.encode()):
            return
        # A proxy on this host would make the whole world look local.
        if peer in ("127.0.0.1", "::1") and b"x-forwarded-for" not in request.headers:
            return
        raise InvalidApiKey("Metrics are for this host, or for who shows the API token.")
