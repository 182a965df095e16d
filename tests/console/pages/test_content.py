"""Pages with nothing, with much, and with hostile text in every field that people or engines fill (FC-55)."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pool.models import Replica
from tests import factories
from tests.browser.seed import seed_pool

SignIn = Callable[[User], Client]

PAGES = ["/", "/models/", "/replicas/", "/nodes/", "/profiles/", "/keys/", "/audit/", "/playground/"]
HOSTILE = "'\"><img src=x onerror=alert(1)></script><script>alert(2)</script> =HYPERLINK(1)"


@pytest.mark.usefixtures("routing_state")
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/", "No node has joined"),
        ("/models/", "No model yet"),
        ("/replicas/", "No replicas"),
        ("/nodes/", "No node has joined"),
        ("/profiles/", "No profile"),
        ("/keys/", "No key in use"),
        ("/audit/", "Nothing matches"),
        ("/playground/", "No model to talk to"),
    ],
)
def test_an_empty_page_says_what_to_do(admin: User, sign_in: SignIn, path: str, words: str) -> None:
    assert words in sign_in(admin).get(path).content.decode()


@pytest.mark.usefixtures("routing_state")
@pytest.mark.parametrize("path", [*PAGES, "/models/model-0/"])
def test_a_larger_pool_costs_no_more_queries(admin: User, sign_in: SignIn, path: str) -> None:
    """The playground lists the releases of each model: that one is bounded by the number of models."""
    client = sign_in(admin)
    with transaction.atomic():
        factories.make_pool(1)
        few = _count_queries(client, path)
        transaction.set_rollback(True)

    factories.make_pool(4)

    allowance = 3 * 6 if path == "/playground/" else 2
    assert _count_queries(client, path) <= few + allowance


def _count_queries(client: Client, path: str) -> int:
    with CaptureQueriesContext(connection) as queries:
        assert client.get(path).status_code == 200
    return len(queries)


def test_the_overview_begins_with_one_sentence(viewer: User, sign_in: SignIn) -> None:
    seed_pool()

    page = sign_in(viewer).get("/").content.decode()

    assert "3 of 5 replicas ready, 2 gateways on table" in page
    assert "needs a version" not in page
    assert "The KV cache holds 21,504 tokens" in page


def test_simulated_engines_are_marked_everywhere(operator: User, sign_in: SignIn) -> None:
    seed_pool()
    client = sign_in(operator)

    for path in ("/", "/models/", "/models/smollm2/", "/replicas/", "/replicas/rq0j6s4u9g/", "/nodes/"):
        shown = re.findall(r'class="chip sim"[^>]*data-show="sim">', client.get(path).content.decode())
        assert shown, path
    assert "sim-1 (simulated)" in client.get("/models/smollm2/releases/new/").content.decode()


def test_a_replica_shows_its_phases_figures_and_log(viewer: User, sign_in: SignIn) -> None:
    seed_pool()

    page = sign_in(viewer).get("/replicas/rk3m9d2q71/").content.decode()

    for words in (
        "warming",
        "1,236,992 tokens",
        "predicted 1,241,300 tokens",
        "GPU KV cache size",
        "fewest replicas",
    ):
        assert words in page


def test_a_failed_replica_says_why_and_what_to_change(viewer: User, sign_in: SignIn) -> None:
    seed_pool()

    page = sign_in(viewer).get("/replicas/rb5y1h8z3e/").content.decode()

    assert "Set max_model_len to at most 21,504" in page
    assert "kv_too_small" in page


def test_an_unknown_object_is_a_page_with_404(viewer: User, sign_in: SignIn) -> None:
    for path in ("/models/none/", "/replicas/none/", "/nowhere/"):
        answer = sign_in(viewer).get(path)
        assert answer.status_code == 404
        assert "Nothing is here" in answer.content.decode()


def test_hostile_text_stays_text_on_every_page(admin: User, sign_in: SignIn) -> None:
    """FC-55: descriptions, comments, reasons, log lines, labels and details are foreign text."""
    replica = _make_hostile_pool()
    client = sign_in(admin)
    details = [
        f"/replicas/{replica.pk}/",
        "/models/evil/",
        "/models/evil/plan/",
        "/models/evil/releases/new/",
    ]

    for path in [*PAGES, *details, f"/audit/?subject={HOSTILE}", "/keys/new/", "/account/"]:
        page = client.get(path).content.decode()
        assert "<img src=x" not in page, path
        assert "<script>alert" not in page, path
        assert not re.search(r"<[^>]+\s(on\w+|style)\s*=", re.sub(r'"[^"]*"', '""', page)), path


def _make_hostile_pool() -> Replica:
    factories.make_routing_state()
    model = factories.make_model("evil", owner=HOSTILE[:100], description=HOSTILE)
    node = factories.make_node(
        "node-a", host=HOSTILE[:90], labels={HOSTILE: HOSTILE}, phase="unreachable", reason_text=HOSTILE
    )
    factories.make_device(node)
    factories.make_runtime(node, reason_text=HOSTILE, quantizations=[HOSTILE])
    profile = factories.make_profile(settings={"quantization": HOSTILE}, comment=HOSTILE)
    version = factories.make_version(model, source=f"path:{HOSTILE}"[:500], facts={"architecture": HOSTILE})
    factories.make_presence(version, node, phase="broken", reason_text=HOSTILE)
    release = factories.make_release(model, profile=profile, version=version, comment=HOSTILE)
    factories.make_plan(model, comment=HOSTILE, created_by=HOSTILE[:90])
    replica = factories.make_replica(
        release,
        node=node,
        phase="failed",
        reason_code="unknown",
        reason_text=HOSTILE,
        stage=HOSTILE[:100],
        log_tail=f"INFO {HOSTILE}\n" * 3,
        placement_reason=HOSTILE,
        figures={"printed": {"dtype": HOSTILE}},
    )
    factories.make_phase_change(replica, "failed", reason_text=HOSTILE)
    factories.make_intent(replica, phase="failed", result=HOSTILE)
    factories.make_gateway(HOSTILE[:60], host=HOSTILE[:90])
    factories.make_key(label=HOSTILE[:60])
    factories.make_audit(subject=HOSTILE, actor=HOSTILE[:90], details={HOSTILE: HOSTILE})
    return replica
