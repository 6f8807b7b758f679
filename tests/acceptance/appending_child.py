"""Append records to a log at a given rate a second; each record holds the moment before its append."""

import sys
import time

import cqueue


def main(url, name, rate, count):
    with cqueue.connect(url) as client:
        log = client.log(name)
        due_s = time.monotonic()
        for _ in range(int(count)):
            time.sleep(max(0.0, due_s - time.monotonic()))
            log.append("t", b"%d" % time.time_ns())
            due_s += 1 / float(rate)


if __name__ == "__main__":
    main(*sys.argv[1:])
