"""The log filter that no key passes."""

from __future__ import annotations

import logging

from pool.domain.redaction import redact


class SecretFilter(logging.Filter):
    """Masks keys in the finished message, arguments included."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        masked = redact(message)
        if masked != message:
            record.msg, record.args = masked, ()
        return True
