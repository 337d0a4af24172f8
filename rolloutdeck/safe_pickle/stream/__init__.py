"""The byte stream of a pickle: its source, its opcodes, and the ZIP archive of torch.

Depends on: the errors of `rolloutdeck.safe_pickle`.
Invariant: it only splits bytes: no opcode is executed and no object is built.
"""

from rolloutdeck.safe_pickle.stream.arguments import ByteSpan, PickleLimits
from rolloutdeck.safe_pickle.stream.opcodes import Opcode, scan_opcodes
from rolloutdeck.safe_pickle.stream.source import ByteSource
from rolloutdeck.safe_pickle.stream.torch_archive import DTYPE_SIZES, STORAGE_DTYPES, TorchArchive, is_zip

__all__ = [
    "ByteSource", "ByteSpan", "DTYPE_SIZES", "Opcode", "PickleLimits", "STORAGE_DTYPES", "TorchArchive", "is_zip",
    "scan_opcodes",
]  # fmt: skip
