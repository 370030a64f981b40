// Package labelstest tells tests what labels a goroutine has, as the goroutine profile shows them.
package labelstest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
)

// one makes the goroutine that waits in Current the only one.
var one sync.Mutex

// Current returns the labels of the calling goroutine; nil if it has none.
//
//go:noinline
func Current() map[string]string {
	one.Lock()
	defer one.Unlock()
	labels := make(chan map[string]string)
	// Go 1.21 does not show the labels of the goroutine that makes the profile.
	go find(labels)
	return <-labels
}

func find(labels chan<- map[string]string) {
	for {
		var profile bytes.Buffer
		if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
			panic(err)
		}
		for _, goroutine := range strings.Split(profile.String(), "\n\n") {
			if strings.Contains(goroutine, "labelstest.Current+") {
				labels <- parse(goroutine)
				return
			}
		}
		// It does not wait yet, and may not be shown where it is.
		runtime.Gosched()
	}
}

func parse(goroutine string) map[string]string {
	for _, line := range strings.Split(goroutine, "\n") {
		text, isFound := strings.CutPrefix(line, "# labels: ")
		if !isFound {
			continue
		}
		labels := make(map[string]string)
		if err := json.Unmarshal([]byte(text), &labels); err != nil {
			panic(fmt.Sprintf("%s: %v", text, err))
		}
		return labels
	}
	return nil
}

// Expect fails the test if the calling goroutine has other labels.
func Expect(t *testing.T, where string, expected map[string]string) {
	t.Helper()
	if found := Current(); !reflect.DeepEqual(found, expected) {
		t.Errorf("%s: the goroutine has the labels %v, not %v", where, found, expected)
	}
}

// Of returns the labels of a span, with more: names and values.
func Of(trace, span fmt.Stringer, more ...string) map[string]string {
	labels := map[string]string{"trace_id": trace.String(), "span_id": span.String()}
	for at := 0; at < len(more); at += 2 {
		labels[more[at]] = more[at+1]
	}
	return labels
}

// InGoroutine runs f in a goroutine without labels.
func InGoroutine(f func()) {
	done := make(chan bool)
	go func() {
		defer close(done)
		pprof.SetGoroutineLabels(context.Background())
		f()
	}()
	<-done
}
