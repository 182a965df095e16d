"""Ports of engines on a network address: reserved in the database, never shared, strangers passed over."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from pool.models import Device, Node, PhaseChange, PortReservation, Replica
from tests.life.box import Box

ENGINES = 8
ROUNDS = 3
SQUATTED = 8
# Loopback, and yet an address for which a node reserves ports.
ADDRESS = "127.0.0.2"


@pytest.fixture
def first_port(box: Box) -> int:
    """A node with eight devices, so that eight engines may start at once, and three times as many ports."""
    first = random.randint(15_000, 19_000)
    facts = box.node.facts | {"engine_ports": [first, first + 3 * ENGINES - 1]}
    Node.objects.filter(pk=box.node.pk).update(address=ADDRESS, facts=facts)
    box.node.refresh_from_db()
    Device.objects.bulk_create(
        Device(node=box.node, index=index, uuid=f"cpu-{index}", kind="cpu") for index in range(1, ENGINES)
    )
    return first


@contextmanager
def squatters(first: int) -> Iterator[set[int]]:
    """Strangers that listen on some of the node's ports."""
    ports = set(random.sample(range(first, first + 3 * ENGINES), SQUATTED))
    with ExitStack() as held:
        for port in ports:
            squatter = held.enter_context(socket.socket())
            squatter.bind((ADDRESS, port))
            squatter.listen(1)
        yield ports


def test_starts_side_by_side_share_no_port_and_pass_strangers_over_fc32(box: Box, first_port: int) -> None:
    for _ in range(ROUNDS):
        with squatters(first_port) as taken:
            box.scale(ENGINES)
            rows = box.run_until_ready(ENGINES)

            ports = [row.port for row in rows]
            assert len(set(ports)) == ENGINES
            assert taken.isdisjoint(ports)
            assert all(row.address == f"http://{ADDRESS}:{row.port}" for row in rows)
            assert {row.generation for row in rows} == {1}, list_failures()

            box.scale(0)
            box.run_until(lambda: not Replica.objects.exclude(phase="stopped").exists(), limit_s=40)
        assert not PortReservation.objects.exists()
    assert list_failures() == []


def list_failures() -> list[tuple[str, str]]:
    return list(PhaseChange.objects.filter(phase="failed").values_list("reason_code", "reason_text"))


def test_a_node_without_a_free_port_says_so_fc32(box: Box, first_port: int) -> None:
    with ExitStack() as held:
        for port in range(first_port, first_port + 3 * ENGINES):
            squatter = held.enter_context(socket.socket())
            squatter.bind((ADDRESS, port))
            squatter.listen(1)
        box.scale(1)
        box.run_until(lambda: Replica.objects.filter(phase="failed", engine="gone").exists())

    row = Replica.objects.get()
    assert (row.reason_code, row.failure_kind) == ("port_in_use", "transient")
    assert "SLUICE_ENGINE_PORTS" in row.reason_text
    assert row.next_retry_at is not None


def test_an_address_of_another_host_is_named(box: Box, first_port: int) -> None:
    Node.objects.filter(pk=box.node.pk).update(address="192.0.2.1")
    box.scale(1)

    box.run_until(lambda: Replica.objects.filter(phase="failed", engine="gone").exists())

    row = Replica.objects.get()
    assert (row.reason_code, row.failure_kind) == ("bad_address", "permanent")
    assert "SLUICE_NODE_ADDRESS" in row.reason_text
