"""Thin tables with their constraints, a file per aggregate. Nothing here decides."""

from pool.models.access import ApiToken, AuditEntry, IdempotencyRecord, Key, LoopLease
from pool.models.catalog import (
    Lane,
    Model,
    Profile,
    Release,
    ReleaseProfile,
    Scale,
    Version,
    VersionPresence,
)
from pool.models.nodes import Device, DeviceMemory, Node, NodeLease, Runtime
from pool.models.replicas import DeviceClaim, Intent, PhaseChange, PortReservation, Replica
from pool.models.telemetry import StreamPosition, TrafficCell
from pool.models.tokenizers import TokenizerFile, TokenizerUse
from pool.models.traffic import GatewayInstance, GatewaySnapshot, Plan, PlanInForce, RoutingState

__all__ = [
    "ApiToken",
    "AuditEntry",
    "Device",
    "DeviceClaim",
    "DeviceMemory",
    "GatewayInstance",
    "GatewaySnapshot",
    "IdempotencyRecord",
    "Intent",
    "Key",
    "Lane",
    "LoopLease",
    "Model",
    "Node",
    "NodeLease",
    "PhaseChange",
    "Plan",
    "PlanInForce",
    "PortReservation",
    "Profile",
    "Release",
    "ReleaseProfile",
    "Replica",
    "RoutingState",
    "Runtime",
    "Scale",
    "StreamPosition",
    "TokenizerFile",
    "TokenizerUse",
    "TrafficCell",
    "Version",
    "VersionPresence",
]
