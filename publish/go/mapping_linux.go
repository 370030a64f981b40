package otelctx

import (
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// The header, OTEP 4719: offsets in bytes, in the byte order of the machine.
const (
	signature       = "OTEL_CTX"
	version         = 2
	versionOffset   = 8
	sizeOffset      = 12
	timestampOffset = 16
	addressOffset   = 24
)

const (
	// Flags of linux/memfd.h; the last one since Linux 6.3.
	mfdCloexec      = 1
	mfdAllowSealing = 2
	mfdNoexecSeal   = 8
	// linux/mman.h.
	madvDontFork = 10
	// linux/prctl.h, since Linux 5.17.
	prSetVMA         = 0x53564d41
	prSetVMAAnonName = 0
	// linux/time.h.
	clockBootTime = 7
)

// mappingName is the name of the mapping, with the NUL that ends strings for the kernel.
var mappingName = [...]byte{'O', 'T', 'E', 'L', '_', 'C', 'T', 'X', 0}

// mapping starts with the header.
type mapping struct {
	bytes []byte
	// nameless is the error of memfd_create, if the mapping is anonymous and has no name yet.
	nameless error
}

// newMapping creates a mapping of zeroes that forked children do not inherit.
func newMapping() (*mapping, error) {
	mapping := new(mapping)
	file, err := memfd()
	if err != nil {
		mapping.nameless = err
		mapping.bytes, err = mapPage(-1, syscall.MAP_ANON)
	} else {
		mapping.bytes, err = mapFile(file)
	}
	if err != nil {
		return nil, err
	}
	if err := syscall.Madvise(mapping.bytes, madvDontFork); err != nil {
		// Report the first failure.
		_ = mapping.withdraw()
		return nil, &SystemError{"madvise(MADV_DONTFORK)", err}
	}
	copy(mapping.bytes, signature)
	return mapping, nil
}

// store makes a payload visible, replacing a previous one.
//
// Each store of sync/atomic comes after all earlier ones in memory, also of other goroutines and of plain ones, so that it is
// the barrier that the OTEP requires.
func (m *mapping) store(payload []byte, timestamp uint64) {
	published := (*uint64)(unsafe.Pointer(&m.bytes[timestampOffset]))
	atomic.StoreUint64(published, 0)
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&m.bytes[versionOffset])), version)
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&m.bytes[sizeOffset])), uint32(len(payload)))
	address := uint64(uintptr(unsafe.Pointer(&payload[0])))
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&m.bytes[addressOffset])), address)
	atomic.StoreUint64(published, timestamp)
}

// name names the mapping. A reader that observes prctl notices updates by this call, so it is made always.
//
// It fails if the mapping has no name at all. (A memfd has one, and an earlier name is kept if a sandbox denies naming it again.)
func (m *mapping) name() error {
	_, _, errno := syscall.Syscall6(syscall.SYS_PRCTL, prSetVMA, prSetVMAAnonName, uintptr(unsafe.Pointer(&m.bytes[0])),
		uintptr(len(m.bytes)), uintptr(unsafe.Pointer(&mappingName[0])), 0)
	if errno != 0 && m.nameless != nil {
		return &InvisibleError{m.nameless, errno}
	}
	m.nameless = nil
	return nil
}

// withdraw marks the mapping as empty for readers, and unmaps it.
func (m *mapping) withdraw() error {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&m.bytes[timestampOffset])), 0)
	if err := syscall.Munmap(m.bytes); err != nil {
		return &SystemError{"munmap", err}
	}
	return nil
}

// memfd returns a sealable memfd.
func memfd() (int, error) {
	number := callNumbers().memfdCreate
	if number == 0 {
		return 0, syscall.ENOSYS
	}
	create := func(flags uintptr) (int, syscall.Errno) {
		file, _, errno := syscall.Syscall(number, uintptr(unsafe.Pointer(&mappingName[0])), flags, 0)
		return int(file), errno
	}
	file, errno := create(mfdCloexec | mfdAllowSealing | mfdNoexecSeal)
	if errno != 0 {
		// Linux before 6.3 does not support the last flag.
		file, errno = create(mfdCloexec | mfdAllowSealing)
	}
	if errno != 0 {
		return 0, errno
	}
	return file, nil
}

// mapFile grows the file to one page, maps it, and closes it.
func mapFile(file int) ([]byte, error) {
	defer syscall.Close(file)
	if err := syscall.Ftruncate(file, int64(os.Getpagesize())); err != nil {
		return nil, &SystemError{"ftruncate", err}
	}
	return mapPage(file, 0)
}

func mapPage(file, flags int) ([]byte, error) {
	bytes, err := syscall.Mmap(file, 0, os.Getpagesize(), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|flags)
	if err != nil {
		return nil, &SystemError{"mmap", err}
	}
	return bytes, nil
}

// bootTime returns nanoseconds of CLOCK_BOOTTIME; 0 if there is no such clock: timestamps differ all the same.
func bootTime() uint64 {
	var time syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBootTime, uintptr(unsafe.Pointer(&time)), 0)
	if errno != 0 {
		return 0
	}
	return uint64(time.Nano())
}
