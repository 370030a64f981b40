#!/usr/bin/env bash
# Go 1.26.8, iter.Pull and context.AfterFunc with the labels of runtime/pprof.
# The sequence behind iter.Pull keeps the labels of the caller of Pull, although it runs only inside next(), as if called.
# A function given to context.AfterFunc has the labels of the goroutine that cancels, not of the one that registered it.
# A good guess: next() is a call, so its samples count for the request that calls it; callbacks belong to their registrant.
# Seen: A, although B and C call next(); "canceller".
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
	"iter"
	"regexp"
	"runtime/pprof"
	"strings"
)

var labels = regexp.MustCompile(`# labels: \{"request":"(.*)"\}`)

// show prints the labels of the goroutine that has the calling function on its stack.
//
//go:noinline
func show(where string) {
	var b bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&b, 1)
	for _, g := range strings.Split(b.String(), "\n\n") {
		if strings.Contains(g, "main.show") {
			found := "none"
			if m := labels.FindStringSubmatch(g); m != nil {
				found = m[1]
			}
			fmt.Printf("%s: %s\n", where, found)
		}
	}
}

func as(request string, f func()) {
	pprof.Do(context.Background(), pprof.Labels("request", request), func(context.Context) { f() })
}

func main() {
	sequence := func(yield func(int) bool) {
		show("sequence, first next() called by B")
		yield(1)
		show("sequence, second next() called by C")
		yield(2)
	}
	var next func() (int, bool)
	var stop func()
	as("A", func() { next, stop = iter.Pull(iter.Seq[int](sequence)) })
	as("B", func() { next() })
	as("C", func() { next() })
	stop()

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan bool)
	as("registrant", func() { context.AfterFunc(ctx, func() { show("AfterFunc"); close(done) }) })
	as("canceller", func() { cancel(); <-done })
}
GO
got=$(go run .)

expected='sequence, first next() called by B: A
sequence, second next() called by C: A
AfterFunc: canceller'
diff <(echo "$expected") <(echo "$got") || { echo "changed: labels of iter.Pull and context.AfterFunc"; exit 1; }
echo "ok: iter.Pull's sequence keeps the labels of Pull's caller, AfterFunc's function those of the canceller"
