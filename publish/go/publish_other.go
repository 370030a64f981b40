//go:build !linux

package otelctx

// mapping does nothing: readers of other systems know no process context.
type mapping struct{}

func newMapping() (*mapping, error)   { return new(mapping), nil }
func (*mapping) store([]byte, uint64) {}
func (*mapping) name() error          { return nil }
func (*mapping) withdraw() error      { return nil }
func bootTime() uint64                { return 0 }
func findForeign() string             { return "" }
