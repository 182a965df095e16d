"""The ledger of leases in Redis: one script that moves caps between processes in one step, and how it is asked.

A hash per limit: gateway id → "cap used rate need free_in_ms at_ms". A process without a field holds the plain share
of an idle limit, so one that finds a limit in the index of used ones enters its own figures and sets the rest free.
A cap sinks in two steps: the script advises, the process stops taking, its next question tells the ledger. A ledger
that was just made may be one that lost all: nothing is granted until every process has entered what it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pool.domain.rate_limits import Share

SILENT_MS = 3000
"""Of a process that was silent for so long only what it used still counts."""

# All that is not used is spread over the processes, half of it evenly, half by what each was asked for lately; all
# of it by that while another one had to refuse. Targets are rounded up, since a grant never passes what is free.
LEDGER = """
local me, processes, silent, since = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', KEYS[3], now, 'NX')
local grants = processes == 1 or now - redis.call('GET', KEYS[3]) >= 2000
local answer = {now}
answer[2] = redis.call('ZRANGEBYSCORE', KEYS[1], since, '+inf', 'LIMIT', 0, 1000)
answer[3] = redis.call('ZRANGEBYSCORE', KEYS[2], since, '+inf', 'LIMIT', 0, 1000)
for i = 4, #KEYS do
  local at = 5 + (i - 4) * 9
  local limit, held, used = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local rate, need, free_in = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), ARGV[at + 5]
  local is_new, window, name = ARGV[at + 6] == '1', tonumber(ARGV[at + 7]), ARGV[at + 8]
  local caps, others, rates, needs, live, before, soonest = 0, 0, 0, 0, 0, -1, -1
  local rows = redis.call('HGETALL', KEYS[i])
  for j = 1, #rows, 2 do
    local pattern = '(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)'
    local cap, taken, wanted, lacks, free, stamp = string.match(rows[j + 1], pattern)
    cap, taken, free = tonumber(cap), tonumber(taken), tonumber(free)
    local age = now - tonumber(stamp)
    if rows[j] == me then
      if is_new and age < window then before = taken end
    elseif age >= window then
      redis.call('HDEL', KEYS[i], rows[j])
    else
      others = others + taken
      if free >= 0 and (soonest < 0 or free - age < soonest) then soonest = math.max(0, free - age) end
      if age >= silent then
        caps = caps + taken
      else
        caps, rates, live = caps + math.max(cap, taken), rates + tonumber(wanted), live + 1
        needs = needs + tonumber(lacks)
      end
    end
  end
  if before > 0 then used = used + before end
  held = math.max(held, used)
  local slack = math.max(0, limit - used - others)
  local weight = 1 / processes
  if rate + rates > 0 then
    local even = needs > 0 and 0 or 0.5
    weight = even / processes + (1 - even) * rate / (rate + rates)
  end
  local target = math.ceil(used + math.max(slack * weight, math.min(need, slack)) - 0.001)
  local implied = math.max(0, processes - 1 - live) * math.floor(limit / processes)
  local cap, advice = held, target
  if target >= held or not grants then
    if not grants then target = held end
    cap = held + math.max(0, math.floor(math.min(target - held, limit - caps - implied - held)))
    advice = cap
  end
  local row = string.format('%d %d %.3f %d %s %d', cap, used, rate, need, free_in, now)
  redis.call('HSET', KEYS[i], me, row)
  redis.call('PEXPIRE', KEYS[i], window * 2)
  if used > 0 or rate > 0.5 then
    redis.call('ZADD', KEYS[1], now, ARGV[at] .. ' ' .. name)
    redis.call('PEXPIRE', KEYS[1], window * 2)
  end
  if need > 0 then
    redis.call('ZADD', KEYS[2], now, name)
    redis.call('PEXPIRE', KEYS[2], 10000)
  end
  answer[#answer + 1] = {advice, others, soonest, before}
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 300000)
return answer
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the ledger says of one limit."""

    cap: int
    """Granted; if lower than what was held, the advice to sink to it."""
    others_used: int
    free_elsewhere_in_s: float | None
    used_before: int
    """By this process before it was restarted."""


@dataclass(frozen=True, slots=True)
class Answer:
    at_ms: int
    in_use: tuple[tuple[str, int], ...]
    """Name and limit of what any process used since the last question."""
    short: tuple[str, ...]
    """What a process had to refuse for want of a lease since then."""
    entries: tuple[Entry, ...]


def build_call(
    prefix: str, gateway_id: str, shares: Sequence[Share], *, processes: int, since_ms: int, now_s: float
) -> tuple[list[str], list[str | int | float]]:
    """Keys and arguments of one call of the script; the shares' wishes go with it."""
    keys = [f"{prefix}:limits", f"{prefix}:limits:short", f"{prefix}:limits:since"]
    args: list[str | int | float] = [gateway_id, processes, SILENT_MS, since_ms]
    for share in shares:
        keys.append(f"{prefix}:limit:{share.id}")
        args += _describe_share(share, now_s)
        share.clear_wishes()
    return keys, args


def _describe_share(share: Share, now_s: float) -> list[str | int | float]:
    window = share.window
    window.expire(now_s)
    free_at_s = window.free_at_s(1)
    free_in_ms = -1 if free_at_s is None else int(max(0.0, free_at_s - now_s) * 1000)
    held = int(max(min(share.cap, share.limit), window.used))
    rate = round(share.read_rate(now_s), 3)
    is_new, window_ms = int(not share.is_known), int(share.window_s * 1000)
    return [share.limit, held, window.used, rate, share.need, free_in_ms, is_new, window_ms, share.id]


def read_answer(answer: Sequence[Any]) -> Answer:
    in_use = []
    for member in answer[1]:
        limit, _, name = member.decode().partition(" ")
        in_use.append((name, int(limit)))
    entries = tuple(
        Entry(int(cap), int(others), None if soonest < 0 else soonest / 1000, max(0, int(before)))
        for cap, others, soonest, before in answer[3:]
    )
    short = tuple(member.decode() for member in answer[2])
    return Answer(int(answer[0]), tuple(in_use), short, entries)
