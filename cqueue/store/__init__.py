"""The storage seam, and what stands behind it: Cassandra, and a twin in memory."""
