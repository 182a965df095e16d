"""Rules that must always hold, where no code path can go round them: immutability, weights, wake-ups."""

from django.db import migrations

WEIGHTS = """
CREATE FUNCTION sluice_weights_sum(weights jsonb) RETURNS numeric LANGUAGE sql IMMUTABLE STRICT AS $$
  SELECT coalesce(sum(value::numeric), 0) FROM jsonb_each_text(weights)
$$;
CREATE FUNCTION sluice_weights_valid(weights jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT AS $$
  SELECT jsonb_typeof(weights) = 'object'
     AND (SELECT coalesce(bool_and(jsonb_typeof(value) = 'number' AND value::numeric BETWEEN 0 AND 100), false)
          FROM jsonb_each(weights))
     AND sluice_weights_sum(weights) = 100
$$;
CREATE FUNCTION sluice_lane_weights_valid(lanes jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT AS $$
  SELECT coalesce(bool_and(sluice_weights_valid(value)), true) FROM jsonb_each(lanes)
$$;
ALTER TABLE pool_plan ADD CONSTRAINT plan_weights_sum_100 CHECK (sluice_weights_valid(weights));
ALTER TABLE pool_plan ADD CONSTRAINT plan_lane_weights_sum_100 CHECK (sluice_lane_weights_valid(lanes));
"""

IMMUTABLE = """
CREATE FUNCTION sluice_refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% rows never change: make a new one', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER immutable BEFORE UPDATE ON pool_profile FOR EACH ROW EXECUTE FUNCTION sluice_refuse_update();
CREATE TRIGGER immutable BEFORE UPDATE ON pool_release FOR EACH ROW EXECUTE FUNCTION sluice_refuse_update();
CREATE TRIGGER immutable BEFORE UPDATE ON pool_releaseprofile FOR EACH ROW EXECUTE FUNCTION sluice_refuse_update();
CREATE TRIGGER immutable BEFORE UPDATE ON pool_plan FOR EACH ROW EXECUTE FUNCTION sluice_refuse_update();
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON pool_auditentry FOR EACH ROW EXECUTE FUNCTION sluice_refuse_update();

CREATE FUNCTION sluice_version_is_write_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (OLD.model_id, OLD.name, OLD.source, OLD.revision, OLD.created_at, OLD.remote_code_approved)
     IS DISTINCT FROM (NEW.model_id, NEW.name, NEW.source, NEW.revision, NEW.created_at, NEW.remote_code_approved)
     OR (OLD.facts IS NOT NULL AND OLD.facts IS DISTINCT FROM NEW.facts)
     OR (OLD.manifest IS NOT NULL AND OLD.manifest ? 'digest' AND OLD.manifest IS DISTINCT FROM NEW.manifest)
     OR (OLD.retired_at IS NOT NULL AND OLD.retired_at IS DISTINCT FROM NEW.retired_at)
  THEN
    RAISE EXCEPTION 'a version never changes: register a new one' USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER write_once BEFORE UPDATE ON pool_version FOR EACH ROW EXECUTE FUNCTION sluice_version_is_write_once();

CREATE FUNCTION sluice_generation_only_rises() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.generation < OLD.generation THEN
    RAISE EXCEPTION 'a generation never falls' USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER generation_rises BEFORE UPDATE ON pool_replica FOR EACH ROW EXECUTE FUNCTION sluice_generation_only_rises();

CREATE FUNCTION sluice_table_only_rises() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (NEW.epoch, NEW.version) < (OLD.epoch, OLD.version) THEN
    RAISE EXCEPTION 'the routing table number never falls' USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER table_rises BEFORE UPDATE ON pool_routingstate FOR EACH ROW EXECUTE FUNCTION sluice_table_only_rises();
"""

WAKE = """
CREATE FUNCTION sluice_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('sluice_changed', TG_TABLE_NAME);
  RETURN NULL;
END $$;
"""
WAKING_TABLES = [
    "pool_node",
    "pool_device",
    "pool_runtime",
    "pool_model",
    "pool_lane",
    "pool_version",
    "pool_versionpresence",
    "pool_profile",
    "pool_release",
    "pool_scale",
    "pool_intent",
    "pool_planinforce",
    "pool_key",
]
WAKE += "".join(
    f"CREATE TRIGGER wake AFTER INSERT OR UPDATE OR DELETE ON {table} "
    "FOR EACH STATEMENT EXECUTE FUNCTION sluice_wake();\n"
    for table in WAKING_TABLES
)
# Samples (load, memory, heartbeats) come every second and wake nobody: loops look at them when they pass.
WAKE += """
CREATE TRIGGER wake AFTER INSERT OR DELETE OR UPDATE OF phase, wish, engine, failure_kind, restart_asked, stop_sent_at, stage
  ON pool_replica FOR EACH STATEMENT EXECUTE FUNCTION sluice_wake();
CREATE TRIGGER wake AFTER UPDATE ON pool_gatewayinstance FOR EACH ROW
  WHEN ((OLD.epoch, OLD.version, OLD.gone_at) IS DISTINCT FROM (NEW.epoch, NEW.version, NEW.gone_at))
  EXECUTE FUNCTION sluice_wake();
"""


class Migration(migrations.Migration):
    dependencies = [("pool", "0001_first_tables")]
    operations = [
        migrations.RunSQL(WEIGHTS, migrations.RunSQL.noop),
        migrations.RunSQL(IMMUTABLE, migrations.RunSQL.noop),
        migrations.RunSQL(WAKE, migrations.RunSQL.noop),
    ]
