# Sourced by what runs several sections: each shows its result, and `status` becomes that of the first that failed. Later
# sections run all the same, because one run should show all that is wrong.
status=0

section() {
    local title=$1 begun=$SECONDS result=0
    shift
    printf '\n=== %s: %s\n' "$title" "$*"
    "$@" </dev/null || result=$?
    printf '=== %s: %s after %d s\n' "$title" "$([ "$result" -eq 0 ] && echo passed || echo "FAILED ($result)")" $((SECONDS - begun))
    [ "$status" -ne 0 ] || status=$result
    return "$result"
}
