"""What connections and exchanges of one process share: routes, ids, counts; and which path is what."""

import itertools
import secrets
import time
from collections.abc import Callable
from typing import Any

import orjson

from pool.gateway import metrics as metrics_page
from pool.gateway import response
from pool.gateway.auth import Callers
from pool.gateway.choice import Target
from pool.gateway.config import Config
from pool.gateway.facts import FactBuffer
from pool.gateway.metrics import Labels, Metrics
from pool.gateway.openai import GatewayError, InvalidApiKey, MethodNotAllowed, PathNotFound
from pool.gateway.relay import Exchange, read_usage
from pool.gateway.request import Request
from pool.gateway.routes import Routes
from pool.gateway.server import ClientConnection

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
        self.callers = Callers(self.routes, secret=config.secret)
        self.facts = FactBuffer()
        self.metrics = Metrics()
        self.clients: set[ClientConnection] = set()
        self.exchanges: set[Exchange] = set()
        self.draining = False
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

    def serve(self, client: ClientConnection, request: Request) -> Exchange | None:
        """None if the request is answered already."""
        answer_locally = self._local.get(request.path)
        if answer_locally is not None:
            client.write(answer_locally(request))
            client.finish(keep_alive=request.keep_alive)
            return None
        assert request.caller is not None
        exchange = Exchange(self, client, request, request.caller)
        exchange.start()
        return None if exchange.done else exchange

    def note_refusal(self, error: GatewayError) -> None:
        self.metrics.series(_NO_LABELS).count(error.code)

    def begin(self, exchange: Exchange) -> None:
        exchange.series = self.metrics.series(_labels(exchange))
        exchange.series.in_flight += 1

    def account(self, exchange: Exchange, *, outcome: str) -> None:
        series = exchange.series or self.metrics.series(_labels(exchange))
        series.count(outcome)
        e2e_s = exchange.ended_at_s - exchange.started_at_s
        first_byte_at_s = exchange.first_byte_at_s
        ttft_s = first_byte_at_s - exchange.started_at_s if first_byte_at_s else None
        if exchange.target is not None:
            series.in_flight -= 1
        if ttft_s is not None:
            series.ttft.observe(ttft_s)
            series.e2e.observe(e2e_s)
        if exchange.target is not None:
            self.facts.add(_record(exchange, exchange.target, outcome, (ttft_s, e2e_s)))

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


def _labels(exchange: Exchange) -> Labels:
    target = exchange.target
    if target is None:
        return ("", "", "", exchange.caller.tier)
    return (target.model.name, str(target.release or ""), target.lane, exchange.caller.tier)


def _record(
    exchange: Exchange, target: Target, outcome: str, times_s: tuple[float | None, float]
) -> dict[str, Any]:
    replica, answer, caller = exchange.replica, exchange.answer, exchange.caller
    prompt_tokens, output_tokens = read_usage(answer.tail) if answer is not None else (None, None)
    return {
        "request_id": exchange.request_id,
        "tag": exchange.client_tag[:128].decode("latin-1"),
        "at": exchange.started_at,
        "model": target.model.name,
        "lane": target.lane,
        "wished_release": target.release,
        "release": replica.release if replica is not None else None,
        "replica": replica.id if replica is not None else None,
        "node": replica.node if replica is not None else None,
        "key": caller.digest[:12],
        "tier": caller.tier,
        "label": caller.label,
        "attempts": exchange.attempts,
        "spilled": exchange.spilled,
        "status": exchange.status,
        "outcome": outcome,
        "ttft_s": times_s[0],
        "e2e_s": times_s[1],
        "chunks": answer.chunks if answer is not None else 0,
        "bytes": answer.bytes_out if answer is not None else 0,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
    }
