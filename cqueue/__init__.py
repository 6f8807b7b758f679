"""Durable queues on Apache Cassandra."""
