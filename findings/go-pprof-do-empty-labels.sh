#!/usr/bin/env bash
# Go 1.26.8, runtime/pprof.
# pprof.Do sets the goroutine's labels from the context it is given, both on entry and when it returns. A library that calls
# it with context.Background() wipes the caller's labels, and the caller runs on without any.
# A good guess: Do adds its labels to the goroutine's and restores the earlier ones.
# Seen: {"request":"7"}, then {"query":"q"}, then no labels although the outer Do has not returned.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export GOTOOLCHAIN=go1.26.8 GOFLAGS='-modcacherw -trimpath' GOPATH="$work/go" GOWORK=off

cat >go.mod <<'MOD'
module finding
go 1.26
MOD
cat >main.go <<'GO'
package main

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"runtime/pprof"
)

var labels = regexp.MustCompile(`# labels: (.*)`)

// show prints the labels of the only goroutine that has any.
func show(where string) {
	var b bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&b, 1)
	found := "none"
	if m := labels.FindStringSubmatch(b.String()); m != nil {
		found = m[1]
	}
	fmt.Printf("%s: %s\n", where, found)
}

func library(ctx context.Context) {
	pprof.Do(ctx, pprof.Labels("query", "q"), func(context.Context) { show("  in the library") })
}

func main() {
	pprof.Do(context.Background(), pprof.Labels("request", "7"), func(ctx context.Context) {
		show("request")
		library(ctx)
		show("after a library that passes the context on")
		library(context.Background())
		show("after a library that does not")
	})
}
GO
got=$(go run .)

expected='request: {"request":"7"}
  in the library: {"query":"q", "request":"7"}
after a library that passes the context on: {"request":"7"}
  in the library: {"query":"q"}
after a library that does not: none'
diff <(echo "$expected") <(echo "$got") || { echo "changed: labels after pprof.Do"; exit 1; }
echo "ok: pprof.Do with context.Background() leaves the calling goroutine without its labels"
