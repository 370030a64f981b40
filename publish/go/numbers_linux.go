package otelctx

import "runtime"

// numbers are those of system calls that are newer than the ones of package syscall.
type numbers struct {
	memfdCreate, processVMReadv uintptr
}

// callNumbers returns the numbers of this architecture (asm/unistd.h); zeroes for one that is not known.
func callNumbers() numbers {
	switch runtime.GOARCH {
	case "amd64":
		return numbers{319, 310}
	case "arm64", "riscv64", "loong64":
		return numbers{279, 270}
	case "386":
		return numbers{356, 347}
	case "arm":
		return numbers{385, 376}
	case "ppc64", "ppc64le":
		return numbers{360, 351}
	case "s390x":
		return numbers{350, 340}
	case "mips", "mipsle":
		return numbers{4354, 4345}
	case "mips64", "mips64le":
		return numbers{5314, 5304}
	}
	return numbers{}
}
