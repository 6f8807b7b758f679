"""The log protocol as generators over store operations: no I/O, no threads, no wall clock."""
