// Autoprogram publishes by an import, for testing/integration/tests/go_publisher.rs.
package main

import (
	"fmt"
	"io"
	"os"

	otelctx "repository.invalid/publish/go"
	_ "repository.invalid/publish/go/auto"
)

func main() {
	if err := otelctx.Publish(otelctx.Detect()); err != nil {
		fmt.Printf("refused\t%v\n", err)
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
}
