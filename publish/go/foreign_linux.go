package otelctx

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// maxReads is the maximum number of reads of a context that is being updated, one millisecond apart.
const maxReads = 5

// mappingPrefixes start the name of a process context's mapping in /proc/PID/maps (OTEP 4719, "Reading").
var mappingPrefixes = [...]string{"[anon_shmem:OTEL_CTX]", "[anon:OTEL_CTX]", "/memfd:OTEL_CTX"}

// findForeign returns the line of /proc/PID/maps with a valid context, which is another publisher's: this package has none
// yet. It returns "" if there is none, or if /proc is not mounted, where readers find nothing either.
func findForeign() string {
	// The main thread may have ended, and /proc/self is empty then.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	maps, err := os.Open("/proc/thread-self/maps")
	if err != nil {
		return ""
	}
	defer maps.Close()
	return foreignIn(maps)
}

func foreignIn(maps io.Reader) string {
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		line := lines.Text()
		// Before the name are addresses, permissions, numbers and spaces, without these characters.
		at := strings.IndexAny(line, "/[")
		for _, prefix := range mappingPrefixes {
			if at >= 0 && strings.HasPrefix(line[at:], prefix) && isContext(line) {
				return line
			}
		}
	}
	return ""
}

// isContext returns whether a valid context is where the mapping of a line starts (proc_pid_maps(5)).
func isContext(line string) bool {
	start, _, _ := strings.Cut(line, "-")
	address, err := strconv.ParseUint(start, 16, strconv.IntSize)
	if err != nil {
		return false
	}
	for read := 0; read < maxReads; read++ {
		header, err := readOwn(uintptr(address))
		if errors.Is(err, syscall.EFAULT) {
			// It was unmapped in the meantime.
			return false
		}
		if err != nil {
			// Only a publisher gives a mapping this name.
			return true
		}
		if string(header[:versionOffset]) != signature || nativeUint32(header[versionOffset:]) != version {
			return false
		}
		if binary.LittleEndian.Uint64(header[timestampOffset:]) != 0 {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	// It was withdrawn, but not unmapped.
	return false
}

func nativeUint32(bytes []byte) uint32 {
	return *(*uint32)(unsafe.Pointer(&bytes[0]))
}

// readOwn reads a header in this process through the kernel, because another thread may unmap it.
func readOwn(address uintptr) (header [addressOffset + 8]byte, err error) {
	number := callNumbers().processVMReadv
	if number == 0 {
		return header, syscall.ENOSYS
	}
	local := syscall.Iovec{Base: &header[0]}
	local.SetLen(len(header))
	remote := struct{ base, length uintptr }{address, uintptr(len(header))}
	count, _, errno := syscall.Syscall6(number, uintptr(syscall.Gettid()), uintptr(unsafe.Pointer(&local)), 1,
		uintptr(unsafe.Pointer(&remote)), 1, 0)
	if errno != 0 {
		return header, errno
	}
	if count != uintptr(len(header)) {
		// The rest is not mapped.
		return header, syscall.EFAULT
	}
	return header, nil
}
