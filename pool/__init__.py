"""The product: domain, tables, queries, services, loops, telemetry and the gateway."""

import os

from pool.compiled import use_compiled

use_compiled(os.environ.get("SLUICE_COMPILED_DIR"))
