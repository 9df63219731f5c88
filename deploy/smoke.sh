#!/usr/bin/env bash
# Kills the leader of the running compose cluster under load, and counts.
#
#   docker compose -f deploy/compose.yaml up --build -d
#   deploy/smoke.sh [--restart]
#
# Publishes before, while and after the leader's container is killed; starts it
# again; drains everything; compares the messages that came out with those that
# were confirmed. With --restart it also takes the cluster down and up again with
# its volumes, with messages in it. Exits non-zero if anything is lost.
#
# The commands run as `$QUORATE` if that is set (a binary on this machine), else in
# a container of the same image on the host's network.
set -euo pipefail
cd "$(dirname "$0")/.."

before=2000
while_killed=20000
after=2000
queue=smoke-$$
export QUORATE_ENDPOINT=127.0.0.1:7400,127.0.0.1:7410,127.0.0.1:7420

if docker compose version >/dev/null 2>&1; then
    compose() { docker compose -f deploy/compose.yaml "$@"; }
else
    compose() { docker-compose --ansi never -f deploy/compose.yaml "$@"; }
fi

if [ -n "${QUORATE:-}" ]; then
    quorate() { "$QUORATE" "$@"; }
else
    quorate() {
        docker run --rm --network host --env QUORATE_ENDPOINT --no-healthcheck \
            "${QUORATE_IMAGE:-quorate:local}" "$@"
    }
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf '%s  %s\n' "$(date +%T)" "$*"; }
fail() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}

# The number of a field in the JSON on standard input; 0 if it is not there.
number() { # field
    local value
    value=$(sed -n "s/.*\"$1\":\([0-9][0-9]*\).*/\1/p" | head -n 1)
    echo "${value:-0}"
}

container_of() { # service
    compose ps -q "$1" | head -n 1
}

wait_until_healthy() {
    local service id state deadline=$((SECONDS + 90))
    for service in quorate-1 quorate-2 quorate-3; do
        while :; do
            id=$(container_of "$service")
            state=$(docker inspect --format '{{if .State.Health}}{{.State.Health.Status}}{{end}}' "$id" 2>/dev/null || true)
            [ "$state" = healthy ] && break
            [ $SECONDS -lt $deadline ] || fail "$service is '${state:-absent}' after 90 s: docker logs $id"
            sleep 0.5
        done
    done
}

leader() { # the address that leads
    local address deadline=$((SECONDS + 30))
    while :; do
        address=$(quorate cluster status --json 2>/dev/null | sed -n 's/.*"leader":"\([^"]*\)".*/\1/p' | head -n 1)
        [ -n "$address" ] && break
        [ $SECONDS -lt $deadline ] || fail "nobody leads after 30 s"
        sleep 0.2
    done
    echo "$address"
}

publish() { # count, file for the result
    # A part that failed is told in the result; what counts is what was confirmed.
    quorate publish "$queue" --count "$1" --size 1KiB --timeout 30s --json >"$2" || true
}

drain() { # file for the deliveries
    quorate consume "$queue" --until-empty --json --timeout 30s >"$1"
}

ids_in() { # file: how many different messages
    grep -o '"message_id":"[^"]*"' "$1" | sort -u | wc -l
}

# ------------------------------------------------------------------ a killed leader

say "waiting for three healthy nodes"
wait_until_healthy
quorate queue declare "$queue" --max-deliveries 0

say "publishing $before"
publish $before "$work/before"

leading=$(leader)
case $leading in
    *:7400) service=quorate-1 ;;
    *:7410) service=quorate-2 ;;
    *:7420) service=quorate-3 ;;
    *) fail "the leader is at $leading, which is none of the compose file's" ;;
esac
killed=$(container_of $service)

say "publishing $while_killed, and killing $service, which leads"
publish $while_killed "$work/while" &
publishing=$!
until [ "$(quorate queue show "$queue" --json | number published)" -gt $before ]; do
    kill -0 $publishing 2>/dev/null || break
    sleep 0.1
done
docker kill --signal KILL "$killed" >/dev/null
kill -0 $publishing 2>/dev/null || say "(all was published before the kill: this machine is fast)"
wait $publishing
say "$(leader) leads; publishing $after with two nodes"
publish $after "$work/after"

# `docker kill` counts as stopped by hand: the restart policy leaves it alone.
docker start "$killed" >/dev/null
wait_until_healthy

say "draining"
drain "$work/drained"

confirmed=0
unknown=0
for part in before while after; do
    confirmed=$((confirmed + $(number published <"$work/$part")))
    unknown=$((unknown + $(number unknown <"$work/$part")))
done
came=$(ids_in "$work/drained")
deliveries=$(wc -l <"$work/drained")
left=$(quorate queue show "$queue" --json)

printf '\n'
printf '  confirmed  %7d\n' "$confirmed"
printf '  unknown    %7d   (may have been applied)\n' "$unknown"
printf '  came out   %7d   in %d deliveries\n' "$came" "$deliveries"
printf '  left over  %7d\n\n' $(($(number ready <<<"$left") + $(number leased <<<"$left") + $(number dead <<<"$left")))

[ "$confirmed" -ge $((before + after)) ] || fail "only $confirmed of $((before + while_killed + after)) were confirmed"
[ "$came" -ge "$confirmed" ] || fail "$((confirmed - came)) confirmed messages are lost"
[ "$came" -le $((confirmed + unknown)) ] || fail "$((came - confirmed - unknown)) messages came that nobody published"

# ------------------------------------------------------------------ down and up

if [ "${1:-}" = --restart ]; then
    say "publishing $before, then down and up again with the volumes"
    publish $before "$work/kept"
    cluster=$(quorate cluster status --json | sed -n 's/.*"cluster_id":"\([^"]*\)".*/\1/p')
    compose down
    compose up -d
    wait_until_healthy
    [ "$(quorate cluster status --json | sed -n 's/.*"cluster_id":"\([^"]*\)".*/\1/p')" = "$cluster" ] ||
        fail "another cluster came up: were the volumes kept?"
    drain "$work/drained"
    confirmed=$(number published <"$work/kept")
    came=$(ids_in "$work/drained")
    say "$confirmed confirmed before, $came came out after"
    [ "$came" -ge "$confirmed" ] || fail "$((confirmed - came)) confirmed messages are lost"
fi

quorate queue delete "$queue" >/dev/null
say "nothing was lost"
