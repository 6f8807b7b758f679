"""The command line: one module a command group, mounted by `groups`."""
