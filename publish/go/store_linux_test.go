package otelctx

import (
	"sync/atomic"
	"testing"
	"unsafe"
)

// A reader that reads all fields between two equal timestamps has those of one payload.
func TestFieldsOfTwoUpdatesAreNotMixed(t *testing.T) {
	mapping, err := newMapping()
	if err != nil {
		t.Fatal(err)
	}
	short, long := make([]byte, 1), make([]byte, 1000)
	const updates = 500_000
	done := make(chan bool)
	go func() {
		defer close(done)
		for timestamp := uint64(1); timestamp <= updates; timestamp += 2 {
			mapping.store(short, timestamp)
			mapping.store(long, timestamp+1)
		}
	}()
	field := func(offset int) uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(&mapping.bytes[offset]))) }
	defer func() {
		<-done
		mapping.withdraw()
	}()
	lengths := map[uint64]uint32{
		uint64(uintptr(unsafe.Pointer(&short[0]))): 1,
		uint64(uintptr(unsafe.Pointer(&long[0]))):  1000,
	}
	read := 0
	for {
		before := field(timestampOffset)
		size := atomic.LoadUint32((*uint32)(unsafe.Pointer(&mapping.bytes[sizeOffset])))
		address := field(addressOffset)
		if before == 0 || before != field(timestampOffset) {
			continue
		}
		read++
		if lengths[address] != size {
			t.Fatalf("%d bytes at %#x in update %d", size, address, before)
		}
		if before == updates {
			t.Logf("read %d times during %d updates", read, updates)
			return
		}
	}
}
