"""The routing table: all that a gateway needs to serve, frozen, ordered by (epoch, version), as signed bytes.

Bytes: `SLUICE1 <hex HMAC>\\n<JSON>`. Only replicas that may take traffic are in it.
"""

import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from pool.domain.errors import PoolError
from pool.domain.gateway_settings import LaneSettings, ModelSettings, read_lane_settings, read_model_settings
from pool.domain.signing import Secret, sign_table

EngineKind = Literal["vllm", "sim"]

_MAGIC = b"SLUICE1 "


class TableInvalid(PoolError):
    """The bytes are no routing table, were signed with another secret, or were changed."""

    code: ClassVar[str] = "routing_table_invalid"


@dataclass(frozen=True, slots=True)
class LaneRoute:
    name: str
    max_prompt_tokens: int | None
    """Prompts below this length belong to the lane; None = no bound (the longest lane)."""
    settings: LaneSettings = LaneSettings()


@dataclass(frozen=True, slots=True)
class PlanRoute:
    number: int
    weights: dict[int, int]
    """Release number → percent, sum 100."""
    lanes: dict[str, dict[int, int]]
    """Weights that replace the general ones in a lane."""
    pins: dict[str, int]
    """Label of a caller's key → release number."""
    shadow: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class ReplicaRoute:
    id: str
    generation: int
    node: str
    address: str
    """`unix:/path.sock` or `http://host:port`."""
    lane: str | None
    """None = all lanes."""
    max_model_len: int | None
    slots: int | None
    """Sequences that the engine runs at once (`max_num_seqs`)."""
    kv_tokens: int | None = None
    """Tokens that its KV cache holds, as the engine printed; None = not known."""


@dataclass(frozen=True, slots=True)
class ReleaseRoute:
    number: int
    version: str
    profile: str
    engine: EngineKind
    replicas: tuple[ReplicaRoute, ...]
    tokenizer: str | None = None
    """SHA-256 of the version's tokenizer.json, by which the internal endpoint serves it; None = not known."""
    chat_template: str | None = None
    """SHA-256 of its chat template."""


@dataclass(frozen=True, slots=True)
class RestrictionRoute:
    """What gates hold back for a while: for an alert, or because an operator wants it."""

    kind: str
    """`shed_batch`: no new `batch`. `close_lane`: only `vip`. `no_long`: no request of the longest lane or of that
    size. `admission_ratio`: limits are multiplied by `value`."""
    lane: str
    """Empty = all lanes."""
    value: float
    """0 where the kind has none."""
    until: float
    """Seconds since 1970. Gates end it by themselves."""


@dataclass(frozen=True, slots=True)
class ModelRoute:
    name: str
    lanes: tuple[LaneRoute, ...]
    plan: PlanRoute | None
    releases: tuple[ReleaseRoute, ...]
    starting: int
    """Replicas that are on their way to ready."""
    settings: ModelSettings = ModelSettings()
    restrictions: tuple[RestrictionRoute, ...] = ()
    endings: dict[int, int] = field(default_factory=dict)
    """Release number → tokens after which its running streams end; one that is missing lets them finish."""


@dataclass(frozen=True, slots=True)
class KeyRoute:
    digest: str
    name: str
    tier: str
    models: tuple[str, ...] | None
    """None = all models."""
    may_pin: bool
    label: str
    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    keepalive_s: float | None = None
    """A comment goes out after so long without a byte of a stream; None = none."""
    capture_ratio: float = 0.0
    """Share of its requests whose masked texts are kept for a while; 0.0 = none, which is how keys are made."""


@dataclass(frozen=True, slots=True)
class RoutingTable:
    installation: str
    epoch: int
    version: int
    models: tuple[ModelRoute, ...]
    keys: tuple[KeyRoute, ...]

    @property
    def order(self) -> tuple[int, int]:
        return (self.epoch, self.version)


def to_bytes(table: RoutingTable, secret: Secret) -> bytes:
    """The same table gives the same bytes."""
    payload = json.dumps(asdict(table), separators=(",", ":"), sort_keys=True).encode()
    return _MAGIC + sign_table(secret, payload).encode() + b"\n" + payload


def from_bytes(content: bytes, secret: Secret) -> RoutingTable:
    """Raises TableInvalid; the signature is checked before anything is parsed."""
    payload = _verify(content, secret)
    try:
        return _read_table(json.loads(payload))
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise TableInvalid("The routing table is signed but has another shape: versions differ.") from exc


def _verify(content: bytes, secret: Secret) -> bytes:
    head, newline, payload = content.partition(b"\n")
    if not newline or not head.startswith(_MAGIC):
        raise TableInvalid("The bytes are no routing table.", size_bytes=len(content))
    if not hmac.compare_digest(head[len(_MAGIC) :], sign_table(secret, payload).encode()):
        raise TableInvalid("The routing table's signature does not fit: all hosts need the same secret key.")
    return payload


def _read_table(fields: Mapping[str, Any]) -> RoutingTable:
    return RoutingTable(
        installation=str(fields["installation"]),
        epoch=int(fields["epoch"]),
        version=int(fields["version"]),
        models=tuple(_read_model(model) for model in fields["models"]),
        keys=tuple(_read_key(key) for key in fields["keys"]),
    )


def _read_model(fields: Mapping[str, Any]) -> ModelRoute:
    return ModelRoute(
        name=fields["name"],
        lanes=tuple(_read_lane(lane) for lane in fields["lanes"]),
        plan=None if fields["plan"] is None else _read_plan(fields["plan"]),
        releases=tuple(_read_release(release) for release in fields["releases"]),
        starting=int(fields["starting"]),
        settings=read_model_settings(fields["settings"]),
        # A table that an older version left on disk has none.
        restrictions=tuple(_read_restriction(one) for one in fields.get("restrictions", ())),
        endings=_read_weights(fields.get("endings", {})),
    )


def _read_restriction(fields: Mapping[str, Any]) -> RestrictionRoute:
    return RestrictionRoute(
        fields["kind"], fields["lane"], float(fields["value"]), until=float(fields["until"])
    )


def _read_lane(fields: Mapping[str, Any]) -> LaneRoute:
    settings = read_lane_settings(fields["settings"])
    return LaneRoute(fields["name"], fields["max_prompt_tokens"], settings)


def _read_plan(fields: Mapping[str, Any]) -> PlanRoute:
    return PlanRoute(
        number=int(fields["number"]),
        weights=_read_weights(fields["weights"]),
        lanes={lane: _read_weights(weights) for lane, weights in fields["lanes"].items()},
        pins={label: int(number) for label, number in fields["pins"].items()},
        shadow=fields["shadow"],
    )


def _read_weights(fields: Mapping[str, Any]) -> dict[int, int]:
    return {int(number): int(percent) for number, percent in fields.items()}


def _read_release(fields: Mapping[str, Any]) -> ReleaseRoute:
    return ReleaseRoute(
        number=int(fields["number"]),
        version=fields["version"],
        profile=fields["profile"],
        engine=fields["engine"],
        replicas=tuple(_read_replica(replica) for replica in fields["replicas"]),
        tokenizer=fields["tokenizer"],
        chat_template=fields["chat_template"],
    )


def _read_replica(fields: Mapping[str, Any]) -> ReplicaRoute:
    return ReplicaRoute(
        id=fields["id"],
        generation=int(fields["generation"]),
        node=fields["node"],
        address=fields["address"],
        lane=fields["lane"],
        max_model_len=fields["max_model_len"],
        slots=fields["slots"],
        kv_tokens=fields["kv_tokens"],
    )


def _read_key(fields: Mapping[str, Any]) -> KeyRoute:
    return KeyRoute(
        digest=fields["digest"],
        name=fields["name"],
        tier=fields["tier"],
        models=None if fields["models"] is None else tuple(fields["models"]),
        may_pin=bool(fields["may_pin"]),
        label=fields["label"],
        requests_per_min=fields["requests_per_min"],
        tokens_per_min=fields["tokens_per_min"],
        keepalive_s=fields["keepalive_s"],
        capture_ratio=float(fields.get("capture_ratio") or 0.0),
    )
