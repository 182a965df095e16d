"""`./sluice status`: what runs, from the supervisor's record; replicas from the console's API while it
answers."""

import argparse
import json
import subprocess
import sys
from typing import Any

from launcher.credentials import find_credentials
from launcher.environments import find_environment
from launcher.handing_over import find_surroundings, prepare_environment
from launcher.layout import ROOT, Layout, find_layout
from launcher.record import SupervisorRecord, read_record
from launcher.rest import CallFailed, list_replicas

DATABASE_S = 15.0
NOT_RUNNING = 3  # as systemctl status
REPLICA_FIELDS = ("id", "model", "release", "lane", "phase", "reason", "pid")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--data", metavar="DIR", help="the data folder (default: SLUICE_DATA_DIR, else var/)")


def run(options: argparse.Namespace) -> int:
    layout = find_layout(options.data)
    record = read_record(layout.record)
    if record is not None and not record.is_alive and not any(p.is_alive for p in record.processes):
        record = None
    status = describe_status(layout, record)
    if options.json:
        sys.stdout.write(json.dumps(status) + "\n")
    else:
        sys.stdout.write(render_status(layout, status))
    return 0 if record else NOT_RUNNING


def describe_status(layout: Layout, record: SupervisorRecord | None) -> dict[str, Any]:
    """`ready` holds when the start has finished and every process runs."""
    if record is None:
        return {"ready": False, "web_url": None, "gateway_url": None, "processes": [], "replicas": []}
    processes = [
        {
            "name": process.name,
            "pid": process.pid if process.is_alive else None,
            "phase": process.phase if process.is_alive or process.pid is None else "dead",
            "since": process.since,
        }
        for process in record.processes
    ]
    everything_runs = bool(processes) and all(process["phase"] == "running" for process in processes)
    replicas, note = _find_replicas(layout, record)
    status: dict[str, Any] = {
        "ready": record.is_alive and record.phase == "ready" and everything_runs,
        "web_url": record.web_url,
        "gateway_url": record.gateway_url,
        "phase": record.phase if record.is_alive else "supervisor_dead",
        "processes": processes,
        "replicas": replicas,
    }
    notes = [text for text in (record.message, note) if text]
    return status | ({"notes": notes} if notes else {})


def _find_replicas(layout: Layout, record: SupervisorRecord) -> tuple[list[dict[str, Any]], str]:
    """From the console, from PostgreSQL while the console is down, with a note when neither answers."""
    credentials = find_credentials(layout.secrets)
    if credentials is None:
        return [], ""
    try:
        found = list_replicas(record.web_url, credentials.read("api_token"))
    except CallFailed as failure:
        read = _read_database(layout)
        return read or [], "" if read is not None else f"The replicas are not known: {failure.message}"
    return [{name: replica.get(name) for name in REPLICA_FIELDS} for replica in found], ""


def _read_database(layout: Layout) -> list[dict[str, Any]] | None:
    console = find_environment("console")
    if not console.is_complete:
        return None
    env = prepare_environment(find_surroundings(data=str(layout.data)), extra={"SLUICE_PROCESS": "status"})
    command = [str(console.python), str(ROOT / "manage.py"), "status_json"]
    try:
        outcome = subprocess.run(
            command, env=env, cwd=ROOT, capture_output=True, timeout=DATABASE_S, check=True
        )
        replicas = json.loads(outcome.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return replicas if isinstance(replicas, list) else None


def render_status(layout: Layout, status: dict[str, Any]) -> str:
    if not status["processes"]:
        return f"Nothing runs in {layout.data}.\n"
    lines = [f"{layout.data}: {'ready' if status['ready'] else status['phase']}"]
    lines += [f"  console {status['web_url']}   gateway {status['gateway_url']}/v1", ""]
    for process in status["processes"]:
        lines.append(
            f"  {process['name']:<10} {process['phase']:<12} {process['pid'] or '-':>8}   {process['since']}"
        )
    for replica in status["replicas"]:
        what = f"{replica['model']} release {replica['release']}"
        lines.append(f"  {replica['id']:<10} {replica['phase']:<12} {replica['pid'] or '-':>8}   {what}")
        if replica["reason"]:
            lines.append(f"  {'':<10} {replica['reason']}")
    return "\n".join([*lines, *(f"  note: {note}" for note in status.get("notes", ())), ""])
