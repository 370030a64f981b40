#!/bin/sh
# Links for an older glibc. zig exports all symbols or none.
for argument; do
    shift
    case "$argument" in
    -Wl,--export-dynamic-symbol=*) argument=-rdynamic ;;
    esac
    set -- "$@" "$argument"
done
exec 'ZIGBUILD' zig cc -- -target TARGET "$@"
