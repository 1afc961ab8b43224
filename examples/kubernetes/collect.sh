#!/bin/sh
# The collector's container: passes SIGTERM on, once, and ends with 0 only when every row has finished, so that a Job that
# was evicted is not taken for done. 75 asks for another pod; 3 says that one would have nothing to do: every row has
# ended, and some were given up (see podFailurePolicy in job.yaml).
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
if grep -q '"complete":true' "$summary"; then
    [ "$status" -eq 0 ] && exit 0
    [ "$status" -eq 1 ] && exit 3
fi
[ "$told" -eq 1 ] && exit 75
exit "$((status ? status : 75))"
