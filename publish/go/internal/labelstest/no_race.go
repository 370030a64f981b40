//go:build !race

package labelstest

// Race says whether the race detector is on.
const Race = false
