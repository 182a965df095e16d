"""The product: domain, tables, queries, services, loops, telemetry and the gateway."""
