package otelctx

import (
	"bufio"
	"encoding/binary"
	"errors"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"
)

// mapped returns the lines of this process's maps with a process context's name.
func mapped(t *testing.T) (found []string) {
	t.Helper()
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "OTEL_CTX") {
			found = append(found, lines.Text())
		}
	}
	return found
}

// published returns the payload as a reader finds it, in this process.
func published(t *testing.T) []byte {
	t.Helper()
	lines := mapped(t)
	if len(lines) != 1 {
		t.Fatalf("mappings: %v", lines)
	}
	header := owner.current.mapping.bytes
	if string(header[:8]) != "OTEL_CTX" || nativeUint32(header[8:]) != 2 || binary.NativeEndian.Uint64(header[16:]) != owner.timestamp {
		t.Fatalf("header: %x", header[:32])
	}
	size := nativeUint32(header[12:])
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&header[24])), size)
}

func mustPublish(t *testing.T, context ProcessContext) {
	t.Helper()
	if err := Publish(context); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Unpublish(); err != nil {
			t.Error(err)
		}
		if lines := mapped(t); lines != nil {
			t.Errorf("still mapped: %v", lines)
		}
	})
}

var shop = ProcessContext{}.WithServiceName("shop")

func TestAContextIsPublishedUpdatedAndWithdrawn(t *testing.T) {
	if err := Update(shop); err != ErrNotPublished {
		t.Error(err)
	}
	if err := Modify(func(c ProcessContext) ProcessContext { t.Error("called"); return c }); err != ErrNotPublished {
		t.Error(err)
	}
	mustPublish(t, shop)
	line := mapped(t)[0]
	if !regexp.MustCompile(`^[0-9a-f]+-[0-9a-f]+ rw-p .*OTEL_CTX`).MatchString(line) {
		t.Error(line)
	}
	expect := func(resource ...Attribute) {
		t.Helper()
		schema := []Attribute{String("threadlocal.schema_version", "go_pprof_labels_v1")}
		if found, expected := published(t), encodePayload(resource, schema); !reflect.DeepEqual(found, expected) {
			t.Errorf("%q, not %q", found, expected)
		}
	}
	expect(String("service.name", "shop"))
	if err := Publish(shop); err != ErrAlreadyPublished {
		t.Error(err)
	}
	before := owner.timestamp
	if err := Update(shop.With(Int("n", 2))); err != nil || owner.timestamp <= before {
		t.Error(err, before, owner.timestamp)
	}
	expect(String("service.name", "shop"), Int("n", 2))
	if err := Modify(func(c ProcessContext) ProcessContext { return c.With(Bool("b", true)).Without("n") }); err != nil {
		t.Error(err)
	}
	expect(String("service.name", "shop"), Bool("b", true))
	// What fails changes nothing.
	if err := Update(shop.With(String("", ""))); !errors.Is(err, ErrEmptyKey) {
		t.Error(err)
	}
	expect(String("service.name", "shop"), Bool("b", true))
	if mapped(t)[0] != line {
		t.Error("an update has another mapping")
	}
	if err := Unpublish(); err != nil || mapped(t) != nil {
		t.Error(err, mapped(t))
	}
	if err := Unpublish(); err != nil {
		t.Error(err)
	}
}

func TestAnInstanceIDIsKeptThroughUpdates(t *testing.T) {
	id := func() string {
		uuid := regexp.MustCompile(`service\.instance\.id\x12.\x0a.([0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})`)
		found := uuid.FindSubmatch(published(t))
		if found == nil {
			t.Fatalf("%q", published(t))
		}
		return string(found[1])
	}
	context := Detection{InstanceID: true}.Detect()
	mustPublish(t, context)
	first := id()
	if err := Update(context.WithServiceName("shop")); err != nil || id() != first {
		t.Error(err, id(), first)
	}
	if err := Unpublish(); err != nil {
		t.Error(err)
	}
	mustPublish(t, context)
	if id() == first {
		t.Error("another publication has the same ID")
	}
	if err := Update(context.With(String("service.instance.id", "own"))); err != nil || !strings.Contains(string(published(t)), "own") {
		t.Errorf("%v: %q", err, published(t))
	}
}

func TestChangesOfManyGoroutinesAreKept(t *testing.T) {
	mustPublish(t, shop)
	const goroutines, changes = 8, 50
	var group sync.WaitGroup
	for number := 0; number < goroutines; number++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for change := 0; change < changes; change++ {
				err := Modify(func(c ProcessContext) ProcessContext {
					count, _ := c.find("count")
					return c.With(Int("count", int(count.number)+1))
				})
				if err != nil {
					t.Error(err)
				}
			}
		}()
	}
	group.Wait()
	if count, _ := owner.current.context.find("count"); count.number != goroutines*changes {
		t.Errorf("%d of %d changes are kept", count.number, goroutines*changes)
	}
	if len(owner.current.previous.bytes) == 0 {
		t.Error("the payload before the last update is not kept")
	}
}

// foreign maps a context as another publisher does, with a header that edit may change.
func foreign(t *testing.T, edit func(header []byte)) {
	t.Helper()
	mapping, err := newMapping()
	if err != nil {
		t.Fatal(err)
	}
	mapping.store([]byte("payload"), 1)
	edit(mapping.bytes)
	if err := mapping.name(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mapping.withdraw() })
}

func TestAnotherPublishersContextIsNamed(t *testing.T) {
	for name, edit := range map[string]func([]byte){
		"signature": func(header []byte) { header[0] = 'X' },
		"version":   func(header []byte) { header[8] = 1; header[11] = 1 },
		"timestamp": func(header []byte) { copy(header[16:24], make([]byte, 8)) },
	} {
		t.Run("without a valid "+name, func(t *testing.T) {
			foreign(t, edit)
			if line := findForeign(); line != "" {
				t.Error(line)
			}
		})
	}
	foreign(t, func([]byte) {})
	err := Publish(shop)
	var found *ForeignError
	if !errors.As(err, &found) || found.Mapping != mapped(t)[0] || !strings.Contains(err.Error(), "another publisher") {
		t.Errorf("%v; mapped: %v", err, mapped(t))
	}
	if len(mapped(t)) != 1 {
		t.Errorf("mapped beside the other: %v", mapped(t))
	}
}

func TestMappingsThatLookLikeAContextAreNotFollowed(t *testing.T) {
	for _, line := range []string{
		"1000-2000 rw-p 00000000 00:01 7 /memfd:OTEL_CTX (deleted)",
		"ffffffffffffffffff-1 rw-p 00000000 00:01 7 /memfd:OTEL_CTX (deleted)",
		"no address /memfd:OTEL_CTX",
		"/memfd:OTEL_CTX",
		"7f0000000000-7f0000001000 rw-p 00000000 00:01 7 /tmp/x/memfd:OTEL_CTX",
		"",
	} {
		if found := foreignIn(strings.NewReader(line + "\n")); found != "" {
			t.Error(found)
		}
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	err := error(&InvisibleError{syscall.EPERM, syscall.EINVAL})
	if !errors.Is(err, syscall.EPERM) || !errors.Is(err, syscall.EINVAL) ||
		!strings.Contains(err.Error(), "memfd_create: operation not permitted; prctl(PR_SET_VMA_ANON_NAME): invalid argument. Allow") {
		t.Error(err)
	}
	err = &SystemError{"mmap", syscall.ENOMEM}
	if !errors.Is(err, syscall.ENOMEM) || err.Error() != "the process context was not published: mmap: cannot allocate memory" {
		t.Error(err)
	}
}
