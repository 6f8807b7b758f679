"""The threaded dispatcher. Empty so far: `cqueue.Consumer` is what there is to receive with."""
