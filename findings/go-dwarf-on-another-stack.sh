#!/usr/bin/env bash
# Go 1.26.8, linux/amd64: DWARF's call frame information of runtime.systemstack, which calls a function on the thread's stack.
# Behind the instruction that loads the other stack's address into RSP, the frame's address is still "RSP + 16", also at the
# call: a debugger that follows it reads the other stack. The frame pointer, which the function has set, leads to the caller.
# A good guess: the compiler's tables hold at each call, as they do in gcc's and clang's code, or there is no entry.
# Seen: rsp+16 at the call, behind a load of RSP; and a frame pointer that is set at the start.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export GOTOOLCHAIN=go1.26.8 GOFLAGS='-modcacherw -trimpath' GOPATH="$work/go" GOWORK=off GOARCH=amd64

cat >go.mod <<'MOD'
module finding
go 1.26
MOD
cat >main.go <<'GO'
package main

func main() {}
GO
go build -ldflags=-compressdwarf=false -o program .

go tool objdump -s '^runtime\.systemstack\.abi0$' program |
    awk '$2 ~ /^0x/ {address = $2; sub(/^[^\t ]*[\t ]+[^\t ]+[\t ]+[^\t ]+[\t ]+/, ""); print address, $0}' >code
start=$(awk 'NR == 1 {print $1}' code)
# The load of RSP from memory, and the first indirect call behind it.
load=$(awk '/MOVQ .*\(DX\), SP/ {print $1; exit}' code)
call=$(awk -v load="$load" '$1 == load {behind = 1} behind && /CALL DI/ {print $1; exit}' code)
grep -q 'MOVQ SP, BP' code

# The last row at or below the call.
cfa=$(LC_ALL=C readelf --debug-dump=frames-interp program 2>/dev/null | python3 -c '
import re, sys
start, call = (int(text, 16) for text in sys.argv[1:])
inside, found = False, None
for line in sys.stdin:
    entry = re.search(r" FDE .* pc=([0-9a-f]+)\.\.", line)
    if entry or not line.strip():
        inside = bool(entry) and int(entry[1], 16) == start
    row = re.match(r"([0-9a-f]{16}) (\S+)", line)
    if inside and row and int(row[1], 16) <= call:
        found = row[2]
print(found)' "$start" "$call")
line="at the call at $call, behind the load of RSP at $load, the frame is at $cfa"
if [ "$cfa" != rsp+16 ]; then
    echo "changed: $line"
    exit 1
fi
echo "ok: $line"
