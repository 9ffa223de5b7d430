package compose

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakeDocker answers as docker does: with the configuration, and with a digest for two of the
// three images.
const fakeDocker = `#!/bin/sh
case "$*" in
"compose -f compose.yaml --profile * config") cat <<END
name: twoqueue
services:
  postgres:
    image: postgres:17.11-bookworm
    secrets:
      - source: x
  shop-postgres:
    image: twoqueue/shop:dev
  sqlserver:
    image: $SQL
  sqlserver-init:
    image: $SQL
networks:
  default:
    image: none
END
;;
"buildx imagetools inspect --format {{.Manifest.Digest}} postgres:17.11-bookworm") echo sha256:PPPP ;;
"buildx imagetools inspect --format {{.Manifest.Digest}} example.org/sql:1") echo sha256:SSSS ;;
*) exit 1 ;;
esac
`

func TestDigestsPinsTheImagesOfOthers(t *testing.T) {
	bin := t.TempDir()
	p, s := strings.Repeat("0", 64), strings.Repeat("a", 64)
	text := strings.NewReplacer("PPPP", p, "SSSS", s).Replace(fakeDocker)
	if err := os.WriteFile(filepath.Join(bin, "docker"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	digests := func(sql string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "../../compose/digests")
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "SQL="+sql)
		out, err := cmd.Output()
		return string(out), err
	}
	out, err := digests("example.org/sql:1")
	want := "services:\n  postgres:\n    image: postgres:17.11-bookworm@sha256:" + p +
		"\n  sqlserver:\n    image: example.org/sql:1@sha256:" + s + "\n  sqlserver-init:\n    image: example.org/sql:1@sha256:" + s + "\n"
	if err != nil || out != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
	if out, err := digests("example.org/unknown:1"); err == nil {
		t.Errorf("an image without a digest is no error:\n%s", out)
	}
}
