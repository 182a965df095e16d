"""The store of telemetry at the size of a day: page query, quantiles against brute force, and dropping the day.

    python -m bench.telemetry [--quick] [--records N] [--no-engine]

Makes 10 M request records (`--quick`: 500,000) and the cells of the same 24 hours in a PostgreSQL of its own.
Then the step hook's cost on a real engine (`_plugin_overhead.py`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench._figures import print_figure, say
from launcher.servers import start_postgres

RECORDS, QUICK_SHARE = 10_000_000, 20
QUERY_LIMIT_MS, QUANTILE_LIMIT, DROP_LIMIT_MS = 300.0, 0.01, 1000.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench telemetry", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the records")
    parser.add_argument("--records", type=int, default=None, help="how many instead")
    parser.add_argument(
        "--no-engine", action="store_true", help="without the step hook's cost on a real engine"
    )
    options = parser.parse_args()
    records = options.records or (RECORDS // QUICK_SHARE if options.quick else RECORDS)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir="/tmp") as name:
        folder = Path(name)
        server = start_postgres(folder / "pg", folder / "run", durable=False)
        os.environ |= {
            "SLUICE_DATABASE_URL": server.url,
            "SLUICE_DATA_DIR": str(folder),
            "SLUICE_SECRET_KEY": "a-secret-of-this-benchmark-only",
            "DJANGO_SETTINGS_MODULE": "console.settings",
        }
        try:
            good = _run(records)
        finally:
            server.stop()
    if not options.no_engine:
        # A process of its own: it needs neither this database nor these settings.
        good &= subprocess.run([sys.executable, "-m", "bench._plugin_overhead"], check=False).returncode == 0
    return 0 if good else 1


def _run(records: int) -> bool:
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection

    from bench import _telemetry_day as day

    call_command("migrate", verbosity=0)
    say(f"making {records:,} records and their cells")
    values = day.make(records)
    good = print_figure("telemetry", "records", float(day.count_records()), unit="records")
    say("the page's query for 24 hours")
    query_ms = day.time_page_query()
    good &= print_figure("telemetry", "page_query_ms", query_ms, unit="ms", limit=QUERY_LIMIT_MS)
    error, count_error = day.compare_quantiles(values)
    good &= print_figure("telemetry", "quantile_error_ratio", error, unit="ratio", limit=QUANTILE_LIMIT)
    good &= print_figure("telemetry", "count_error", count_error, unit="samples", limit=0.0)
    say("dropping the day while a writer writes")
    dropped = day.drop_while_writing()
    good &= print_figure("telemetry", "drop_day_ms", dropped.drop_ms, unit="ms", limit=DROP_LIMIT_MS)
    good &= print_figure(
        "telemetry",
        "writer_stall_ms",
        dropped.stall_ms,
        unit="ms",
        against=f"{dropped.usual_stall_ms} without a drop",
        limit=DROP_LIMIT_MS,
    )
    connection.close()
    return good


if __name__ == "__main__":
    sys.exit(main())
