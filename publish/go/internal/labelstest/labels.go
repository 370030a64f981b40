// Package labelstest tells tests what labels a goroutine has, as the goroutine profile shows them.
package labelstest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
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
