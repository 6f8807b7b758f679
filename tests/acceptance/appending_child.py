"""Appends records to a log, so many a second; each holds the moment before it was appended."""

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
