# SPDX-License-Identifier: Apache-2.0
"""`File`: what is known of a file of a source before it is read, and what tells it from what it was or will be."""

from typing import NamedTuple

HEAD = 64  # Bytes that are read of each file, to tell what is in it.
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # How such files start. No text in UTF-8 does.


class File(NamedTuple):
    """A file, at a path or at a URL."""

    path: str
    size: int
    version: str  # When it was changed; its ETag or generation in a store. "": a server that does not say.
    head: bytes
    ranges: bool = True  # Whether some of it can be read without what is before.
    md5: str = ""  # Where a store tells it.

    @property
    def is_remote(self) -> bool:
        """Whether it is at a URL."""
        return "://" in self.path

    @property
    def name(self) -> str:
        """What messages and plans call it: a query may hold a signature, which is nobody's business."""
        return self.path.partition("?")[0] if self.path.startswith("http") and self.is_remote else self.path

    @property
    def compression(self) -> str:
        """Returns "gz", "zst" or "", by what is in it."""
        if self.head[:2] == _GZIP:
            return "gz"
        # Zstandard may start with a frame to skip, which other bytes mark.
        return "zst" if self.head[:4] == _ZSTD or (self.name.endswith(".zst")) else ""

    @property
    def bare_name(self) -> str:
        """The name without the ending of its compression."""
        return self.name.removesuffix(".gz").removesuffix(".zst")
