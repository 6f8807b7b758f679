"""Inside a producer: group commit, results of a send, and the redrive of dead letters."""
