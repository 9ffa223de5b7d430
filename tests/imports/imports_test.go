package imports

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
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
	"sender/gormsender":           {backoff, uuid, amqp, gorm, inflection, jinzhuNow, text},
	"sender/bunsender":            {backoff, uuid, amqp, bun, inflection, xsyncMap, goHex, msgpack, tagparser, xsys},
	"bridge/watermillbridge":      {backoff, uuid, amqp, watermill, shortuuid, ulid, pkgErrors},
}

// modules are the folders of the libraries that are modules of their own.
var modules = []string{"bridge/watermillbridge", "sender/bunsender", "sender/gormsender"}

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

	gorm       = "gorm.io/gorm"
	inflection = "github.com/jinzhu/inflection" // by gorm and bun
	jinzhuNow  = "github.com/jinzhu/now"        // by gorm
	bun        = "github.com/uptrace/bun"
	xsyncMap   = "github.com/puzpuzpuz/xsync/v3"       // by bun
	goHex      = "github.com/tmthrgd/go-hex"           // by bun
	msgpack    = "github.com/vmihailenco/msgpack/v5"   // by bun
	tagparser  = "github.com/vmihailenco/tagparser/v2" // by bun
	watermill  = "github.com/ThreeDotsLabs/watermill"
	shortuuid  = "github.com/lithammer/shortuuid/v3" // by watermill
	ulid       = "github.com/oklog/ulid"             // by watermill
	pkgErrors  = "github.com/pkg/errors"             // by watermill

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
			if p.Module != nil && !strings.HasPrefix(p.Module.Path+"/", module) && !slices.Contains(got, p.Module.Path) {
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
// even indirectly. A module of
// its own does not count as below.
var mayNot = map[string][]string{
	"bridge/...":                  {"sender", "verifier", "idempotency", "cmd", "tests"},
	"bridge/driver":               {"bridge/proof", "bridge/inspect", "bridge/internal/portable"},
	"bridge/inspect":              {"bridge/driver"},
	"bridge/proof":                {"bridge/postgres", "bridge/mysql", "bridge/sqlserver", "bridge/sqlite", "bridge/internal/portable"},
	"bridge/watermillbridge":      {"verifier", "cmd", "tests", "bridge/migrate", "bridge/ledgertest", "idempotency/pending", "idempotency/versions"},
	"sender/bunsender":            {"verifier", "idempotency", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
	"sender/gormsender":           {"verifier", "idempotency", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
	"sender/pgxsender":            {"verifier", "idempotency", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
	"sender/otelsender":           {"verifier", "idempotency", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
	"idempotency/otelhandler":     {"sender", "verifier", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
	"sender/metrics":              {"verifier", "idempotency", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
	"sender/sendertest":           {"verifier", "idempotency", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
	"sender":                      {"bridge/proof", "verifier", "idempotency", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
	"verifier/...":                {"sender", "idempotency", "cmd", "tests", "bridge/migrate", "bridge/ledgertest", "bridge/internal/inspection"},
	"verifier/internal/...":       {"bridge/driver", "bridge/inspect"}, // rooms that know no ledger
	"idempotency":                 {"bridge/proof", "sender", "verifier", "cmd", "tests", "bridge/migrate", "bridge/ledgertest", "idempotency/pending", "idempotency/versions"},
	"idempotency/pending":         {"sender", "verifier", "cmd", "tests", "bridge/migrate", "bridge/ledgertest", "idempotency/versions"},
	"idempotency/versions":        {"sender", "verifier", "cmd", "tests", "bridge/migrate", "bridge/ledgertest", "idempotency/pending"},
	"idempotency/idempotencytest": {"sender", "verifier", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
	"idempotency/pgxreceiver":     {"sender", "verifier", "cmd", "tests", "bridge/migrate", "bridge/ledgertest"},
	"cmd/bridgectl":               {"tests"},
	"cmd/demo":                    {"tests"},
	"cmd/email-gateway":           {"tests"},
	"cmd/verifier":                {"tests"},
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

// An application links the packages of its database, which contain an inspector for operators. The
// linker must leave the inspector out.
func TestAnApplicationLinksNoInspector(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "application")
	if out, err := exec.Command("go", "build", "-o", binary, "./testdata/application").CombinedOutput(); err != nil {
		t.Fatalf("build the application: %v\n%s", err, out)
	}
	symbols, err := exec.Command("go", "tool", "nm", binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, database := range []string{"postgres", "mysql", "sqlserver", "sqlite"} {
		if !bytes.Contains(symbols, []byte(module+"bridge/"+database+".(*Inbox).")) {
			t.Errorf("nm lists no Inbox of %s", database)
		}
	}
	for line := range strings.Lines(string(symbols)) {
		if strings.Contains(line, ".(*Inspector)") || strings.Contains(line, "bridge/internal/inspection.(") {
			t.Errorf("an application links %s", line)
		}
	}
}

type pkg struct {
	ImportPath string
	Deps       []string // also indirect ones
	Module     *struct{ Path string }
}

// packages returns all packages of which ours consist, by path.
var packages = sync.OnceValues(func() (map[string]pkg, error) {
	all := make(map[string]pkg)
	err := add(all, ".", module+"bridge/...", module+"sender/...", module+"verifier/...", module+"idempotency/...", module+"cmd/...")
	for _, folder := range modules {
		err = errors.Join(err, add(all, folder, "./..."))
	}
	return all, err
})

// add adds packages of the module in a folder, and all packages that they import.
func add(all map[string]pkg, folder string, patterns ...string) error {
	list := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Deps,Module"}, patterns...)...)
	list.Dir = "../../" + folder
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("go list in %s: %w", folder, err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if _, known := all[p.ImportPath]; !known {
			all[p.ImportPath] = p
		}
	}
}

// list returns the packages of a pattern and all that they import, directly or not.
func list(t *testing.T, pattern string) (found []pkg) {
	t.Helper()
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	below, many := strings.CutSuffix(module+pattern, "...")
	for path, p := range all {
		if path == module+pattern || many && strings.HasPrefix(path+"/", below) && !slices.Contains(modules, strings.TrimPrefix(path, module)) {
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
