package compose

import (
	"context"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
)

var profiles = []string{"postgres", "mariadb", "sqlserver"}

// sqlServerImage is another one than the file's.
const sqlServerImage = "registry.example.org/mssql/server:2022-CU20-ubuntu-22.04"

// load reads a compose file as the client does.
func load(t *testing.T, file string, env []string, profiles ...string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{filepath.Join(folder, file)},
		cli.WithProfiles(profiles), cli.WithEnv(append(env, "SQLSERVER_IMAGE="+sqlServerImage)))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// The client refuses a file in which a service depends on one that is not there.
func TestEachProfileIsWhole(t *testing.T) {
	shared := []string{"grafana", "mailpit", "prometheus", "rabbitmq"}
	for _, profile := range profiles {
		project := load(t, "compose.yaml", nil, profile)
		want := append([]string{profile, "migrate-" + profile, "gateway-migrate-" + profile,
			"verifier-" + profile, "gateway-" + profile, "shop-" + profile}, shared...)
		if profile == "sqlserver" {
			want = append(want, "sqlserver-init")
		}
		slices.Sort(want)
		got := project.ServiceNames()
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s has %v, not %v", profile, got, want)
		}
	}
	if content := read(t, ".env"); !strings.Contains("\n"+string(content), "\nCOMPOSE_PROFILES=postgres\n") {
		t.Errorf("without a profile there is no whole stack: .env is\n%s", content)
	}
	for profile, test := range map[string]string{"sqlserver": "test-sqlserver", "mysql": "test-mysql"} {
		project := load(t, "tests.yaml", nil, profile)
		for _, name := range []string{test, profile, "rabbitmq"} {
			if _, ok := project.Services[name]; !ok {
				t.Errorf("the suites' %s has no %s", profile, name)
			}
		}
	}
}

// The variables of the files are read in shells in which a worker may be started, which
// refuses those of its prefix that it does not know.
func TestNoVariableOfTheFilesLooksLikeAWorkers(t *testing.T) {
	for _, name := range []string{"compose.yaml", "tests.yaml"} {
		if found := regexp.MustCompile(`[^$]\$\{(BRIDGE|EMAIL|SHOP)_`).FindString(string(read(t, name))); found != "" {
			t.Errorf("%s: %s", name, found)
		}
	}
}

func TestSQLServerIsTakenInBothWays(t *testing.T) {
	for env, want := range map[string]string{"": "OFF", "SQLSERVER_RCSI=ON": "ON", "SQLSERVER_RCSI=OFF": "OFF"} {
		project := load(t, "compose.yaml", []string{env}, "sqlserver")
		if got := project.Services["sqlserver-init"].Environment["RCSI"]; got == nil || *got != want {
			t.Errorf("%q: RCSI %v, want %s", env, got, want)
		}
	}
}

// An exact tag: a version with all its parts, or a release of Microsoft's; our own
// images are built.
var exact = regexp.MustCompile(`^[a-z0-9./-]+:v?\d+\.\d+(\.\d+|-[a-z]+)(-[a-z]+)?$`)

func TestEveryServiceIsPinnedAndConfined(t *testing.T) {
	project := load(t, "compose.yaml", nil, "*")
	built, err := stages()
	if err != nil {
		t.Fatal(err)
	}
	for name, service := range project.Services {
		if service.Build != nil {
			if service.PullPolicy != types.PullPolicyBuild {
				t.Errorf("%s is asked for at a registry: its pull policy is %q", name, service.PullPolicy)
			}
			target := service.Build.Target
			if !slices.ContainsFunc(built, func(s instructions.Stage) bool { return s.Name == target && s.BaseName == "base" }) {
				t.Errorf("%s is to be built from %q, which is no image of the Dockerfile", name, target)
			}
			if service.Build.Dockerfile != "compose/Dockerfile" || !sameFile(service.Build.Context, root) {
				t.Errorf("%s is built from %s in %s", name, service.Build.Dockerfile, service.Build.Context)
			}
			if service.Image != "twoqueue/"+target+":dev" {
				t.Errorf("%s is called %s", name, service.Image)
			}
		} else if service.Image != sqlServerImage && !exact.MatchString(service.Image) {
			t.Errorf("%s is not pinned: %s", name, service.Image)
		}
		if service.User == "" || strings.HasPrefix(service.User, "0") || service.User == "root" {
			t.Errorf("%s runs as %q", name, service.User)
		}
		if !slices.Contains(service.CapDrop, "ALL") || len(service.CapAdd) > 0 || service.Privileged {
			t.Errorf("%s has capabilities", name)
		}
		if !slices.Contains(service.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s may gain privileges", name)
		}
		if writable := []string{"rabbitmq", "sqlserver"}; !service.ReadOnly && !slices.Contains(writable, name) {
			t.Errorf("%s can write to its file system", name)
		}
		for _, port := range service.Ports {
			if ip := net.ParseIP(port.HostIP); ip == nil || !ip.IsLoopback() {
				t.Errorf("%s publishes %s on %q", name, port.Published, port.HostIP)
			}
		}
		if service.Restart == "" {
			t.Errorf("%s does not say whether it is started again", name)
		}
	}
}

func sameFile(a, b string) bool { return os.SameFile(must(os.Stat(a)), must(os.Stat(b))) }

func TestEveryServiceHasAHealthCheckOrAReason(t *testing.T) {
	project := load(t, "compose.yaml", nil, "*")
	for name, service := range project.Services {
		reason, _ := service.Extensions["x-no-healthcheck"].(string)
		check := service.HealthCheck
		switch {
		case check == nil:
			if len(reason) < 10 {
				t.Errorf("%s has neither health check nor reason", name)
			}
		case reason != "" || len(check.Test) < 2 || check.Interval == nil || check.Timeout == nil || check.Retries == nil:
			t.Errorf("%s: health check %+v, reason %q", name, check, reason)
		case service.Build != nil && check.Test[0] != "CMD":
			t.Errorf("%s has no shell for %v", name, check.Test)
		}
		for dependency, d := range service.DependsOn {
			of := project.Services[dependency]
			switch d.Condition {
			case types.ServiceConditionHealthy:
				if of.HealthCheck == nil {
					t.Errorf("%s waits for the health of %s, which has no check", name, dependency)
				}
			case types.ServiceConditionCompletedSuccessfully:
				if of.Restart != "no" {
					t.Errorf("%s waits for the end of %s, which starts again", name, dependency)
				}
			default:
				t.Errorf("%s waits for %s to be %s", name, dependency, d.Condition)
			}
		}
	}
}

// A mistyped variable is refused by our commands when they start; here it is seen
// before.
func TestEveryVariableIsOneThatItsCommandKnows(t *testing.T) {
	project := load(t, "compose.yaml", nil, "*")
	prefixes := map[string]string{"verifier": "BRIDGE_", "email-gateway": "EMAIL_", "shop": "SHOP_", "bridgectl": "BRIDGE_"}
	for name, service := range project.Services {
		if service.Build == nil {
			continue
		}
		known := variables(t, service.Build.Target)
		for key := range service.Environment {
			if !known[key] || !strings.HasPrefix(key, prefixes[service.Build.Target]) {
				t.Errorf("%s: %s has no variable %s", name, service.Build.Target, key)
			}
		}
	}
}

// The secrets are files: none of them is in what docker inspect shows.
func TestNoSecretIsInTheConfiguration(t *testing.T) {
	project := load(t, "compose.yaml", nil, "*")
	text := string(must(project.MarshalYAML()))
	secrets := make(map[string]string)
	for name, secret := range project.Secrets {
		content := must(os.ReadFile(secret.File))
		secrets[name] = strings.TrimSpace(string(content))
		if secrets[name] == "" || strings.Contains(text, secrets[name]) {
			t.Errorf("secret %s is empty or in the configuration", name)
		}
	}
	for name, service := range project.Services {
		for _, used := range service.Secrets {
			if _, ok := secrets[used.Source]; !ok {
				t.Errorf("%s has a secret %s that is nowhere", name, used.Source)
			}
			delete(project.Secrets, used.Source)
		}
	}
	for name := range project.Secrets {
		t.Errorf("nobody has secret %s", name)
	}
	// A password stands in its own file and in the URL.
	for _, kind := range profiles {
		parsed, err := url.Parse(secrets[kind+"_url"])
		if err != nil {
			t.Fatal(err)
		}
		if password, _ := parsed.User.Password(); password != secrets[kind+"_password"] || parsed.Hostname() != kind {
			t.Errorf("%s_url is not for %s with %s_password", kind, kind, kind)
		}
	}
	parsed := must(url.Parse(secrets["amqp_url"]))
	if password, _ := parsed.User.Password(); !strings.Contains(secrets["rabbitmq_conf"], "default_pass = "+password) ||
		!strings.Contains(secrets["rabbitmq_conf"], "default_user = "+parsed.User.Username()+"\n") {
		t.Error("amqp_url has not the login of rabbitmq.conf")
	}
	for _, secret := range secrets {
		if !strings.Contains(strings.ToLower(secret), "demo-only") {
			t.Error("a secret does not say that it is the demo's")
		}
	}
	// Another folder takes the place of all of them.
	other := t.TempDir()
	for name, secret := range load(t, "compose.yaml", []string{"TWOQUEUE_SECRETS=" + other}, "*").Secrets {
		if filepath.Dir(secret.File) != other {
			t.Errorf("secret %s stays in %s", name, filepath.Dir(secret.File))
		}
	}
}

// What is killed while it drains has not drained.
func TestAContainerIsGivenMoreTimeToEndThanItTakes(t *testing.T) {
	project := load(t, "compose.yaml", nil, "*")
	for name, service := range project.Services {
		for _, key := range []string{"BRIDGE_DRAIN", "EMAIL_DRAIN"} {
			value := service.Environment[key]
			if value == nil {
				continue
			}
			drain := must(time.ParseDuration(*value))
			if service.StopGracePeriod == nil || time.Duration(*service.StopGracePeriod) < drain+5*time.Second {
				t.Errorf("%s drains for %v and is given %v", name, drain, service.StopGracePeriod)
			}
		}
	}
}

// All that can be checked here of the script that prepares SQL Server.
func TestTheScriptForSQLServerIsWellFormed(t *testing.T) {
	script := folder + "/sqlserver/init.sh"
	if output, err := exec.Command("bash", "-n", script).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, output)
	}
	for env, want := range map[string]string{"": "RCSI must be ON or OFF", "RCSI=on": "RCSI must be ON or OFF", "RCSI=ON": "sqlserver_sa_password"} {
		cmd := exec.Command("bash", script)
		cmd.Env = []string{env}
		if output, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(output), want) {
			t.Errorf("with %q: %v: %s", env, err, output)
		}
	}
}

// Without -b, sqlcmd goes on after an error and reports success; without -x, it takes $(
// in its input, such as a password, for a variable ('sqlcmd Utility').
func TestSqlcmdStopsAtAnErrorAndSubstitutesNothing(t *testing.T) {
	calls := 0
	for _, name := range []string{"compose.yaml", "tests.yaml", "sqlserver/init.sh"} {
		text := string(must(os.ReadFile(folder + "/" + name)))
		for line := range strings.Lines(text) {
			if !strings.Contains(line, "bin/sqlcmd ") {
				continue
			}
			calls++
			if words := strings.Fields(line); !slices.Contains(words, "-b") || !slices.Contains(words, "-x") {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
	if calls < 3 {
		t.Errorf("%d calls of sqlcmd found, must be three", calls)
	}
}

// Everything that is mounted from the checkout is there.
func TestWhatIsMountedExists(t *testing.T) {
	for name, service := range load(t, "compose.yaml", nil, "*").Services {
		for _, volume := range service.Volumes {
			if volume.Type != types.VolumeTypeBind {
				continue
			}
			if _, err := os.Stat(volume.Source); err != nil || !volume.ReadOnly {
				t.Errorf("%s mounts %s, read-only %t: %v", name, volume.Source, volume.ReadOnly, err)
			}
		}
	}
}

// The operator's tool has what the verifier of its database has.
func TestTheToolLooksAtWhatTheVerifierWorksOn(t *testing.T) {
	project := load(t, "compose.yaml", nil, "*")
	for _, profile := range profiles {
		tool, verifier := project.Services["bridgectl-"+profile], project.Services["verifier-"+profile]
		if !slices.EqualFunc(tool.Secrets, verifier.Secrets, func(a, b types.ServiceSecretConfig) bool { return a.Source == b.Source && a.Target == b.Target }) {
			t.Errorf("bridgectl-%s has the secrets %v", profile, tool.Secrets)
		}
		for name, value := range tool.Environment {
			if other, ok := verifier.Environment[name]; ok && *other != *value {
				t.Errorf("bridgectl-%s has %s=%s, and the verifier %s", profile, name, *value, *other)
			}
		}
	}
}
