package imports

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/twoqueue/twoqueue/"

// libraries are the packages that users link, with the modules that they thereby inherit. To add
// a module is a decision.
var libraries = map[string][]string{
	"bridge":                      {backoff, uuid, amqp},
	"sender":                      {backoff, uuid, amqp},
	"verifier":                    {backoff, uuid, amqp, xsync},
	"idempotency":                 {backoff, uuid, amqp},
	"idempotency/pending":         {backoff, uuid, amqp},
	"idempotency/versions":        {backoff, uuid, amqp},
	"bridge/postgres":             {backoff, uuid, amqp, sqlx},
	"bridge/mysql":                {backoff, uuid, amqp, sqlx},
	"bridge/sqlserver":            {backoff, uuid, amqp, sqlx},
	"bridge/sqlite":               {backoff, uuid, amqp, sqlx},
	"bridge/pgxbridge":            {backoff, uuid, amqp, sqlx, pgx, passfile, servicefile, puddle, xsync, text},
	"sender/sendertest":           {backoff, uuid, amqp},
	"sender/metrics":              {backoff, uuid, amqp, prometheus, perks, xxhash, model, common, procfs, xsys, protobuf, goautoneg},
	"bridge/otelbridge":           {backoff, uuid, amqp, otel, xxhash},
	"bridge/probes":               {prometheus, perks, xxhash, model, common, procfs, xsys, protobuf, goautoneg},
	"verifier/ops":                {backoff, uuid, amqp, xsync, prometheus, perks, xxhash, model, common, procfs, xsys, protobuf, goautoneg},
	"verifier/otelverifier":       {backoff, uuid, amqp, xsync, auto, logr, stdr, otel, otelLog, otelMetric, otelTrace, xxhash},
	"sender/otelsender":           {backoff, uuid, amqp, auto, logr, stdr, otel, otelLog, otelMetric, otelTrace, xxhash},
	"idempotency/otelhandler":     {backoff, uuid, amqp, auto, logr, stdr, otel, otelLog, otelMetric, otelTrace, xxhash},
	"sender/pgxsender":            {backoff, uuid, amqp, sqlx, pgx, passfile, servicefile, puddle, xsync, text},
	"idempotency/idempotencytest": {backoff, uuid, amqp},
	"idempotency/metrics":         {backoff, uuid, amqp, prometheus, perks, xxhash, model, common, procfs, xsys, protobuf, goautoneg},
	"bridge/migrate":              {backoff, goose, interpolate, retry, multierr, xsync},
	"idempotency/pgxreceiver":     {backoff, uuid, amqp, sqlx, pgx, passfile, servicefile, puddle, xsync, text},
}

const (
	amqp        = "github.com/rabbitmq/amqp091-go"
	passfile    = "github.com/jackc/pgpassfile" // by pgx
	pgx         = "github.com/jackc/pgx/v5"
	puddle      = "github.com/jackc/puddle/v2"     // by pgx
	servicefile = "github.com/jackc/pgservicefile" // by pgx
	text        = "golang.org/x/text"              // by pgx
	backoff     = "github.com/cenkalti/backoff/v5"
	goose       = "github.com/pressly/goose/v3"
	interpolate = "github.com/mfridman/interpolate" // by goose
	multierr    = "go.uber.org/multierr"            // by goose
	retry       = "github.com/sethvargo/go-retry"   // by goose
	sqlx        = "github.com/jmoiron/sqlx"
	xsync       = "golang.org/x/sync" // errgroup
	uuid        = "github.com/google/uuid"

	otel       = "go.opentelemetry.io/otel"
	auto       = "go.opentelemetry.io/auto/sdk"    // by otel
	logr       = "github.com/go-logr/logr"         // by otel
	stdr       = "github.com/go-logr/stdr"         // by otel
	otelLog    = "go.opentelemetry.io/otel/log"    // by otel
	otelMetric = "go.opentelemetry.io/otel/metric" // by otel
	otelTrace  = "go.opentelemetry.io/otel/trace"

	prometheus = "github.com/prometheus/client_golang"
	perks      = "github.com/beorn7/perks"            // by prometheus
	xxhash     = "github.com/cespare/xxhash/v2"       // by prometheus and otel
	model      = "github.com/prometheus/client_model" // by prometheus
	common     = "github.com/prometheus/common"       // by prometheus
	procfs     = "github.com/prometheus/procfs"       // by prometheus
	xsys       = "golang.org/x/sys"                   // by prometheus
	protobuf   = "google.golang.org/protobuf"         // by prometheus
	goautoneg  = "github.com/munnerz/goautoneg"       // by prometheus
)

func TestALibraryInheritsTheListedModulesOnly(t *testing.T) {
	for name, want := range libraries {
		var got []string
		for _, p := range list(t, name) {
			if p.Module != nil && !p.Module.Main && !slices.Contains(got, p.Module.Path) {
				got = append(got, p.Module.Path)
			}
		}
		slices.Sort(got)
		want = slices.Sorted(slices.Values(want))
		if !slices.Equal(got, want) {
			t.Errorf("%s inherits\n\t%s\nand is to inherit\n\t%s", name, strings.Join(got, " "), strings.Join(want, " "))
		}
	}
}

// mayNot maps a package, or all packages below a path, to the packages that it must not import,
// even indirectly.
var mayNot = map[string][]string{
	"bridge/...":                  {"sender", "verifier", "idempotency", "cmd", "tests"},
	"sender/pgxsender":            {"verifier", "idempotency", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
	"sender/otelsender":           {"verifier", "idempotency", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
	"idempotency/otelhandler":     {"sender", "verifier", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
	"sender/metrics":              {"verifier", "idempotency", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
	"sender/sendertest":           {"verifier", "idempotency", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
	"sender":                      {"verifier", "idempotency", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
	"verifier/...":                {"sender", "idempotency", "cmd", "tests", "bridge/migrate", "bridge/ledgertest", "bridge/internal/inspection"},
	"idempotency":                 {"sender", "verifier", "cmd", "tests", "bridge/migrate", "bridge/ledgertest", "idempotency/pending", "idempotency/versions"},
	"idempotency/pending":         {"sender", "verifier", "cmd", "tests", "bridge/migrate", "bridge/ledgertest", "idempotency/versions"},
	"idempotency/versions":        {"sender", "verifier", "cmd", "tests", "bridge/migrate", "bridge/ledgertest", "idempotency/pending"},
	"idempotency/idempotencytest": {"sender", "verifier", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
	"idempotency/pgxreceiver":     {"sender", "verifier", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
}

func TestNoPackageImportsAForbiddenOne(t *testing.T) {
	for pattern, forbidden := range mayNot {
		for _, p := range list(t, pattern) {
			path, ours := strings.CutPrefix(p.ImportPath, module)
			for _, f := range forbidden {
				if ours && (path == f || strings.HasPrefix(path, f+"/")) {
					t.Errorf("%s imports %s", pattern, path)
				}
			}
		}
	}
}

// Applications link these packages. They must not link the packages with which operators inspect
// a database.
func TestAnApplicationLinksNoInspector(t *testing.T) {
	for name := range libraries {
		if strings.HasPrefix(name, "verifier") {
			continue
		}
		for _, p := range list(t, name) {
			path := strings.TrimPrefix(p.ImportPath, module) + "/"
			if strings.HasPrefix(path, "bridge/inspect/") || strings.HasPrefix(path, "bridge/internal/inspection/") {
				t.Errorf("%s imports %s", name, p.ImportPath)
			}
		}
	}
}

type pkg struct {
	ImportPath string
	Deps       []string // also indirect ones
	Module     *struct {
		Path string
		Main bool
	}
}

// packages returns all packages of which ours consist, by path.
var packages = sync.OnceValues(func() (map[string]pkg, error) {
	out, err := exec.Command("go", "list", "-deps", "-json=ImportPath,Deps,Module", module+"bridge/...", module+"sender/...", module+"verifier/...", module+"idempotency/...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	all := make(map[string]pkg)
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all[p.ImportPath] = p
	}
})

// list returns the packages of a pattern and all that they import, directly or not.
func list(t *testing.T, pattern string) (found []pkg) {
	t.Helper()
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	below, many := strings.CutSuffix(module+pattern, "...")
	for path, p := range all {
		if path == module+pattern || many && strings.HasPrefix(path+"/", below) {
			found = append(found, p)
			for _, imported := range p.Deps {
				found = append(found, all[imported])
			}
		}
	}
	if len(found) < 2 {
		t.Fatalf("list %s: found nothing", pattern)
	}
	return found
}
