"""The rest of the gateway, as an exchange sees it."""

from typing import TYPE_CHECKING, Protocol

from pool.domain.breaker import Fault
from pool.domain.quarantine import Quarantine
from pool.gateway.answer_cache import AnswerCache
from pool.gateway.config import Config
from pool.gateway.limits import Limits
from pool.gateway.metrics import Metrics
from pool.gateway.reading.readers import Readers
from pool.gateway.routes import Routes

if TYPE_CHECKING:
    from pool.gateway.relay import Exchange


class Plane(Protocol):
    config: Config
    routes: Routes
    limits: Limits
    metrics: Metrics
    readers: Readers
    quarantine: Quarantine
    answers: AnswerCache
    exchanges: "set[Exchange]"
    draining: bool

    def new_request_id(self) -> str: ...

    def begin(self, exchange: "Exchange") -> None:
        """Its model and lane are known."""

    def note_sent(self, exchange: "Exchange", now_s: float) -> None:
        """It goes out to a replica."""

    def note_retry(self, exchange: "Exchange", fault: Fault) -> None: ...

    def account(self, exchange: "Exchange", *, outcome: str) -> None:
        """It is over; called once for each."""
