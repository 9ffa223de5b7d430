package cmd_test

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// The logins of database and broker change, the files have the new ones, and all connections of
// the old ones are closed. A verifier goes on without a restart.
func TestRotatedLoginsNeedNoRestart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind stage.Database
		// before creates the first login. after creates the next one, and ends the first one with
		// its sessions. $u is the first login, $v the next, $d the database.
		before, after []string
		next          string
	}{
		"MariaDB: another password": {
			stage.MariaDB,
			[]string{"CREATE USER $u IDENTIFIED BY 'one'", "GRANT ALL ON `$d`.* TO $u"},
			[]string{"ALTER USER $u IDENTIFIED BY 'two'", "KILL USER $u"}, "$u:two",
		},
		"PostgreSQL: another login": { // the test server requires no passwords
			stage.Postgres,
			[]string{`CREATE ROLE $u SUPERUSER LOGIN`},
			[]string{`CREATE ROLE $v SUPERUSER LOGIN`, `ALTER ROLE $u NOLOGIN`, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '$u'`},
			"$v:two",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			admin := servertest.Vhost(t)
			s := stage.On(t, c.kind, admin, bridge.Topology{Queue: "staging"})
			database, err := url.Parse(program.DatabaseURL(t, s.DatabaseURL))
			must(t, err)
			name := uuid.NewString()[:8] // another run may use the same server
			words := strings.NewReplacer("$u", "r"+name, "$v", "v"+name, "$d", strings.Trim(database.Path, "/"))
			execute := func(statements []string) {
				t.Helper()
				for _, statement := range statements {
					if _, err := s.DB.ExecContext(t.Context(), words.Replace(statement)); err != nil {
						t.Fatal(err)
					}
				}
			}
			execute(c.before)
			if c.kind.Name == stage.Postgres.Name {
				t.Cleanup(func() { // without its database the roles can no longer be dropped
					for _, role := range []string{"$u", "$v"} {
						_, _ = s.DB.Exec(words.Replace("DROP ROLE " + role))
					}
				})
			}
			folder := t.TempDir()
			file := func(name string, address string) string {
				t.Helper()
				path := filepath.Join(folder, name)
				must(t, os.WriteFile(path+".new", []byte(address+"\n"), 0o600))
				must(t, os.Rename(path+".new", path))
				return path
			}
			as := func(login string) string {
				user, password, _ := strings.Cut(words.Replace(login), ":")
				database.User = url.UserPassword(user, password)
				return database.String()
			}
			broker := servertest.User(t, admin, ".*", ".*", ".*")
			p := start(t, "verifier", "BRIDGE_DATABASE_URL_FILE="+file("database", as("$u:one")), "BRIDGE_AMQP_URL_FILE="+file("broker", broker),
				"BRIDGE_QUEUE="+s.Topology.Queue, "BRIDGE_ALLOW=*:*")
			queue := s.Queue("target", nil)
			s.Commit(stage.To(queue, "before"))
			s.Receive(queue, 1)

			execute(c.after)
			file("database", as(c.next))
			parsed, err := url.Parse(broker)
			must(t, err)
			user := parsed.User.Username()
			_, err = servertest.RabbitMQ(t).Ctl(t.Context(), "change_password", user, "two")
			must(t, err)
			// RabbitMQ stops with exit status 69 at a connection that was closed after it was
			// listed.
			must(t, servertest.Await(t.Context(), "all connections of the login are closed", func() (bool, error) {
				_, err := servertest.RabbitMQ(t).Ctl(t.Context(), "close_all_user_connections", user, "rotated")
				return true, err
			}))
			file("broker", strings.Replace(broker, ":secret@", ":two@", 1))

			s.Commit(stage.To(queue, "after"))
			s.Receive(queue, 1)
			p.Running()
			if code := p.Stop(); code != 0 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
