"""Rights of all open sockets, asked together: hundreds of viewers cost two queries, not hundreds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from console.access import Right, sessions_with
from console.live.database import run_in_thread

GATHER_S = 0.1
"""So long sockets that ask at about the same time wait for each other."""

Ask = Callable[[Iterable[str], Right], set[str]]


class SessionRights:
    """Lives in one event loop; see `find_session_rights`."""

    def __init__(self, ask: Ask = sessions_with) -> None:
        self._ask = ask
        self._waiting: dict[Right, set[str]] = {}
        self._rounds: dict[Right, asyncio.Task[set[str]]] = {}

    async def may(self, scope: Mapping[str, Any], right: Right) -> bool:
        """Whether the socket's session has the right now. Raises DatabaseError."""
        key = getattr(scope.get("session"), "session_key", None)
        if not key:
            return False
        self._waiting.setdefault(right, set()).add(key)
        if right not in self._rounds:
            self._rounds[right] = asyncio.create_task(self._ask_together(right))
        # Shielded: a socket that leaves must not end the question of the others.
        return key in await asyncio.shield(self._rounds[right])

    async def _ask_together(self, right: Right) -> set[str]:
        await asyncio.sleep(GATHER_S)
        keys = self._waiting.pop(right)
        del self._rounds[right]
        return await run_in_thread(lambda: self._ask(keys, right))


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, SessionRights] = WeakKeyDictionary()


def find_session_rights() -> SessionRights:
    loop = asyncio.get_running_loop()
    if loop not in _of_loop:
        _of_loop[loop] = SessionRights()
    return _of_loop[loop]
