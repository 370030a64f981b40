#!/usr/bin/env bash
# github.com/cilium/ebpf v0.22.0 (Go), with an object compiled by clang for BPF.
# CollectionSpec.Variables has only global symbols: a setting that is "static const volatile", the usual C for a variable of
# one file, lies in .rodata and in the object's BTF, is read by the program, and cannot be found to be set before loading.
# A good guess: Variables are the data sections' variables as BTF lists them.
# Seen: BTF lists "interval" and "limit", Variables only "interval".
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export GOFLAGS='-modcacherw -trimpath' GOPATH="$work/go" GOWORK=off

mkdir bpf
cat >bpf/settings.c <<'C'
const volatile int interval = 5;
static const volatile int limit = 7;
__attribute__((section("socket"), used)) int program(void *ctx) { return interval + limit; }
C
clang -O2 -g -target bpf -c bpf/settings.c -o settings.o
cat >go.mod <<'MOD'
module finding
go 1.25
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

func main() {
	spec, err := ebpf.LoadCollectionSpec("settings.o")
	if err != nil {
		panic(err)
	}
	for _, name := range []string{"interval", "limit"} {
		var v *btf.Var
		fmt.Printf("%s: in BTF %t, in Variables %t\n", name, spec.Types.TypeByName(name, &v) == nil, spec.Variables[name] != nil)
	}
	fmt.Println("bytes of .rodata:", spec.Maps[".rodata"].ValueSize)
}
GO
go get github.com/cilium/ebpf@v0.22.0 2>/dev/null
got=$(go run .)

expected='interval: in BTF true, in Variables true
limit: in BTF true, in Variables false
bytes of .rodata: 8'
diff <(echo "$expected") <(echo "$got") || { echo "changed: variables of a BPF object"; exit 1; }
echo "ok: cilium/ebpf does not offer static variables for setting"
