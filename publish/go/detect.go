package otelctx

import (
	"os"
	"path/filepath"
	"strings"
)

// Version is the version of this module.
const Version = "0.1.0"

const (
	serviceName = "service.name"
	instanceID  = "service.instance.id"
)

// Detection says which resource attributes to detect, with names of OpenTelemetry's semantic conventions.
type Detection struct {
	// Environment is OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES. If they set no service.name, it is "unknown_service:" and
	// the executable's name.
	Environment bool
	// Process is process.pid, process.executable.name and process.executable.path.
	Process bool
	// CommandArgs is process.command_args. Arguments can contain secrets.
	CommandArgs bool
	// SDK is telemetry.sdk.language, .name and .version.
	SDK bool
	// InstanceID is service.instance.id: random, generated when the context is published. One that is set is kept.
	InstanceID bool
}

// Detect returns a process context with the resource attributes that can be detected: all of [Detection] but CommandArgs.
func Detect() ProcessContext {
	return Detection{Environment: true, Process: true, SDK: true, InstanceID: true}.Detect()
}

// Detect returns a process context with the chosen attributes.
func (d Detection) Detect() ProcessContext {
	path, err := os.Executable()
	var name string
	if err == nil {
		path = strings.ToValidUTF8(path, "\uFFFD")
		name = filepath.Base(path)
	}
	var found []Attribute
	if d.Environment {
		unknown := "unknown_service"
		if name != "" {
			unknown += ":" + name
		}
		found = append(found, String(serviceName, unknown))
	}
	if d.SDK {
		found = append(found,
			String("telemetry.sdk.language", "go"),
			String("telemetry.sdk.name", "otelctx"),
			String("telemetry.sdk.version", Version))
	}
	if d.Process {
		if name != "" {
			found = append(found, String("process.executable.name", name), String("process.executable.path", path))
		}
		found = append(found, Int("process.pid", os.Getpid()))
	}
	if d.CommandArgs {
		var arguments []Value
		for _, argument := range os.Args {
			arguments = append(arguments, StringValue(strings.ToValidUTF8(argument, "\uFFFD")))
		}
		found = append(found, Array("process.command_args", arguments...))
	}
	context := ProcessContext{randomInstanceID: d.InstanceID}.With(found...)
	if d.Environment {
		resource, err := resourceOf(os.Getenv(serviceNameVariable), os.Getenv(resourceVariable))
		context = context.With(resource...)
		context.isMalformed = err != nil
	}
	return context
}
