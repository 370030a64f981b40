package otelctx

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestPairsAreSplitTrimmedAndDecoded(t *testing.T) {
	for _, case_ := range []struct {
		name, pairs string
		expected    []Attribute
		isMalformed bool
	}{
		{"", " a=1, b = x%2Cy%20z ,,c=p=q", []Attribute{String("a", "1"), String("b", "x,y z"), String("c", "p=q")}, false},
		{"shop", "a=1,service.name=other", []Attribute{String("service.name", "shop"), String("a", "1")}, false},
		{"", "a=1,service.name=other,a=2", []Attribute{String("a", "2"), String("service.name", "other")}, false},
		{"", "plus=a+b", []Attribute{String("plus", "a+b")}, false},
		{"", "", []Attribute{}, false},
		{"shop", "a", []Attribute{String("service.name", "shop")}, true},
		{"shop", "a=1,b", []Attribute{String("service.name", "shop")}, true},
		{"shop", "=1", []Attribute{String("service.name", "shop")}, true},
		{"shop", "a=%4", []Attribute{String("service.name", "shop")}, true},
		{"shop", "a=%zz", []Attribute{String("service.name", "shop")}, true},
		{"shop", "a=%ff", []Attribute{String("service.name", "shop")}, true},
	} {
		found, err := resourceOf(case_.name, case_.pairs)
		if !reflect.DeepEqual(found, case_.expected) || (err != nil) != case_.isMalformed {
			t.Errorf("%q, %q: %v, %v", case_.name, case_.pairs, found, err)
		}
	}
}

func TestTooManyPairsAreMalformed(t *testing.T) {
	list := func(count int) string {
		var list strings.Builder
		for number := 0; number < count; number++ {
			fmt.Fprintf(&list, "%x=%d,", number, number)
		}
		return list.String()
	}
	if found, err := resourceOf("", list(4096)); err != nil || len(found) != 4096 || found[4095].Key != "fff" {
		t.Error(len(found), err)
	}
	if found, err := resourceOf("", list(4097)); err == nil || len(found) != 0 {
		t.Error(len(found), err)
	}
}

func TestDetectionHasWhatItSays(t *testing.T) {
	t.Setenv("OTEL_SERVICE_NAME", "")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	expected := []Attribute{
		String("service.name", "unknown_service:"+filepath.Base(path)),
		String("telemetry.sdk.language", "go"),
		String("telemetry.sdk.name", "otelctx"),
		String("telemetry.sdk.version", Version),
		String("process.executable.name", filepath.Base(path)),
		String("process.executable.path", path),
		Int("process.pid", os.Getpid()),
		String("deployment.environment.name", "test"),
	}
	if found := Detect().resource; !reflect.DeepEqual(found, expected) {
		t.Error(found)
	}
	t.Setenv("OTEL_SERVICE_NAME", "shop")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "a")
	context := Detect()
	if name, _ := context.find("service.name"); !reflect.DeepEqual(name, StringValue("shop")) {
		t.Error(name)
	}
	if err := context.MalformedVariable(); err == nil || !strings.Contains(err.Error(), "at most 4096 key=value pairs") {
		t.Error(err)
	}
	if found := (Detection{CommandArgs: true}).Detect().resource; len(found) != 1 || len(found[0].Value.items) != len(os.Args) {
		t.Error(found)
	}
}
