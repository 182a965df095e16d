"""Requests that kill engines: what was in flight at two engine deaths is refused (422) for a while (FC-14).

Known by a hash of the request, never by its text. While nothing died lately, `active` is False and costs a request
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

DEATHS_TO_ARREST = 2
SUSPECT_S = 600.0
"""After so long without another death a suspicion is dropped."""
ALONE_S = 3_600.0
"""For the only request that was at both deaths."""
IN_COMPANY_S = 60.0
"""For each of several: all but one are innocent. Who is there again at the next death stays for longer."""
CAPACITY = 1_024
"""More suspects than all slots of the engines that die within minutes; the oldest goes first."""
SHARED = 256
"""Newest hashes that other processes are told."""
WHOLE_BYTES = 256 * 1024
_SAMPLES, _SAMPLE_BYTES = 32, 4_096


def hash_request(path: bytes, body: bytes | bytearray | memoryview) -> str:
    """16 hex digits. Of a body above 512 KiB the length, both ends and samples between them: hashing 27 MB would
    hold the loop for longer than all else that a request costs."""
    digest = blake2b(path, digest_size=8)
    length = len(body)
    digest.update(b"\n%d\n" % length)
    if length <= 2 * WHOLE_BYTES:
        digest.update(body)
        return digest.hexdigest()
    view = memoryview(body)
    digest.update(view[:WHOLE_BYTES])
    stride = (length - 2 * WHOLE_BYTES) // _SAMPLES
    for start in range(WHOLE_BYTES, WHOLE_BYTES + stride * _SAMPLES, max(1, stride)):
        digest.update(view[start : start + _SAMPLE_BYTES])
    digest.update(view[-WHOLE_BYTES:])
    return digest.hexdigest()


@dataclass(slots=True)
class _Suspect:
    deaths: set[str] = field(default_factory=set)
    seen_at_s: float = 0.0
    refused_until_s: float = 0.0
    heard: bool = False


class Quarantine:
    """One per process, over all models: the hash holds the model's name."""

    __slots__ = ("_arrests", "_suspects", "refused")

    def __init__(self) -> None:
        self._suspects: dict[str, _Suspect] = {}
        self._arrests: dict[str, list[str]] = {}
        """Death → who was arrested for it."""
        self.refused = 0
        """Since the start."""

    @property
    def active(self) -> bool:
        """Whether hashing a request is worth anything."""
        return bool(self._suspects)

    def note_death(self, request: str, engine: str, now_s: float) -> bool:
        """A request was in flight when its engine died or broke the connection. `engine`: replica and generation,
        so that one death counts once. True if the request is refused from now on."""
        suspect = self._suspects.pop(request, None) or _Suspect()
        self._suspects[request] = suspect  # The newest stands last.
        suspect.deaths.add(engine)
        suspect.seen_at_s = now_s
        if len(suspect.deaths) >= DEATHS_TO_ARREST:
            self._arrest(request, engine, now_s)
        if len(self._suspects) > CAPACITY:
            self._forget(next(iter(self._suspects)))
        return suspect.refused_until_s > now_s

    def note_completed(self, request: str, now_s: float) -> None:
        """It was answered to the end after all: the deaths were not its doing. Call only while `active`."""
        suspect = self._suspects.get(request)
        if suspect is not None and suspect.refused_until_s <= now_s:
            self._forget(request)

    def refuses(self, request: str, now_s: float) -> float:
        """Seconds that it is still refused for; 0 = it may run."""
        suspect = self._suspects.get(request)
        if suspect is None or suspect.refused_until_s <= now_s:
            return 0.0
        self.refused += 1
        return suspect.refused_until_s - now_s

    def sweep(self, now_s: float) -> None:
        """From the clock, each second or so."""
        old = [
            request
            for request, suspect in self._suspects.items()
            if suspect.refused_until_s <= now_s and now_s - suspect.seen_at_s >= SUSPECT_S
        ]
        for request in old:
            self._forget(request)

    def share(self, now_s: float) -> dict[str, float]:
        """Hash → seconds left, for the other processes. Only first-hand, or an arrest would never end."""
        held = {
            request: round(suspect.refused_until_s - now_s, 3)
            for request, suspect in self._suspects.items()
            if suspect.refused_until_s > now_s and not suspect.heard
        }
        return dict(list(held.items())[-SHARED:])

    def hear(self, arrests: Iterable[Mapping[str, float]], now_s: float) -> None:
        """What other processes share."""
        for told in arrests:
            for request, left_s in list(told.items())[:SHARED]:
                suspect = self._suspects.get(request)
                if suspect is None:
                    suspect = self._suspects[request] = _Suspect(heard=True)
                if suspect.heard or suspect.refused_until_s <= now_s:
                    suspect.seen_at_s = now_s
                    suspect.refused_until_s = max(suspect.refused_until_s, now_s + left_s)
                    suspect.heard = True
        while len(self._suspects) > CAPACITY:
            self._forget(next(iter(self._suspects)))

    def describe(self, now_s: float) -> dict[str, Any]:
        held = [one for one in self._suspects.values() if one.refused_until_s > now_s]
        return {
            "suspects": len(self._suspects) - len(held),
            "quarantined": len(held),
            "refused": self.refused,
            "longest_left_s": round(max((one.refused_until_s - now_s for one in held), default=0.0), 1),
        }

    def _arrest(self, request: str, engine: str, now_s: float) -> None:
        company = self._arrests.setdefault(engine, [])
        if request not in company:
            company.append(request)
        for one in company:
            suspect = self._suspects[one]
            relapses = len(suspect.deaths) - DEATHS_TO_ARREST
            longest_s = ALONE_S if len(company) == 1 else min(ALONE_S, IN_COMPANY_S * 8.0**relapses)
            suspect.refused_until_s = suspect.seen_at_s + longest_s
            suspect.heard = False

    def _forget(self, request: str) -> None:
        suspect = self._suspects.pop(request)
        for death in suspect.deaths:
            company = self._arrests.get(death)
            if company is not None and request in company:
                company.remove(request)
                if not company:
                    del self._arrests[death]
