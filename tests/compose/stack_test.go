package compose

import (
	"database/sql"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"
	_ "github.com/go-sql-driver/mysql" // driver
	_ "github.com/jackc/pgx/v5/stdlib" // driver

	"github.com/twoqueue/twoqueue/tests/emailgateway/mailserver"
	"github.com/twoqueue/twoqueue/tests/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// The stack of a profile, run without containers: our services as processes, with what
// the compose file gives them; private servers in place of the others.
type stack struct {
	t          *testing.T
	project    *types.Project
	hosts      *strings.Replacer // of the stack's hosts and ports, by where they are here
	management string            // the broker's API
	folder     string
	mail       *mailserver.Server
	processes  map[string]process
	started    []string
}

func newStack(t *testing.T, profile string, hosts map[string]string) *stack {
	t.Helper()
	s := &stack{t: t, project: load(t, "compose.yaml", nil, profile, "tools"), folder: t.TempDir(),
		mail: mailserver.Start(t, mailserver.Options{}), processes: make(map[string]process)}
	var pairs []string
	for from, to := range hosts {
		pairs = append(pairs, from, to)
	}
	s.hosts = strings.NewReplacer(pairs...)
	return s
}

// up starts a service of ours after those that it depends on, each as soon as the
// condition is met that the compose file names. The servers are there already.
func (s *stack) up(name string) {
	s.t.Helper()
	service := s.project.Services[name]
	if service.Build == nil || s.processes[name].Process != nil {
		return
	}
	for _, dependency := range slices.Sorted(maps.Keys(service.DependsOn)) {
		s.up(dependency)
		p := s.processes[dependency]
		switch {
		case p.Process == nil: // one of the servers
		case service.DependsOn[dependency].Condition == types.ServiceConditionCompletedSuccessfully:
			if code := p.Await(); code != 0 {
				s.t.Fatalf("%s ended with %d", dependency, code)
			}
		default:
			s.awaitHealth(dependency)
		}
	}
	s.processes[name] = s.start(service, service.Command)
	s.started = append(s.started, name)
}

// start runs a service's binary with arguments.
func (s *stack) start(service types.ServiceConfig, args []string) process {
	s.t.Helper()
	cmd := exec.Command(filepath.Join(binaries(s.t), service.Build.Target), args...)
	cmd.Env = s.environment(service)
	cmd.Dir = "/"
	return startProcess(s.t, cmd)
}

var port = regexp.MustCompile(`^(?:0\.0\.0\.0)?:(\d+)$`)

// environment is the container's and no other variable, but for what is different
// outside of containers: the folder of the secrets, hosts, and ports, which all
// services have in common here.
func (s *stack) environment(service types.ServiceConfig) []string {
	s.t.Helper()
	secrets := filepath.Join(s.folder, service.Name)
	for _, secret := range service.Secrets {
		content := must(os.ReadFile(s.project.Secrets[secret.Source].File))
		target := secret.Target
		if target == "" {
			target = secret.Source
		}
		target = strings.TrimPrefix(target, "/run/secrets/")
		if err := os.MkdirAll(secrets, 0o755); err != nil {
			s.t.Fatal(err)
		}
		write(s.t, filepath.Join(secrets, target), []byte(s.hosts.Replace(string(content))))
	}
	var env []string
	for name, value := range service.Environment {
		text := strings.Replace(*value, "/run/secrets/", secrets+"/", 1)
		switch {
		case port.MatchString(text):
			text = s.address(service.Name, port.FindStringSubmatch(text)[1])
		case text == "http://rabbitmq:15672":
			text = s.management
		case text == "mailpit":
			text = s.mail.Host
		case text == "1025":
			text = s.mail.Port
		}
		env = append(env, name+"="+text)
	}
	return env
}

var addresses sync.Map

// address is where a port of a service is here.
func (s *stack) address(service, port string) string {
	key := s.folder + service + port
	if known, ok := addresses.Load(key); ok {
		return known.(string)
	}
	address := freeAddress(s.t)
	addresses.Store(key, address)
	return address
}

// freeAddress is one that nobody listens on, below the ports of outgoing connections.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(22000))
		if listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address); err == nil {
			listener.Close()
			return address
		}
	}
	t.Fatal("no free port")
	return ""
}

// healthy runs the service's health check as the engine would.
func (s *stack) healthy(name string) (bool, string) {
	s.t.Helper()
	service := s.project.Services[name]
	test := service.HealthCheck.Test
	if test[0] != "CMD" || test[1] != "/"+service.Build.Target {
		s.t.Fatalf("the health check of %s is %v", name, test)
	}
	check := s.start(service, test[2:])
	return check.Await() == 0, check.said()
}

func (s *stack) awaitHealth(name string) {
	s.t.Helper()
	last := ""
	servertest.Eventually(s.t, name+" is healthy", func() bool {
		s.processes[name].Running()
		ok, said := s.healthy(name)
		last = said
		return ok
	}, func() string { return "it says " + last })
}

// down stops all services, the last one first, and holds each to an orderly end.
func (s *stack) down() {
	s.t.Helper()
	for _, name := range slices.Backward(s.started) {
		s.stop(name)
	}
}

func (s *stack) stop(name string) {
	s.t.Helper()
	p := s.processes[name]
	if !p.HasEnded() { // as a job has
		p.Signal(syscall.SIGTERM)
	}
	if code := p.Await(); code != 0 {
		s.t.Errorf("%s ended with %d", name, code)
	}
}

// order is what tells in an e-mail which order it is for.
var order = regexp.MustCompile(`Thank you for order\s+([0-9a-f-]{36})`)

// emails are the orders that the mail server has e-mails of.
func (s *stack) emails() map[string]int {
	all := make(map[string]int)
	for _, e := range s.mail.Taken() {
		if found := order.FindStringSubmatch(strings.ReplaceAll(e.Text, "=\r\n", "")); found != nil {
			all[found[1]]++
		}
	}
	return all
}

// orders are those that the shop has committed.
func orders(t *testing.T, db *sql.DB) map[string]int {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT id FROM orders`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	all := make(map[string]int)
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		all[id] = 1
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return all
}

// broker is a RabbitMQ with the plugins, the configuration and the login of the stack.
func broker(t *testing.T) *servers.RabbitMQ {
	t.Helper()
	plugins := strings.Trim(strings.TrimSpace(string(read(t, "rabbitmq/enabled_plugins"))), "[].")
	return servertest.StartRabbitMQ(t, &servers.RabbitMQOptions{Plugins: strings.Split(plugins, ","),
		Config: string(read(t, "rabbitmq/rabbitmq.conf")) + string(read(t, "demo-secrets/rabbitmq.conf"))})
}

// managementURL is the broker's API without a login.
func managementURL(rabbit *servers.RabbitMQ) string {
	parsed := must(url.Parse(rabbit.ManagementURL()))
	return "http://" + parsed.Host
}

// database makes the database and the login that a profile's server makes, and returns
// a connection to it and the server's host and port.
func database(t *testing.T, profile string) (db *sql.DB, address string) {
	t.Helper()
	password := strings.TrimSpace(string(read(t, "demo-secrets/"+profile+"_password")))
	switch profile {
	case "postgres":
		server := servertest.Postgres(t)
		execute(t, "pgx", server.URL(), `CREATE ROLE shop LOGIN PASSWORD '`+password+`'`, `CREATE DATABASE shop OWNER shop`)
		u := must(url.Parse(server.URL()))
		u.Path = "/shop"
		return open(t, "pgx", u.String()), server.Addr()
	case "mariadb":
		server := servertest.MariaDB(t)
		execute(t, "mysql", server.DSN(), `CREATE DATABASE shop`, `CREATE USER shop@'%' IDENTIFIED BY '`+password+`'`, `GRANT ALL ON shop.* TO shop@'%'`)
		return open(t, "mysql", "shop:"+password+"@tcp("+server.Addr()+")/shop"), server.Addr()
	}
	t.Fatalf("no server of %s", profile)
	return nil, ""
}

func open(t *testing.T, driver, address string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func execute(t *testing.T, driver, address string, statements ...string) {
	t.Helper()
	db := open(t, driver, address)
	for _, statement := range statements {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
}

// What the compose file says works: the jobs, the health checks, the services in their
// order; each order's e-mail comes once if it was committed and never else.
func TestTheStackByHand(t *testing.T) {
	rabbit := broker(t)
	for _, profile := range []string{"postgres", "mariadb"} {
		t.Run(profile, func(t *testing.T) {
			db, address := database(t, profile)
			// One broker serves both, so that each has a vhost.
			for _, args := range [][]string{{"add_vhost", profile}, {"set_permissions", "-p", profile, "shop", ".*", ".*", ".*"}} {
				if _, err := rabbit.Ctl(t.Context(), args...); err != nil {
					t.Fatal(err)
				}
			}
			s := newStack(t, profile, map[string]string{
				"@rabbitmq:5672/": "@" + rabbit.Addr() + "/" + profile, "@postgres:5432": "@" + address, "@mariadb:3306": "@" + address})
			s.management = managementURL(rabbit)
			names := s.project.ServiceNames()
			slices.Sort(names)
			for _, name := range names {
				if !strings.HasPrefix(name, "bridgectl-") {
					s.up(name)
				}
			}
			if len(s.started) != 5 {
				t.Fatalf("started %v", s.started)
			}
			verifier := s.project.Services["verifier-"+profile]
			status := s.address(verifier.Name, port.FindStringSubmatch(*verifier.Environment["BRIDGE_STATUS_ADDR"])[1])
			if code, page := get(t, "http://"+status+"/"); code != http.StatusOK || !strings.Contains(page, "<html") {
				t.Errorf("the status page answers %d: %.200s", code, page)
			}
			s.mail.WaitTaken(t, 12, patience) // with an order that was rolled back between
			tool := s.start(s.project.Services["bridgectl-"+profile], []string{"status"})
			if code := tool.Await(); code != 0 {
				t.Errorf("bridgectl status ends with %d", code)
			}
			t.Logf("bridgectl status\n%s", tool.said())
			if profile == "postgres" {
				s.observe(rabbit)
			}
			s.stop("shop-" + profile)
			want := orders(t, db)
			servertest.Eventually(t, "each order has its e-mail", func() bool { return len(s.emails()) >= len(want) },
				func() string { return fmt.Sprintf("%d e-mails of %d orders", len(s.emails()), len(want)) })
			s.down()
			for _, name := range []string{"verifier-" + profile, "gateway-" + profile} {
				if ok, said := s.healthy(name); ok {
					t.Errorf("%s has ended, and its health check says %q", name, said)
				}
			}
			if got := s.emails(); !maps.Equal(got, want) {
				t.Errorf("e-mails of orders %v, and the orders are %v", got, want)
			}
		})
	}
}
