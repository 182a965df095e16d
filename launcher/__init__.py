"""Sets up environments and embedded servers and keeps the processes of one installation running.

Standard library only: it runs before any environment exists. Decisions about models and replicas live in
`pool`."""
