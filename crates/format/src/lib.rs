//! The bytes of OpenTelemetry process context (OTEP 4719) and thread context (OTEP 4947), as values.
