#!/usr/bin/env bash
# go.opentelemetry.io/otel v1.47.0, attribute.NewSet.
# NewSet(kvs...) sorts the caller's slice in place: attributes that were positional change places, and two goroutines that
# build sets from one shared slice race.
# A good guess: a Set is an immutable copy and its input stays as it was.
# Seen: "route=/cart method=GET" has become "method=GET route=/cart".
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export GOFLAGS='-modcacherw -trimpath' GOPATH="$work/go" GOWORK=off

cat >go.mod <<'MOD'
module finding
go 1.25
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"

	"go.opentelemetry.io/otel/attribute"
)

func main() {
	kvs := []attribute.KeyValue{attribute.String("route", "/cart"), attribute.String("method", "GET")}
	show := func(when string) {
		fmt.Printf("%s: %s=%s %s=%s\n", when, kvs[0].Key, kvs[0].Value.AsString(), kvs[1].Key, kvs[1].Value.AsString())
	}
	show("before")
	attribute.NewSet(kvs...)
	show("after")
}
GO
go get go.opentelemetry.io/otel@v1.47.0 2>/dev/null
got=$(go run .)

expected='before: route=/cart method=GET
after: method=GET route=/cart'
diff <(echo "$expected") <(echo "$got") || { echo "changed: the slice given to attribute.NewSet"; exit 1; }
echo "ok: attribute.NewSet sorts its caller's slice"
