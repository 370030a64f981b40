//! Read OpenTelemetry process and thread context out of any process.
