"""Amounts per minute under a limit that several gateway processes share: who may take how much, right now.

Each process holds a lease of the limit, its cap. The sum of all caps never passes the limit, and each process keeps
what it took over the last minute below its own cap: so the limit holds over every 60 s, without asking anybody while a
request waits. Caps move between processes in a ledger that they share (`pool/gateway/limits.py`). Clocks are passed in.
"""

from __future__ import annotations

from collections import deque
from math import ceil

WINDOW_S = 60.0
_PIECES = 240
"""Parts of a window that expire one by one: what is taken counts at most a quarter of a second too long."""
_PRESSED_RATIO = 0.5
"""Over this part of its cap a process asks for more before it is needed."""
_UNSETTLED_PART = 4
"""A process that does not know yet how many others there are takes so much less than its share."""
_RATE_HALF_LIFE_S = 1.0
_DETECTION_S = 2.0
"""In which all processes notice that the ledger is gone."""
_EPSILON = 1e-6


class Window:
    """What was taken over the last `window_s`, in pieces that expire one by one, never too early."""

    __slots__ = ("_newest", "_newest_end_s", "_pieces", "_width_s", "_window_s", "expires_at_s", "used")

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._width_s = window_s / _PIECES
        self._pieces: deque[list[float]] = deque()
        """End of the time in which it was taken, amount."""
        self._newest: list[float] = [0.0, 0]
        self._newest_end_s = float("-inf")
        self.expires_at_s = float("inf")
        """When the oldest piece does: before it, nothing has to be looked at."""
        self.used = 0

    def add(self, amount: int, now_s: float) -> None:
        self.used += amount
        if now_s < self._newest_end_s:
            self._newest[1] += amount
            return
        end_s = self._newest_end_s = self._end_of_piece(now_s)
        self._newest = [end_s, amount]
        self._pieces.append(self._newest)
        if self.expires_at_s > end_s + self._window_s:
            self.expires_at_s = end_s + self._window_s

    def give_back(self, amount: int, taken_at_s: float) -> None:
        """Of what was taken then and has not expired; never more than that piece holds."""
        end_s = self._end_of_piece(taken_at_s)
        for piece in reversed(self._pieces):
            if piece[0] <= end_s:
                if piece[0] == end_s:
                    amount = min(amount, int(piece[1]))
                    piece[1] -= amount
                    self.used -= amount
                return

    def expire(self, now_s: float) -> None:
        pieces = self._pieces
        while pieces and pieces[0][0] + self._window_s <= now_s:
            self.used -= int(pieces.popleft()[1])
        if pieces:
            self.expires_at_s = pieces[0][0] + self._window_s
        else:
            self.expires_at_s = float("inf")
            self._newest_end_s = float("-inf")

    def free_at_s(self, amount: int) -> float | None:
        """When so much of what is used now will have expired; None if less than that is used."""
        left = float(amount)
        for end_s, taken in self._pieces:
            left -= taken
            if left <= 0:
                return end_s + self._window_s
        return None

    def _end_of_piece(self, at_s: float) -> float:
        return (at_s // self._width_s + 1) * self._width_s


class Share:
    """This process' part of one shared limit. `amount` is 1 per request, or tokens."""

    __slots__ = (
        "_asked", "_asked_at_s", "_lost_at_s", "_sinks_to", "cap", "free_elsewhere_at_s", "hot_until_s", "id",
        "is_active", "is_known", "is_leased", "is_pressed", "limit", "need", "next_sync_s", "others_used", "window",
        "window_s",
    )  # fmt: skip

    def __init__(self, id: str, limit: int, *, window_s: float = WINDOW_S) -> None:
        self.id = id
        self.limit = limit
        self.window = Window(window_s)
        self.cap = 0
        """What this process may take in a window."""
        self.is_leased = False
        """The ledger knows its cap. Else it is the plain share of an idle limit: limit / processes."""
        self.is_known = False
        """The ledger told what this process used before it was restarted."""
        self.is_active = False
        """Of those that meet the ledger."""
        self.is_pressed = False
        self.need = 0
        """The largest amount that was refused since the last look into the ledger."""
        self.others_used: int | None = 0
        """By the other processes, as the ledger last said; None = not known."""
        self.free_elsewhere_at_s: float | None = None
        self.hot_until_s = 0.0
        """Another process uses the limit; its lease has to be respected until then."""
        self.next_sync_s = 0.0
        self.window_s = window_s
        self._asked = 0.0
        self._asked_at_s = 0.0
        self._lost_at_s: float | None = None
        self._sinks_to: int | None = None

    def has_room(self, amount: int, now_s: float) -> bool:
        window = self.window
        if now_s >= window.expires_at_s:
            window.expire(now_s)
        if self._sinks_to is not None:
            self.cap = max(self._sinks_to, min(self.cap, window.used))
        return window.used + amount <= self.cap

    @property
    def has_spare(self) -> bool:
        return self.cap > self.window.used

    def take(self, amount: int, now_s: float) -> None:
        """`has_room` was true."""
        window = self.window
        window.add(amount, now_s)
        self._asked += amount
        if window.used > self.cap * _PRESSED_RATIO:
            self.is_pressed = True

    def clear_wishes(self) -> None:
        """They are on their way to the ledger."""
        self.is_pressed = False
        self.need = 0

    def note_refused(self, amount: int) -> None:
        self._asked += amount
        self.need = max(self.need, amount)
        self.is_pressed = True

    def settle(self, reserved: int, actual: int, *, taken_at_s: float, now_s: float) -> None:
        """What was taken counts from when it was reserved; what came on top, from now."""
        if actual < reserved:
            self.window.give_back(reserved - actual, taken_at_s)
        elif actual > reserved:
            self.window.add(actual - reserved, now_s)

    def is_full_everywhere(self, amount: int) -> bool:
        """False if only the lease is missing: the limit itself has room, as far as is known."""
        return self.others_used is None or self.window.used + self.others_used + amount > self.limit

    def retry_after_s(self, amount: int, now_s: float) -> int:
        """Whole seconds, at least 1: after it, `amount` has room if nobody else takes it."""
        if amount > self.limit:
            return ceil(self.window_s)
        if not self.is_full_everywhere(amount):
            return 1
        free_at_s = self.window.free_at_s(self.window.used + amount - max(self.cap, amount))
        elsewhere_s = self.free_elsewhere_at_s
        if free_at_s is None or (amount > self.cap and elsewhere_s is not None and elsewhere_s < free_at_s):
            free_at_s = elsewhere_s
        return max(1, ceil(free_at_s - now_s - _EPSILON)) if free_at_s is not None else 1

    # With the ledger.
    def read_rate(self, now_s: float) -> float:
        """Amount asked for lately, whether taken or refused: the weight of this process among those that want more."""
        self._asked *= 0.5 ** (max(0.0, now_s - self._asked_at_s) / _RATE_HALF_LIFE_S)
        self._asked_at_s = now_s
        return self._asked

    def accept(self, cap: int, others_used: int, *, used_before: int, now_s: float) -> bool:
        """The ledger's grant, or its advice to sink. True if it sank: the ledger learns of it from the next question.

        `used_before`: by this process before it was restarted.
        """
        if used_before:
            self.window.add(used_before, now_s)
        sinks = cap < self.cap
        self.cap = max(cap, min(self.cap, self.window.used))
        self.is_leased = self.is_known = True
        self.others_used = others_used
        self._lost_at_s = self._sinks_to = None
        return sinks

    def is_idle(self, now_s: float) -> bool:
        """Nobody uses it, as far as is known: its lease can be forgotten."""
        self.window.expire(now_s)
        return not self.window.used and now_s >= self.hot_until_s

    def forget_lease(self, share: int) -> None:
        self.is_leased = self.is_active = self.is_pressed = False
        self.others_used = 0
        self.cap = share

    def hold_alone(self, share: int, now_s: float) -> None:
        """Without a ledger, or before it knows this limit: the plain share.

        A leased cap sinks to the share as what was taken expires. It rises to the share only after a whole window, in
        which the others' caps sank as well.
        """
        if not self.is_leased:
            self.cap = share
            return
        self.others_used = None
        if self._lost_at_s is None:
            self._lost_at_s = now_s
        if self.cap > share or now_s - self._lost_at_s > self.window_s + _DETECTION_S:
            self._sinks_to = share
        self.has_room(0, now_s)


def plain_share(limit: int, processes: int, *, has_ledger: bool, settled: bool = True) -> int:
    """Whole, since requests are: what is left over is nobody's until the ledger gives it out.

    Without a ledger it is at least 1: a limit below the number of processes must not shut its key out.
    """
    share = limit // (processes if settled else processes * _UNSETTLED_PART)
    return share if has_ledger else max(1, share)
