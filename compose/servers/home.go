package servers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// home is a server's temporary folder, with the account that owns it and runs the server. If this
// process is root, that is an unprivileged account, since the databases refuse root. Otherwise it
// is this process's own.
type home struct {
	folder  string
	account *syscall.Credential // nil: this process's own
}

// newHome creates a folder for a server of a kind. If account is empty, the server runs under this
// process's account.
func newHome(kind, account string) (home, error) {
	var h home
	base := os.TempDir()
	if account != "" && os.Geteuid() == 0 {
		credential, err := lookUp(account)
		if err != nil {
			return home{}, err
		}
		h.account = credential
		if !open(base) {
			base = "/tmp"
		}
	}
	folder, err := os.MkdirTemp(base, "twoqueue-"+kind+"-")
	if err != nil {
		return home{}, fmt.Errorf("make folder: %w", err)
	}
	h.folder = folder
	if h.account != nil {
		if err := os.Chown(folder, int(h.account.Uid), int(h.account.Gid)); err != nil {
			return home{}, errors.Join(fmt.Errorf("give folder away: %w", err), os.RemoveAll(folder))
		}
	}
	return h, nil
}

// command returns a command that runs in the home, under its account. Of this process's environment
// it gets only the PATH.
func (h home) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = h.folder
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + h.folder,
		"TMPDIR=" + h.folder,
		"LC_ALL=C.UTF-8",
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: h.account}
	return cmd
}

func (h home) path(name string) string { return filepath.Join(h.folder, name) }

// write writes a file that the server can read.
func (h home) write(name, text string, mode os.FileMode) error {
	path := h.path(name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if h.account != nil {
		if err := os.Chown(path, int(h.account.Uid), int(h.account.Gid)); err != nil {
			return fmt.Errorf("write configuration: %w", err)
		}
	}
	return nil
}

func lookUp(account string) (*syscall.Credential, error) {
	found, err := user.Lookup(account)
	if err != nil {
		return nil, fmt.Errorf("look up account: %w", err)
	}
	uid, err := strconv.ParseUint(found.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("look up account %s: %w", account, err)
	}
	gid, err := strconv.ParseUint(found.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("look up account %s: %w", account, err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// open reports whether every account may enter the folder.
func open(folder string) bool {
	for {
		info, err := os.Stat(folder)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if folder == "/" || folder == "." {
			return true
		}
		folder = filepath.Dir(folder)
	}
}
