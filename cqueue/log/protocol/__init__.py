"""How a log is written and read, as generators over store operations: no I/O, no threads, no wall clock."""
