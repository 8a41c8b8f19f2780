#!/bin/sh
# Stands in for systemctl where no systemd can run: it knows what the packages' scripts ask for, and does it with the
# commands of the unit.
set -eu
unit=/usr/lib/systemd/system/weir.service
status=http://127.0.0.1:7085

of_unit() { sed -n "s/^$1=//p" "$unit"; }
main() { curl -sf "$status/status" | sed -n 's/^ *"pid": \([0-9]*\).*/\1/p'; }

case "$*" in
daemon-reload) ;;
"show --property=ActiveState --value weir.service")
    # A test says if the unit is in a state that lasts only for a moment.
    if curl -sf -o /dev/null "$status/livez"; then
        cat /run/weir.state 2>/dev/null || echo active
    else
        echo inactive
    fi
    ;;
"enable --now weir.service")
    install -d -o weir -g weir -m 0750 /var/lib/weir /var/log/weir
    as_user="setpriv --reuid=weir --regid=weir --clear-groups"
    setsid $as_user $(of_unit ExecStart) </dev/null >/run/weir.log 2>&1 &
    until curl -sf -o /dev/null "$status/readyz"; do sleep 0.1; done
    ;;
"kill --signal=USR2 --kill-who=main weir.service")
    kill -s USR2 "$(main)"
    ;;
"disable --now weir.service")
    process=$(main)
    kill -s TERM "$process"
    while kill -0 "$process" 2>/dev/null; do sleep 0.1; done
    ;;
*)
    echo "systemctl $*: no package asks for that" >&2
    exit 1
    ;;
esac
