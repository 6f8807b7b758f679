"""The storage seam, and its two implementations: Apache Cassandra, and an in-memory twin for tests."""
