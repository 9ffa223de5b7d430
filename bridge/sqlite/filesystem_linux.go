package sqlite

import (
	"fmt"
	"syscall"
)

// networkTypes are the numbers of file systems that may be on another machine: linux/magic.h and
// statfs(2).
var networkTypes = map[uint32]string{
	0x6969:     "NFS",
	0x517B:     "SMB",
	0xFF534D42: "CIFS",
	0xFE534D42: "SMB2",
	0x01021997: "9P",
	0x5346414F: "AFS",
	0x00C36400: "Ceph",
	0x0BD00BD0: "Lustre",
	0x01161970: "GFS2",
	0x7461636F: "OCFS2",
}

// onNetwork returns the name of a file's network file system, "" if the file is on no known one. An
// empty file name is a database in memory.
func onNetwork(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	var s syscall.Statfs_t
	if err := syscall.Statfs(file, &s); err != nil {
		return "", fmt.Errorf("look at the file system: %w", err)
	}
	return networkTypes[uint32(s.Type)], nil // the size of Type differs between architectures
}
