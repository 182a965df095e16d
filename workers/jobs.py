"""What this worker does beside its loop: one job per key at a time, in threads, each with its own time-outs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from django.db import close_old_connections

logger = logging.getLogger(__name__)


@dataclass
class Jobs:
    executor: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=16, thread_name_prefix="job")
    )
    running: dict[Hashable, Future[None]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def submit(self, key: Hashable, work: Callable[[], None]) -> bool:
        """False while a job with this key runs."""
        with self.lock:
            current = self.running.get(key)
            if current is not None and not current.done():
                return False
            self.running[key] = self.executor.submit(_guarded, key, work)
            self.running = {k: f for k, f in self.running.items() if not f.done() or k == key}
        return True

    def is_running(self, key: Hashable) -> bool:
        with self.lock:
            current = self.running.get(key)
            return current is not None and not current.done()

    def close(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)


def _guarded(key: Hashable, work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        # An edge like a loop's: the wish is still stored, so the next pass starts the job again.
        logger.exception("job %s failed", key)
    finally:
        close_old_connections()
