#!/usr/bin/env bash
# go.opentelemetry.io/collector/pdata/pprofile v0.165.0.
# Moving ResourceProfiles from one Profiles to another with MoveAndAppendTo, as batching code does for traces and metrics,
# keeps the indices but not the dictionary they point into: a profile takes on the names of its new neighbours, silently.
# Profiles.MergeTo translates them.
# A good guess: the generated slice methods work alike for all signals, or fail.
# Seen: a "wall" profile that was moved beside a "cpu" profile reads "cpu".
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

	"go.opentelemetry.io/collector/pdata/pprofile"
)

func profiles(sampleType string) pprofile.Profiles {
	p := pprofile.NewProfiles()
	p.Dictionary().StringTable().Append("", sampleType)
	p.ResourceProfiles().AppendEmpty().ScopeProfiles().AppendEmpty().Profiles().AppendEmpty().SampleType().SetTypeStrindex(1)
	return p
}

func show(how string, p pprofile.Profiles) {
	for i := range p.ResourceProfiles().Len() {
		t := p.ResourceProfiles().At(i).ScopeProfiles().At(0).Profiles().At(0).SampleType()
		fmt.Printf("%s: %s\n", how, p.Dictionary().StringTable().At(int(t.TypeStrindex())))
	}
}

func main() {
	a, b := profiles("cpu"), profiles("wall")
	b.ResourceProfiles().MoveAndAppendTo(a.ResourceProfiles())
	show("moved", a)

	a, b = profiles("cpu"), profiles("wall")
	if err := b.MergeTo(a); err != nil {
		panic(err)
	}
	show("merged", a)
}
GO
go get go.opentelemetry.io/collector/pdata/pprofile@v0.165.0 2>/dev/null
got=$(go run .)

expected='moved: cpu
moved: cpu
merged: cpu
merged: wall'
diff <(echo "$expected") <(echo "$got") || { echo "changed: names of moved or merged profiles"; exit 1; }
echo "ok: MoveAndAppendTo turns a wall profile into a cpu profile, MergeTo does not"
