//go:build gc && !otelctx_nolinkname

// Package goroutine reads and restores the profiler labels of the calling goroutine.
//
// Package runtime/pprof sets a goroutine's labels to those of a context, and cannot say which ones it has. So pprof.Do
// restores those of its context: labels that were set otherwise are gone after it. The two functions of the runtime that
// pprof itself uses can do it: the runtime keeps their names and signatures for packages that link to them (go.dev/issue/67401).
// The tag otelctx_nolinkname leaves them out.
package goroutine

import (
	"context"
	"unsafe"
)

// Exact says whether labels that were saved are those of the goroutine, rather than those of a context.
const Exact = true

// Saved has the labels of a goroutine. Two are equal if the same call has set them.
type Saved struct {
	labels unsafe.Pointer
}

// Save returns the labels of the calling goroutine.
func Save(context.Context) Saved { return Saved{getLabels()} }

// Restore sets the labels of the calling goroutine.
func (s Saved) Restore() { setLabels(s.labels) }

//go:linkname getLabels runtime/pprof.runtime_getProfLabel
func getLabels() unsafe.Pointer

//go:linkname setLabels runtime/pprof.runtime_setProfLabel
func setLabels(unsafe.Pointer)
