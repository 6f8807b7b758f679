"""Fixtures come from plugins, one file a subject; this file only lists them."""

pytest_plugins = ["tests.fix_cassandra"]
