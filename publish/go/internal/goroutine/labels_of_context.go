//go:build !gc || otelctx_nolinkname

// Package goroutine stands in for one that needs functions of the runtime.
package goroutine

import (
	"context"
	"runtime/pprof"
)

// Exact says whether labels that were saved are those of the goroutine, rather than those of a context.
const Exact = false

// Saved has the labels of a context.
type Saved struct {
	context context.Context
}

// Save returns the labels of a context.
func Save(ctx context.Context) Saved { return Saved{ctx} }

// Restore sets the labels of the calling goroutine.
func (s Saved) Restore() { pprof.SetGoroutineLabels(s.context) }
