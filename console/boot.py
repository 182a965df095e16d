"""Imported first by entry points that are no web server: makes Django ready before tables are imported."""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
django.setup()
