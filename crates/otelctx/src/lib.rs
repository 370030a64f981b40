//! Publish OpenTelemetry process and thread context for profilers, debuggers and security agents.
