"""pg_restore checks rows with an empty search path: a rule that calls another function must bring its own."""

from django.db import migrations

RULES = """
ALTER FUNCTION sluice_weights_valid(jsonb) SET search_path FROM CURRENT;
ALTER FUNCTION sluice_lane_weights_valid(jsonb) SET search_path FROM CURRENT;
"""
BACK = """
ALTER FUNCTION sluice_weights_valid(jsonb) RESET search_path;
ALTER FUNCTION sluice_lane_weights_valid(jsonb) RESET search_path;
"""


class Migration(migrations.Migration):
    dependencies = [("pool", "0003_traffic_cells")]
    operations = [migrations.RunSQL(RULES, BACK)]
