"""Finds the file system type of a path in the kernel's mount table (proc_pid_mountinfo(5))."""

from __future__ import annotations

import re
from pathlib import Path

# On these, SQLite's locks and shared-memory index do not work between hosts (sqlite.org/wal.html, section 1).
NETWORK_TYPES = re.compile(
    r"nfs4?|cifs|smb3?|smbfs|afs|ncpfs|lustre|gpfs|ceph|beegfs\w*|panfs|pvfs2|orangefs|glusterfs|wekafs|9p|virtio-9p"
    r"|fuse\.(?:sshfs|glusterfs|ceph\S*|juicefs|s3fs|goofys|gcsfuse|rclone|JuiceFS\S*|lustre|weka\S*|mount-s3|blobfuse\S*)"
)


def find_network_type(path: Path, table: Path = Path("/proc/self/mountinfo")) -> str:
    """Returns the type of the network file system that contains `path`; "" if it is local or unknown."""
    kind = find_mount_type(path.resolve(), table)
    return kind if NETWORK_TYPES.fullmatch(kind) else ""


def find_mount_type(path: Path, table: Path) -> str:
    """Returns the file system type of the longest mount point above `path`; "" if the table can't be read."""
    try:
        lines = table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    longest, kind = -1, ""
    for line in lines:
        fields, _, rest = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields.split(" ")[4])
        if path.is_relative_to(point) and len(point) >= longest:
            longest, kind = len(point), rest.split(" ")[0]
    return kind
