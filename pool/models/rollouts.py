"""Rollouts, what happened to them, what their gates saw, and the prompts whose answers are known."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from pool.models.base import NameField, name_constraint
from pool.models.catalog import Model, Release
from pool.models.replicas import Intent, Replica

ROLLOUT_PHASES = [
    "planned", "preparing", "warming", "stepping", "holding", "promoted", "rolling_back", "rolled_back", "paused",
    "failed",
]  # fmt: skip
FINAL_PHASES = ["promoted", "rolled_back", "failed"]


class Rollout(models.Model):
    """One candidate on its way (`pool/domain/rollout.py`). The row is changed by compare-and-set on phase and step."""

    id = models.CharField(max_length=16, primary_key=True)
    model = models.ForeignKey(Model, models.PROTECT, related_name="rollouts")
    candidate = models.ForeignKey(Release, models.PROTECT, related_name="rollouts")
    stable = models.ForeignKey(Release, models.PROTECT, related_name="+")
    base_plan = models.PositiveIntegerField()
    """Number of the plan in force when it began: where a rollback goes."""
    phase = models.CharField(max_length=16, default="planned")
    resumes = models.CharField(max_length=16, default="", blank=True)
    step = models.SmallIntegerField(default=-1)
    steps = models.JSONField()
    """`[{weight, soak_s, min_requests, lanes}]`."""
    gates = models.JSONField(default=dict)
    """`{gate: {margin_ratio, dry_run, …}}`; a gate that is missing has its default."""
    hold_s = models.PositiveIntegerField(default=1800)
    scales = models.JSONField(default=list)
    """`[[lane, replicas]]` of the candidate that this rollout asks for."""
    scales_before = models.JSONField(default=list)
    """The same before it began: what an end without a promotion puts back."""
    accept_outage = models.BooleanField(default=False)
    """Whoever started it has accepted that stable stops serving while the candidate loads, where nothing else helps."""
    fit = models.JSONField(default=dict)
    """The fit report of its start (`pool/domain/fit_report.py`); empty: it began before there was one."""
    swap = models.JSONField(default=dict)
    """What stable gives up for room: `{replicas: [id], scales: [[lane, before, during]], is_full, made, made_at}`;
    empty: nothing. `made`: it has been asked to."""
    promote_asked = models.BooleanField(default=False)
    entered_at = models.DateTimeField(default=timezone.now)
    deadline_at = models.DateTimeField(null=True)
    next_action = models.TextField(default="", blank=True)
    reason_code = models.CharField(max_length=63, default="", blank=True)
    reason_text = models.TextField(default="", blank=True)
    weighted_at = models.DateTimeField(null=True)
    """When the candidate first got weight."""
    plan = models.PositiveIntegerField(null=True)
    """Number of the plan that it wrote last."""
    rollback_plan = models.PositiveIntegerField(null=True)
    """Number of the newest plan of its rollback."""
    table_epoch = models.BigIntegerField(null=True)
    table_version = models.BigIntegerField(null=True)
    """The routing table with the plan that it wrote last: what gateways acknowledge."""
    streams = models.JSONField(default=dict)
    """At a rollback: `{"end_after_tokens": n}`, or empty to let running streams finish."""
    golden = models.JSONField(default=dict)
    verdict = models.JSONField(default=dict)
    """The newest reading of every gate, as pages show it."""
    verdict_at = models.DateTimeField(null=True)
    evidence = models.JSONField(default=dict)
    """The running state of the e-processes and the last block that is in it."""
    created_by = models.CharField(max_length=150, default="", blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["model"], condition=~models.Q(phase__in=FINAL_PHASES), name="one_active_rollout_per_model"
            ),
            models.CheckConstraint(condition=models.Q(phase__in=ROLLOUT_PHASES), name="rollout_phase_known"),
            models.CheckConstraint(
                condition=~models.Q(candidate=models.F("stable")), name="rollout_of_two_releases"
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return self.id


class RolloutEvent(models.Model):
    """One line of a rollout's log. `kind`: phase, plan, verdict, guard, golden, operator or warning."""

    rollout = models.ForeignKey(Rollout, models.CASCADE, related_name="events")
    at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=16)
    code = models.CharField(max_length=63, default="", blank=True)
    text = models.TextField()
    facts = models.JSONField(default=dict)
    actor = models.CharField(max_length=150, default="", blank=True)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.rollout_id} {self.kind}"


class GateReading(models.Model):
    """What one gate said at one time: at most one in ten seconds, and at each change of its outcome."""

    rollout = models.ForeignKey(Rollout, models.CASCADE, related_name="readings")
    gate = models.CharField(max_length=63)
    at = models.DateTimeField()
    outcome = models.CharField(max_length=16)
    worse_log = models.FloatField(default=0.0)
    """Natural log of the evidence that it is worse; the bar is in `figures`."""
    not_worse_log = models.FloatField(default=0.0)
    figures = models.JSONField(default=dict)

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["rollout", "gate", "at"], name="reading_by_gate_and_time")]

    def __str__(self) -> str:
        return f"{self.rollout_id} {self.gate} {self.outcome}"


class GoldenPrompt(models.Model):
    """A conversation whose answer is known, asked of a candidate before its first weight and at each step."""

    model = models.ForeignKey(Model, models.CASCADE, related_name="golden_prompts")
    name = NameField()
    messages = models.JSONField()
    max_tokens = models.PositiveIntegerField(default=32)
    match = models.CharField(max_length=8, default="exact")
    """`exact`, `contains`, `regex` or `logprob`."""
    expected = models.TextField(default="", blank=True)
    tolerance = models.FloatField(default=0.0)
    """For `logprob`: the largest mean difference per token, in nats."""
    required = models.BooleanField(default=True)
    hot = models.BooleanField(default=False)
    """Its whole conversation is replayed in warm-ups, so that it is cached; of others only the system prompt."""
    expected_logprob = models.FloatField(null=True)
    """Mean log-probability per token of `expected` at the stable release, in nats; null until it is recorded."""
    recorded_from = models.PositiveIntegerField(null=True)
    """Number of the release whose answer `expected` is; null where a person wrote it."""
    recorded_at = models.DateTimeField(null=True)
    created_by = models.CharField(max_length=150, default="", blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["model_id", "name"]
        constraints = [
            models.UniqueConstraint(fields=["model", "name"], name="golden_prompt_once_per_model"),
            name_constraint("golden_prompt"),
            models.CheckConstraint(
                condition=models.Q(match__in=["exact", "contains", "regex", "logprob"]),
                name="golden_match_known",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class GoldenRun(models.Model):
    """The golden prompts of a model, asked of one replica: for a stage of a rollout, or to record stable's answers."""

    rollout = models.ForeignKey(Rollout, models.CASCADE, null=True, related_name="golden_runs")
    """Null: answers are recorded as the expected ones."""
    model = models.ForeignKey(Model, models.CASCADE, related_name="golden_runs")
    stage = models.CharField(max_length=16)
    """`before`, `step k`, `full` or `record`."""
    lane = models.CharField(max_length=63, default="", blank=True)
    """Of the replica: each lane may have its own engine settings."""
    replica = models.ForeignKey(Replica, models.CASCADE, related_name="golden_runs")
    generation = models.PositiveIntegerField()
    intent = models.ForeignKey(Intent, models.SET_NULL, null=True, related_name="+")
    questions = models.JSONField()
    """As they were when it was asked (`pool/domain/golden.py`)."""
    phase = models.CharField(max_length=8, default="waiting")
    outcomes = models.JSONField(default=list)
    """`[{name, matches, why, text, required}]`; while `running`, those so far."""
    reason_code = models.CharField(max_length=63, default="", blank=True)
    reason_text = models.TextField(default="", blank=True)
    asked_by = models.CharField(max_length=150, default="", blank=True)
    asked_at = models.DateTimeField(default=timezone.now)
    done_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["rollout", "stage", "lane"],
                condition=models.Q(phase__in=["waiting", "running"]),
                name="golden_run_one_open_per_stage",
            ),
            models.UniqueConstraint(
                fields=["model"],
                condition=models.Q(rollout=None, phase__in=["waiting", "running"]),
                name="golden_recording_one_open",
            ),
            models.CheckConstraint(
                condition=models.Q(phase__in=["waiting", "running", "done", "failed"]),
                name="golden_run_phase_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.stage} at {self.replica_id}.{self.generation}"
