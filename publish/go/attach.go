package otelctx

import (
	"context"
	"encoding/binary"
	"runtime/pprof"
	"unsafe"

	"repository.invalid/publish/go/internal/goroutine"
)

// Labels that readers take for the IDs of a trace and a span, as 32 and 16 hexadecimal digits.
const (
	TraceIDLabel = "trace_id"
	SpanIDLabel  = "span_id"
)

// TraceID is the ID of a trace, in W3C's order. Zeroes are none.
type TraceID [16]byte

// SpanID is the ID of a span. Zeroes are none.
type SpanID [8]byte

// Do calls f while the calling goroutine has the labels of the context, the two IDs, and further labels: names and values in
// turn. The context that f gets has them, too. Goroutines that f starts inherit them.
//
// Afterwards, also after a panic, the goroutine has the labels that it had before. (After [pprof.Do], it has those of ctx.)
//
// If an ID is zero, neither is set. Do panics if a label has no value.
func Do(ctx context.Context, trace TraceID, span SpanID, f func(context.Context), labels ...string) {
	ctx, attached := Attach(ctx, trace, span, labels...)
	defer attached.Detach()
	f(ctx)
}

// Attached has the labels of a goroutine from before [Attach].
type Attached struct {
	before goroutine.Saved
}

// Attach does what [Do] does before its function, for code that is not in a function of its own. Call Detach on the same
// goroutine, with defer, so that a panic does not leave the labels attached.
func Attach(ctx context.Context, trace TraceID, span SpanID, labels ...string) (context.Context, Attached) {
	attached := Attached{goroutine.Save(ctx)}
	if trace == (TraceID{}) || span == (SpanID{}) {
		return AddLabels(ctx, labels...), attached
	}
	digits := hexDigits(trace, span)
	traceDigits, spanDigits := digits[:2*len(trace)], digits[2*len(trace):]
	if len(labels) == 0 {
		return setLabels(ctx, pprof.Labels(SpanIDLabel, spanDigits, TraceIDLabel, traceDigits)), attached
	}
	var space [maxSorted]string
	sorted := append(space[:0], SpanIDLabel, spanDigits, TraceIDLabel, traceDigits)
	return addLabels(ctx, append(sorted, labels...)), attached
}

// Detach sets the labels that the goroutine had before [Attach].
func (a Attached) Detach() { a.before.Restore() }

// AddLabels adds labels to those of a context, and sets them for the calling goroutine: for what becomes known late, within
// [Do] or [Attach], which restore the earlier labels. It panics if a label has no value.
func AddLabels(ctx context.Context, labels ...string) context.Context {
	var space [maxSorted]string
	return addLabels(ctx, append(space[:0], labels...))
}

// maxSorted is the number of names and values that need no memory of their own while they are sorted.
const maxSorted = 16

// addLabels sorts the labels in place: runtime/pprof (since Go 1.24) then needs one allocation less.
func addLabels(ctx context.Context, labels []string) context.Context {
	for end := 2; end+1 < len(labels); end += 2 {
		for at := end; at > 0 && labels[at] < labels[at-2]; at -= 2 {
			labels[at], labels[at-2] = labels[at-2], labels[at]
			labels[at+1], labels[at-1] = labels[at-1], labels[at+1]
		}
	}
	return setLabels(ctx, pprof.Labels(labels...))
}

func setLabels(ctx context.Context, labels pprof.LabelSet) context.Context {
	ctx = pprof.WithLabels(ctx, labels)
	pprof.SetGoroutineLabels(ctx)
	return ctx
}

// hexDigits returns the digits of both IDs, in one allocation. It takes 10 ns less than encoding/hex does for them.
func hexDigits(trace TraceID, span SpanID) string {
	const low, ones = 0x0f0f0f0f0f0f0f0f, 0x0101010101010101
	var bytes [len(trace) + len(span)]byte
	copy(bytes[:], trace[:])
	copy(bytes[len(trace):], span[:])
	digits := make([]byte, 2*len(bytes))
	for at := 0; at < len(bytes); at += 4 {
		// Each half of a byte into a byte of its own.
		halves := uint64(binary.BigEndian.Uint32(bytes[at:]))
		halves = (halves | halves<<16) & 0x0000ffff0000ffff
		halves = (halves | halves<<8) & 0x00ff00ff00ff00ff
		halves = (halves | halves<<4) & low
		// 10 + 6 is the first number with the bit 4.
		letters := (halves + 6*ones) >> 4 & ones
		binary.BigEndian.PutUint64(digits[2*at:], halves+'0'*ones+letters*('a'-'0'-10))
	}
	// Nothing else refers to the bytes.
	return unsafe.String(&digits[0], len(digits))
}
