package otelctx

import (
	"errors"
	"fmt"
)

// Reasons why nothing was published or updated, for [errors.Is].
var (
	// ErrAlreadyPublished is returned by [Publish] if this package has published a process context.
	ErrAlreadyPublished = errors.New("a process context is already published, and a process has only one: change it with " +
		"otelctx.Modify, or replace it with otelctx.Update")
	// ErrNotPublished is returned by [Update] and [Modify] if this package has no process context published.
	ErrNotPublished = errors.New("otelctx has no process context published in this process; publish one")
	// ErrEmpty means that there is nothing to publish.
	ErrEmpty = errors.New("the process context is empty; set an attribute")

	// ErrEmptyKey is the reason of an [AttributeError].
	ErrEmptyKey = errors.New("an attribute has an empty key, which readers reject; give it a name")
	// ErrReservedKey is the reason of an [AttributeError].
	ErrReservedKey = errors.New("it describes the contexts of threads and is set by the publisher itself; use another name")
	// ErrNotUTF8 is the reason of an [AttributeError].
	ErrNotUTF8 = errors.New("a text is not UTF-8, which readers reject; use otelctx.Bytes, or strings.ToValidUTF8")
	// ErrTooDeep is the reason of an [AttributeError].
	ErrTooDeep = fmt.Errorf("a value is nested deeper than %d lists and maps, which readers reject", maxDepth)
	// ErrTooManyValues is the reason of an [AttributeError].
	ErrTooManyValues = fmt.Errorf("there are more than %d values, which readers reject; publish fewer", maxValues)
)

// AttributeError says which attribute readers would reject.
type AttributeError struct {
	// Key is the attribute's name.
	Key string
	// Reason is one of ErrEmptyKey, ErrReservedKey, ErrNotUTF8, ErrTooDeep and ErrTooManyValues.
	Reason error
}

func (e *AttributeError) Error() string {
	if e.Key == "" {
		return e.Reason.Error()
	}
	return fmt.Sprintf("the attribute %q: %v", e.Key, e.Reason)
}

// Unwrap returns the reason.
func (e *AttributeError) Unwrap() error { return e.Reason }

// TooLargeError means that the encoded process context is larger than allowed.
type TooLargeError struct {
	// Size and Limit are in bytes.
	Size, Limit int
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the process context takes %d bytes and at most %d are allowed; readers may refuse more: publish "+
		"fewer attributes, or raise the limit with WithMaxPayloadSize", e.Size, e.Limit)
}

// ForeignError means that another publisher in this process has published a process context.
type ForeignError struct {
	// Mapping is the line of /proc/PID/maps with its mapping.
	Mapping string
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("another publisher in this process has published a process context (%q), and a process has only one: "+
		"remove one publisher", e.Mapping)
}

// SystemError is the failure of a system call.
type SystemError struct {
	// Call is the name of the call.
	Call string
	// Err is a syscall.Errno.
	Err error
}

func (e *SystemError) Error() string {
	return fmt.Sprintf("the process context was not published: %s: %v", e.Call, e.Err)
}

// Unwrap returns Err.
func (e *SystemError) Unwrap() error { return e.Err }

// InvisibleError means that the mapping would have no name, so that no reader could find the context.
type InvisibleError struct {
	// Memfd is the error of memfd_create, Naming that of prctl(PR_SET_VMA_ANON_NAME). Both are a syscall.Errno.
	Memfd, Naming error
}

func (e *InvisibleError) Error() string {
	return fmt.Sprintf("the process context was not published, because no reader could find it: memfd_create: %v; "+
		"prctl(PR_SET_VMA_ANON_NAME): %v. Allow memfd_create, or prctl on a kernel with CONFIG_ANON_VMA_NAME", e.Memfd, e.Naming)
}

// Unwrap returns both errors.
func (e *InvisibleError) Unwrap() []error { return []error{e.Memfd, e.Naming} }

// MalformedVariableError says that OTEL_RESOURCE_ATTRIBUTES is ignored.
type MalformedVariableError struct{}

func (*MalformedVariableError) Error() string {
	return fmt.Sprintf("%s is ignored: it is no list of at most %d key=value pairs separated by commas", resourceVariable, maxPairs)
}
