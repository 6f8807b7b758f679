#!/bin/bash
# The settings that cqueue needs, in a container of the official image: its cassandra.yaml is edited before its
# own entry point runs, as the image has no variable for these. Used by docker-compose.yml and by the tests.
#
# `batch` syncs the commit log before a write is acknowledged; the image's `periodic` loses acknowledged writes
# of up to ten seconds when a node is killed, and Cassandra refuses a leftover commitlog_sync_period beside
# `batch`. With memtables in the heap, idle threads keep those that were flushed. Deleting first makes a restart
# harmless.

set -e
yaml="$CASSANDRA_CONF/cassandra.yaml"
sed -i -r '/^(commitlog_sync|commitlog_sync_period|commitlog_disk_access_mode|memtable_allocation_type|paxos_variant):/d' "$yaml"
printf '\ncommitlog_sync: batch\ncommitlog_disk_access_mode: auto\nmemtable_allocation_type: offheap_objects\npaxos_variant: v2\n' >> "$yaml"
exec docker-entrypoint.sh cassandra -f
