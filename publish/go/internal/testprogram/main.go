// Testprogram publishes process contexts for testing/integration/tests/go_publisher.rs, which compares what readers find.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
	"os/exec"
	"strings"

	otelctx "repository.invalid/publish/go"
)

func main() {
	switch os.Args[1] {
	case "values":
		publish(values())
		wait()
	case "detected":
		publish(otelctx.Detect())
		wait()
	case "updating":
		updating()
	case "commanded":
		commanded()
	case "idle":
		fmt.Println("ready")
		wait()
	}
}

// publish says "refused" and why, if it fails.
func publish(context otelctx.ProcessContext) {
	if err := otelctx.Publish(context); err != nil {
		fmt.Printf("refused\t%v\n", err)
	}
	fmt.Println("ready")
}

func wait() { io.Copy(io.Discard, os.Stdin) }

// values has one of each type, and what encoders get wrong.
func values() otelctx.ProcessContext {
	return otelctx.ProcessContext{}.WithServiceName("shop").With(
		otelctx.String("text", "Zürich"), otelctx.String("no text", ""),
		otelctx.Bool("true", true), otelctx.Bool("false", false),
		otelctx.Int("zero", 0), otelctx.Int64("smallest", math.MinInt64), otelctx.Int64("largest", math.MaxInt64),
		otelctx.Float64("fraction", -0.5), otelctx.Float64("infinite", math.Inf(1)),
		otelctx.Bytes("bytes", []byte{0xff, 0, 0x80}),
		otelctx.Attribute{Key: "not set"},
		otelctx.Array("list", otelctx.IntValue(80), otelctx.StringValue("x"), otelctx.Value{}, otelctx.ArrayValue()),
		otelctx.Map("map", otelctx.Int("a", 1), otelctx.Map("b", otelctx.Bool("c", true))),
		otelctx.String("long", strings.Repeat("x", 20_000)),
	).WithContextAttributes(otelctx.String("context.attribute", "y"))
}

// updating updates as fast as possible. Every payload carries its own checksum.
func updating() {
	context := func(number int64) otelctx.ProcessContext {
		// Lengths differ from one update to the next, so that a torn payload shows.
		filler := strings.Repeat("x", int(number*37%500))
		hash := fnv.New64a()
		binary.Write(hash, binary.LittleEndian, number)
		io.WriteString(hash, filler)
		return otelctx.ProcessContext{}.With(otelctx.Int64("number", number), otelctx.Int64("checksum", int64(hash.Sum64())),
			otelctx.String("filler", filler))
	}
	publish(context(0))
	for number := int64(1); ; number++ {
		if err := otelctx.Update(context(number)); err != nil {
			panic(err)
		}
	}
}

// commanded does what each line of the input says, and then says "done".
func commanded() {
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		command, argument, _ := strings.Cut(lines.Text(), " ")
		var err error
		switch command {
		case "publish":
			err = otelctx.Publish(otelctx.ProcessContext{}.WithServiceName(argument))
		case "update":
			err = otelctx.Update(otelctx.ProcessContext{}.WithServiceName(argument))
		case "unpublish":
			err = otelctx.Unpublish()
		case "start":
			err = start()
		}
		if err != nil {
			fmt.Printf("refused\t%v\n", err)
		}
		fmt.Println("done")
	}
}

// start starts this program as a child, by fork and exec. It ends with its input.
func start() error {
	child := exec.Command("/proc/self/exe", "idle")
	if _, err := child.StdinPipe(); err != nil {
		return err
	}
	output, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	if _, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		return err
	}
	fmt.Printf("child\t%d\n", child.Process.Pid)
	return nil
}
