/** Publishes the spans of OpenTelemetry: nothing is exported. */
export {}
