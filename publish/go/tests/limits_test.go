package tests

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"

	otelctx "repository.invalid/publish/go"
	"repository.invalid/publish/go/internal/labelstest"
)

// What docs/go.md says that readers do not see, or see elsewhere. A test that fails here means that the page must change.

var trace1, span1 = otelctx.TraceID{1}, otelctx.SpanID{1}

const digits1 = "01000000000000000000000000000000"

func TestLimitPprofDoRestoresTheLabelsOfItsContext(t *testing.T) {
	labelstest.InGoroutine(func() {
		otelctx.Do(context.Background(), trace1, span1, func(context.Context) {
			pprof.Do(context.Background(), pprof.Labels("query", "q"), func(context.Context) {
				labelstest.Expect(t, "within", labels{"query": "q"})
			})
			labelstest.Expect(t, "after pprof.Do with another context", nil)
		})
		otelctx.Do(context.Background(), trace1, span1, func(ctx context.Context) {
			pprof.Do(ctx, pprof.Labels("query", "q"), func(context.Context) {})
			labelstest.Expect(t, "with this one", labels{"trace_id": digits1, "span_id": digits1[:16]})
		})
	})
}

// A function that recovers, around the one that set the labels.
func TestLimitAPanicOfSetGoroutineLabelsKeepsThem(t *testing.T) {
	labelstest.InGoroutine(func() {
		func() {
			defer func() {
				recover()
				labelstest.Expect(t, "where it is handled", labels{"request": "7"})
			}()
			pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("request", "7")))
			panic("expected")
		}()
		func() {
			defer func() {
				recover()
				labelstest.Expect(t, "of otelctx.Do, where it is handled", labels{"request": "7"})
			}()
			otelctx.Do(context.Background(), trace1, span1, func(context.Context) { panic("expected") })
		}()
	})
}

// labelsOf returns the labels of goroutines with a function on their stack, as the profile has them, once there are any: a new
// goroutine is not in the profile before it runs.
func labelsOf(function string) (found []string) {
	for found == nil {
		runtime.Gosched()
		found = labelsNow(function)
	}
	return found
}

func labelsNow(function string) (found []string) {
	var profile strings.Builder
	pprof.Lookup("goroutine").WriteTo(&profile, 1)
	for _, goroutine := range strings.Split(profile.String(), "\n\n") {
		if !strings.Contains(goroutine, function) {
			continue
		}
		line := "none"
		if at := strings.Index(goroutine, "# labels: "); at >= 0 {
			line, _, _ = strings.Cut(goroutine[at+len("# labels: "):], "\n")
		}
		found = append(found, line)
	}
	return found
}

func TestLimitConnectionsOfAnHTTPClientKeepTheFirstRequestsLabels(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	get := func(ctx context.Context) {
		request, err := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
	}
	labelstest.InGoroutine(func() {
		for _, request := range []string{"first", "second"} {
			pprof.Do(context.Background(), pprof.Labels("request", request), get)
		}
	})
	for _, function := range []string{"net/http.(*persistConn).readLoop", "net/http.(*persistConn).writeLoop"} {
		if found := labelsOf(function); len(found) != 1 || found[0] != `{"request":"first"}` {
			t.Errorf("%s has the labels %v", function, found)
		}
	}
}

// none is a database that has no connections.
type none struct{}

func (none) Connect(context.Context) (driver.Conn, error) { return nil, errors.New("expected") }
func (none) Driver() driver.Driver                        { return nil }

func TestLimitTheConnectionOpenerOfADatabaseHasTheLabelsOfOpen(t *testing.T) {
	var database *sql.DB
	labelstest.InGoroutine(func() {
		pprof.Do(context.Background(), pprof.Labels("request", "first"), func(context.Context) { database = sql.OpenDB(none{}) })
	})
	defer database.Close()
	if found := labelsOf("database/sql.(*DB).connectionOpener"); len(found) != 1 || found[0] != `{"request":"first"}` {
		t.Errorf("%v", found)
	}
}

// A goroutine that waits for work has the labels of the goroutine that started it.
func TestLimitAPoolsGoroutinesHaveTheLabelsOfTheirStart(t *testing.T) {
	work, done := make(chan func()), make(chan bool)
	labelstest.InGoroutine(func() {
		otelctx.Do(context.Background(), trace1, span1, func(context.Context) {
			go func() {
				defer close(done)
				for job := range work {
					job()
				}
			}()
		})
	})
	work <- func() {
		labelstest.Expect(t, "a job of another request", labels{"trace_id": digits1, "span_id": digits1[:16]})
	}
	work <- func() {
		otelctx.Do(context.Background(), otelctx.TraceID{2}, otelctx.SpanID{2}, func(context.Context) {
			labelstest.Expect(t, "one with its own labels", labels{
				"trace_id": "02000000000000000000000000000000", "span_id": "0200000000000000",
			})
		})
	}
	close(work)
	<-done
}
