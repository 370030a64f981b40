//! Build-script helper that exports otelctx's thread-context symbol from an executable.
