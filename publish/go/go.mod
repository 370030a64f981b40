module repository.invalid/publish/go

go 1.21
