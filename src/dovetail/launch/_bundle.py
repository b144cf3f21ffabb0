# SPDX-License-Identifier: Apache-2.0
"""`Bundle`: code and config of a job, as they were when it was submitted. It does not change, and has no secrets.

Its hash names it: equal content has an equal name, wherever it was made. It lies under the directory of the run, in
`launch/bundles/HASH.tar.gz`, where the hosts of the job find it.
"""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ._records import write_whole


class Bundle(NamedTuple):
    """What a job takes along."""

    files: Mapping[
        str, bytes
    ]  # By path: `about.json` (git state, versions), `config.json`, `constraints.txt`, `code/`.

    @property
    def hash(self) -> str:
        """Returns the name of this content: 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for name in sorted(self.files):
            data = self.files[name]
            digest.update(f"{len(name)} {name} {len(data)} ".encode())
            digest.update(data)
        return digest.hexdigest()[:16]

    @property
    def file(self) -> str:
        """Returns where it lies, below the directory of the run."""
        return f"launch/bundles/{self.hash}.tar.gz"

    def packed(self) -> bytes:
        """Returns it as a file: the same bytes for the same content. It has no times, no owners, no addresses."""
        data = io.BytesIO()
        with (
            gzip.GzipFile(fileobj=data, mode="wb", compresslevel=6, mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name in sorted(self.files):
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(self.files[name]), 0o644
                archive.addfile(info, io.BytesIO(self.files[name]))
        return data.getvalue()

    def write(self, directory: Path) -> Path:
        """Writes it below the directory of a run, once: what is there already, by the same name, is the same."""
        file = directory / self.file
        if not file.exists():
            write_whole(file, self.packed())
        return file
