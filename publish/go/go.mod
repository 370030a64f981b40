module repository.invalid/otelctx/publish/go

go 1.21
