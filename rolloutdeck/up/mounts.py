"""Which file system a path lies on, from the kernel's mount table (proc_pid_mountinfo(5))."""

from __future__ import annotations

import re
from pathlib import Path

# SQLite's locks and its shared-memory index do not hold between hosts on these (sqlite.org/wal.html, section 1).
NETWORK = re.compile(
    r"nfs4?|cifs|smb3?|smbfs|afs|ncpfs|lustre|gpfs|ceph|beegfs\w*|panfs|pvfs2|orangefs|glusterfs|wekafs|9p|virtio-9p"
    r"|fuse\.(?:sshfs|glusterfs|ceph\S*|juicefs|s3fs|goofys|gcsfuse|rclone|JuiceFS\S*|lustre|weka\S*|mount-s3|blobfuse\S*)"
)


def find_network_type(path: Path, table: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the network file system that `path` lies on, or an empty string when it is local or unknown."""
    kind = mount_type(path.resolve(), table)
    return kind if NETWORK.fullmatch(kind) else ""


def mount_type(path: Path, table: Path) -> str:
    """The file system type of the longest mount point above `path`."""
    try:
        lines = table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        fields, _, rest = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields.split(" ")[4])
        if path.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), rest.split(" ")[0]
    return kind
