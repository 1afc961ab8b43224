#!/bin/sh
# The collector's container: passes SIGTERM on, once, and ends with 0 only when every row has ended, so that a Job that
# was evicted is not taken for done. 75 asks for another pod (see podFailurePolicy in job.yaml).
set -u
config=${GYM_CONFIG:?set GYM_CONFIG to the configuration, an absolute path}
summary=${GYM_SUMMARY:-$config.summary.json}
told=0 sent=0 collector=
trap 'told=1; if [ -n "$collector" ] && [ "$sent" -eq 0 ]; then sent=1; kill -TERM "$collector"; fi' TERM
gym-ckpt collect --resume --json "$config" > "$summary" &
collector=$!
[ "$told" -eq 0 ] || kill -TERM "$$"  # it came before there was a collector to tell
while :; do  # `wait` returns early when a signal comes
    wait "$collector"
    status=$?
    kill -0 "$collector" 2>/dev/null || break
done
if grep -q '"complete":true' "$summary"; then exit "$status"; fi
[ "$told" -eq 1 ] && exit 75
exit "$((status ? status : 75))"
