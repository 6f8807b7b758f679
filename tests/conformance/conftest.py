"""The suite runs on every store."""

from tests.fix_store import cassandra_store, eventually, store, store_connection, wide_row

__all__ = ["cassandra_store", "eventually", "store", "store_connection", "wide_row"]
