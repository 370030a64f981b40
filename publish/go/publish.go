package otelctx

import (
	"crypto/rand"
	"fmt"
	"runtime"
	"sync"
)

// publication is the published context.
type publication struct {
	context ProcessContext
	// instanceID is the random one, if the context asked for one.
	instanceID string
	mapping    *mapping
	payload    payload
	// previous is kept because a reader may have read the header before the last update and reads the payload after it.
	previous payload
}

// payload is memory that the garbage collector neither moves nor frees until it is released: the mapping has its address, where
// the collector does not search.
type payload struct {
	bytes  []byte
	pinner *runtime.Pinner
}

func pinned(bytes []byte) payload {
	pinner := new(runtime.Pinner)
	pinner.Pin(&bytes[0])
	return payload{bytes, pinner}
}

func (p payload) release() {
	if p.pinner != nil {
		p.pinner.Unpin()
	}
}

// owner has the one publication of this process.
var owner struct {
	sync.Mutex
	// current is nil if this package publishes nothing.
	current *publication
	// changes counts publications, updates and withdrawals.
	changes uint64
	// timestamp is that of the last update, in nanoseconds.
	timestamp uint64
}

// Publish publishes a process context, so that other processes can find it, until [Unpublish] or the end of the process.
//
// It fails if a context is published already, by this package or by another publisher; if readers would reject this one; or if
// the kernel denies a system call that makes it visible. Nothing is published then. See [ErrAlreadyPublished], [ForeignError],
// [AttributeError], [ErrEmpty], [TooLargeError], [SystemError] and [InvisibleError].
//
// Children that the process starts do not have the context: [os/exec] executes another program.
func Publish(context ProcessContext) error {
	owner.Lock()
	defer owner.Unlock()
	if owner.current != nil {
		return ErrAlreadyPublished
	}
	id, err := context.identify("")
	if err != nil {
		return err
	}
	encoded, err := context.encodeAs(id)
	if err != nil {
		return err
	}
	if line := findForeign(); line != "" {
		return &ForeignError{line}
	}
	mapping, err := newMapping()
	if err != nil {
		return err
	}
	publication := &publication{mapping: mapping}
	if err := publication.show(context, id, encoded); err != nil {
		// Report the first failure.
		_ = mapping.withdraw()
		publication.release()
		return err
	}
	owner.current = publication
	return nil
}

// Update replaces the published context, including changes by [Modify]. Readers see the old context, the new one, or that it is
// being updated. A random service.instance.id stays.
//
// It fails with [ErrNotPublished] if this package publishes nothing, otherwise as [Publish]; the old context is kept then.
func Update(context ProcessContext) error {
	owner.Lock()
	defer owner.Unlock()
	return update(context)
}

// update needs the lock.
func update(context ProcessContext) error {
	publication := owner.current
	if publication == nil {
		return ErrNotPublished
	}
	id, err := context.identify(publication.instanceID)
	if err != nil {
		return err
	}
	encoded, err := context.encodeAs(id)
	if err != nil {
		return err
	}
	return publication.show(context, id, encoded)
}

// Modify changes the published context: for a library that adds to the application's. If another goroutine changes the context
// at the same time, change is called again, so that no change is lost. It may call functions of this package.
//
// Errors are those of [Update].
func Modify(change func(ProcessContext) ProcessContext) error {
	for {
		owner.Lock()
		publication := owner.current
		if publication == nil {
			owner.Unlock()
			return ErrNotPublished
		}
		context, changes := publication.context, owner.changes
		owner.Unlock()
		changed := change(context)
		owner.Lock()
		if owner.changes == changes {
			defer owner.Unlock()
			return update(changed)
		}
		owner.Unlock()
	}
}

// Unpublish withdraws the published context. It does nothing if this package publishes nothing.
//
// It fails if the mapping cannot be removed. Readers still recognize it as empty.
func Unpublish() error {
	owner.Lock()
	defer owner.Unlock()
	publication := owner.current
	if publication == nil {
		return nil
	}
	owner.current = nil
	owner.changes++
	err := publication.mapping.withdraw()
	publication.release()
	return err
}

// show makes a payload visible.
func (p *publication) show(context ProcessContext, id string, encoded []byte) error {
	next := pinned(encoded)
	owner.timestamp = max(bootTime(), owner.timestamp+1)
	p.mapping.store(next.bytes, owner.timestamp)
	p.previous.release()
	p.previous, p.payload = p.payload, next
	p.context, p.instanceID = context, id
	owner.changes++
	return p.mapping.name()
}

func (p *publication) release() {
	p.payload.release()
	p.previous.release()
}

// identify returns the random instance ID of the context, if it asks for one: the previous one, or a new one.
func (c ProcessContext) identify(previous string) (string, error) {
	if !c.randomInstanceID || previous != "" {
		return previous, nil
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return "", &SystemError{"getrandom", err}
	}
	// RFC 9562, version 4.
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]), nil
}

// encodeAs encodes the context with a random instance ID, unless the program has set its own.
func (c ProcessContext) encodeAs(id string) ([]byte, error) {
	if _, isSet := c.find(instanceID); c.randomInstanceID && !isSet {
		c = c.With(String(instanceID, id))
	}
	return c.encode()
}
