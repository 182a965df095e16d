"""What a replica still has to prefill, and how fast it does, as seen from first bytes only."""

from __future__ import annotations

# Fewer tokens tell more of a step's fixed cost than of the speed.
_FEWEST_TOKENS = 1024
# A replica that is never idle gives a sample when it has done so many.
_LONGEST_SAMPLE_TOKENS = 16_384
_SMOOTHING = 0.2
ASSUMED_TOKENS_PER_S = 4_000.0
"""Until the first sample: careful for a GPU, so that a cold start does not fill all replicas with long prompts."""
_LARGEST_FALL, _LARGEST_RISE = 2.0, 4.0


class PrefillClock:
    """Engines prefill in the order of arrival, so that work ahead is a point in time: `busy_until_s`.

    The speed is tokens done over time busy, which stays right when several prompts share a step. A sample counts
    within bounds around the mean: a prefix that was in the cache unforeseen looks like speed. It may rise faster
    than it falls, since many tiny prompts, of which each costs a step, look like slowness.
    """

    __slots__ = (
        "_busy_since_s", "_done_tokens", "_is_spoilt", "busy_until_s", "is_measured", "speed_tokens_per_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self._busy_since_s = 0.0
        self._done_tokens = 0
        self._is_spoilt = False
        self.busy_until_s = 0.0
        self.speed_tokens_per_s = ASSUMED_TOKENS_PER_S
        self.is_measured = False

    def own_s(self, tokens: int) -> float:
        return tokens / self.speed_tokens_per_s

    def add(self, tokens: int, *, ahead_tokens: int, now_s: float) -> None:
        """`ahead_tokens`: what was outstanding before."""
        if not ahead_tokens:
            self._is_spoilt = False
            self._start_sample(now_s)
        self.busy_until_s = max(self.busy_until_s, now_s) + tokens / self.speed_tokens_per_s

    def finish(self, tokens: int, *, left_tokens: int, now_s: float) -> None:
        """A prompt of so many tokens is prefilled; `left_tokens` are still outstanding."""
        self._done_tokens += tokens
        if self._is_spoilt:
            self._is_spoilt = False
            self._start_sample(now_s)
        enough = _LONGEST_SAMPLE_TOKENS if left_tokens else _FEWEST_TOKENS
        if self._done_tokens >= enough and now_s > self._busy_since_s:
            self._learn(self._done_tokens / (now_s - self._busy_since_s))
            self._start_sample(now_s)
        self.busy_until_s = now_s + self.own_s(left_tokens)

    def credit(self, tokens: int) -> None:
        """A prompt is thought to be done, since its time is over."""
        self._done_tokens += tokens

    def cancel(self, *, left_tokens: int, now_s: float) -> None:
        """A prompt was given up before its end. It is not known how much of it was done: no sample."""
        self._is_spoilt = True
        self.busy_until_s = min(self.busy_until_s, now_s + self.own_s(left_tokens))

    def _start_sample(self, now_s: float) -> None:
        self._busy_since_s = now_s
        self._done_tokens = 0

    def _learn(self, sample: float) -> None:
        speed = self.speed_tokens_per_s
        if not self.is_measured:
            self.is_measured = True
            self.speed_tokens_per_s = sample
        else:
            bounded = min(max(sample, speed / _LARGEST_FALL), speed * _LARGEST_RISE)
            self.speed_tokens_per_s = speed + _SMOOTHING * (bounded - speed)
