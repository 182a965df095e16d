"""Whole lives of replicas: placed, started, warmed, routed, failed, restarted, drained."""

import signal
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from pool.domain import liveness
from pool.domain.routing_table import from_bytes
from pool.models import Intent, PhaseChange, PortReservation, Replica
from pool.services.routing import current_delivery
from pool.services.wishes import ask_restart
from tests.life.box import Box, is_alive, kill
from tests.pool.services.world import ACTOR, SECRET
from workers import watcher


def routed(box: Box) -> set[tuple[str, int]]:
    table = from_bytes(current_delivery().body, SECRET)
    return {(r.id, r.generation) for release in table.models[0].releases for r in release.replicas}


def test_a_wish_becomes_a_warm_engine_that_is_routed_fc09(box: Box) -> None:
    box.scale(1)

    (row,) = box.run_until_ready()

    assert box.phases(row.pk) == ["starting", "loading", "warming", "ready"]
    assert row.figures["warm_up"]["requests"] > 0
    assert routed(box) == {(row.pk, 1)}
    (engine,) = box.engines()
    assert engine.pid == row.pid


def test_nothing_is_routed_before_the_warm_up_is_done_fc09(box: Box) -> None:
    box.driver.switches = {"health_from": "bind", "first_s": 1.0}
    box.scale(1)

    box.run_until(lambda: Replica.objects.filter(phase="warming").exists())
    assert routed(box) == set()

    box.run_until_ready()


def test_a_killed_engine_comes_back_as_the_next_generation_with_the_reason_kept(box: Box) -> None:
    box.scale(1)
    (row,) = box.run_until_ready()
    first = row.pid
    assert first is not None

    kill(first, signal.SIGKILL)
    box.run_until(lambda: Replica.objects.filter(phase="ready", generation=2).exists())

    failed = Replica.objects.get().changes.get(phase="failed")
    assert (failed.generation, failed.reason_code) == (1, "killed")
    assert not is_alive(first)
    assert routed(box) == {(row.pk, 2)}


def test_an_orphaned_child_does_not_keep_memory_fc03(box: Box, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    box.driver.switches = {"fork_child": "1", "ledger": str(ledger)}
    box.scale(1)
    (row,) = box.run_until_ready()
    (engine,) = box.engines()
    child = next(pid for pid in engine.members if pid != engine.pid)

    kill(engine.pid or 0, signal.SIGKILL)
    box.run_until(lambda: Replica.objects.filter(phase="ready", generation=2).exists())

    assert not is_alive(child)


def test_a_hung_engine_is_taken_out_and_restarted_fc01(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "PROBE_BUDGET", timedelta(seconds=0.3))
    monkeypatch.setattr(liveness, "STALL_LIMIT", timedelta(seconds=0.2))
    limits = liveness.Limits(idle_probe_every=timedelta(seconds=0.05))
    monkeypatch.setattr(watcher, "limits_of", lambda row: limits)
    monkeypatch.setattr(watcher, "IDLE_EVERY_S", 0.05)
    monkeypatch.setattr(watcher, "BUSY_EVERY_S", 0.05)
    # Past the longest warm-up that the recipe allows; the probes of an idle engine soon get there.
    box.driver.switches = {"hang_after": 58}
    box.scale(1)

    box.run_until(lambda: PhaseChange.objects.filter(phase="failed").exists(), limit_s=60)
    box.driver.switches = {}

    assert PhaseChange.objects.filter(phase="failed").first().reason_code == "hung"  # type: ignore[union-attr]
    box.run_until(lambda: Replica.objects.filter(phase="ready", generation__gte=2).exists(), limit_s=60)


def test_a_slow_load_that_shows_progress_is_waited_for_fc17(box: Box) -> None:
    box.driver.switches = {"load_s": 2.5}
    box.scale(1)
    box.run_until(lambda: Replica.objects.filter(phase="loading").exists())
    Replica.objects.update(budget_s=1)

    (row,) = box.run_until_ready()

    assert (row.generation, len(box.driver.starts)) == (1, 1)


def test_a_configuration_error_is_shown_with_its_figures_and_not_retried_fc33(box: Box) -> None:
    box.driver.switches = {"start_fail": "kv"}
    box.scale(1)

    box.run_until(lambda: Replica.objects.filter(phase="failed", engine="gone").exists())
    for _ in range(5):
        box.step()

    row = Replica.objects.get()
    assert (row.reason_code, row.failure_kind, row.next_retry_at) == ("kv_too_small", "permanent", None)
    assert "GiB" in row.reason_text
    assert "max_model_len" in row.reason_text
    assert len(box.driver.starts) == 1


def test_a_transient_error_backs_off_and_succeeds_fc33(box: Box, tmp_path: Path) -> None:
    box.driver.switches = {"start_fail": "oom", "fail_starts": 1, "ledger": str(tmp_path / "ledger")}
    box.scale(1)

    box.run_until(lambda: Replica.objects.filter(phase="failed", next_retry_at__isnull=False).exists())
    Replica.objects.update(next_retry_at="2026-01-01T00:00:00Z")

    (row,) = box.run_until_ready()
    assert row.generation == 2


def test_a_message_that_comes_twice_starts_one_engine_fc12(box: Box) -> None:
    box.driver.switches = {"load_s": 1.0}
    box.scale(1)
    box.run_until(lambda: Intent.objects.filter(action="start").exists())

    for _ in range(4):
        box.supervisor.run_pass(timezone.now())
    Intent.objects.update(phase="pending")

    box.run_until_ready()
    assert len(box.engines()) == 1
    assert len(set(box.driver.starts)) == 1


@pytest.mark.parametrize("moment", ["loading", "ready"])
def test_a_worker_that_dies_leaves_engines_to_the_next_one_fc23_fc49(box: Box, moment: str) -> None:
    box.driver.switches = {"load_s": 1.5}
    box.scale(1)
    box.run_until(lambda: Replica.objects.filter(phase=moment).exists())
    (before,) = box.engines()

    box.kill_worker()
    box.start_worker()
    box.run_until_ready()

    (after,) = box.engines()
    assert (after.pid, after.generation) == (before.pid, before.generation)
    assert len(set(box.driver.starts)) == 1


def test_the_keeper_may_die_and_its_engines_are_adopted_fc48(box: Box) -> None:
    box.scale(1)
    (row,) = box.run_until_ready()

    box.kill_host()
    for _ in range(5):
        box.step()

    (engine,) = box.engines()
    assert engine.pid == row.pid
    assert Replica.objects.get().generation == 1


def test_an_engine_of_an_older_generation_is_stopped_when_its_node_returns_fc04(box: Box) -> None:
    box.scale(1)
    (row,) = box.run_until_ready()
    (old,) = box.engines()
    # Meanwhile the pool gave the replica a new generation elsewhere.
    Replica.objects.filter(pk=row.pk).update(generation=2, phase="stopped", node=None, wish="stop")

    box.run_until(lambda: not is_alive(old.pid or 0))

    assert (row.pk, 1) not in {(engine.replica_id, engine.generation) for engine in box.engines()}


def test_scaling_down_drains_stops_and_gives_everything_back(box: Box) -> None:
    box.scale(2)
    box.run_until_ready(2)

    box.scale(0)
    box.run_until(lambda: Replica.objects.filter(phase="stopped").count() == 2)

    assert box.engines() == []
    assert routed(box) == set()
    assert not PortReservation.objects.exists()
    assert box.host.list_engines() == () or all(not engine.running for engine in box.host.list_engines())


def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace(box: Box) -> None:
    box.driver.switches = {"ignore_term": "1"}
    box.scale(1)
    box.run_until_ready()

    box.scale(0)
    box.run_until(lambda: Replica.objects.filter(phase="stopped").exists())

    assert box.engines() == []


def test_a_restart_makes_a_new_generation(box: Box) -> None:
    box.scale(1)
    (row,) = box.run_until_ready()

    ask_restart(row.pk, actor=ACTOR)
    box.run_until(lambda: Replica.objects.filter(phase="ready", generation=2).exists())

    assert len(box.engines()) == 1


def test_starts_on_one_device_come_one_after_the_other_fc34(box: Box) -> None:
    box.driver.switches = {"load_s": 0.8}
    box.scale(2)
    most = 0

    def both_ready() -> bool:
        nonlocal most
        most = max(most, Replica.objects.filter(phase__in=["starting", "loading"]).count())
        return Replica.objects.filter(phase="ready").count() == 2

    box.run_until(both_ready)
    assert most == 1


def test_a_failing_update_does_not_take_the_good_replicas_fc18(box: Box) -> None:
    box.scale(1)
    box.run_until_ready()
    box.driver.switches = {"start_fail": "kv"}

    box.scale(2)
    box.run_until(lambda: Replica.objects.filter(phase="failed").exists())

    assert Replica.objects.filter(phase="ready").count() == 1
    assert len(routed(box)) == 1


def test_a_stop_of_the_installation_is_no_crash(box: Box) -> None:
    box.scale(1)
    (row,) = box.run_until_ready()

    for generation in range(2, 6):
        box.kill_worker()
        box.stop_engines()
        box.start_worker()
        box.run_until(lambda generation=generation: _is_ready(generation))  # type: ignore[misc]

    row.refresh_from_db()
    assert (row.failed_starts, row.crashes_at) == (0, [])
    assert set(PhaseChange.objects.filter(phase="failed").values_list("reason_code", flat=True)) == {
        "host_stopped"
    }


def _is_ready(generation: int) -> bool:
    return Replica.objects.filter(phase="ready", generation=generation).exists()


def test_ready_is_seen_within_a_second_of_the_warm_ups_end(box: Box) -> None:
    box.scale(1)

    (row,) = box.run_until_ready()

    began, ended = (row.changes.get(phase=phase).at for phase in ("warming", "ready"))
    assert (ended - began).total_seconds() - row.figures["warm_up"]["took_s"] <= 1.0
