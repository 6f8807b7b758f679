"""Bootstrap of a keyspace: plan, apply, verify; and the check that every client makes at connect."""

from __future__ import annotations

from cqueue.schema.deployment import FORMAT, Deployment, check_deployment

__all__ = ["FORMAT", "Deployment", "check_deployment"]
