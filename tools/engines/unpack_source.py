"""Unpack files of a source distribution; runs in an engine's environment.

    python unpack_source.py FOLDER PACKAGE VERSION SHA256 PATH...

`pip download` would build the package to learn its dependencies. This takes the archive from the
index that pip is configured for, by pip's own finder, and builds nothing.
"""

import hashlib
import io
import sys
import tarfile
from pathlib import Path, PurePosixPath

from pip._internal.commands import create_command


def archive_of(package: str, version: str) -> bytes:
    """The archive, from the configured index."""
    command = create_command("download")
    options, _ = command.parse_args(["--no-binary", package, package])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options=options, session=session)
        for candidate in finder.find_all_candidates(package):
            if str(candidate.version) == version and candidate.link.filename.endswith(".tar.gz"):
                answer = session.get(candidate.link.url_without_fragment)
                answer.raise_for_status()
                return answer.content
    raise SystemExit(f"The index has no source distribution of {package} {version}.")


def main(folder: str, package: str, version: str, sha256: str, *paths: str) -> None:
    """Take the archive, check it, and unpack the paths that are asked for."""
    content = archive_of(package, version)
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise SystemExit(f"{package} {version} has the SHA-256 {found}, expected {sha256}.")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            inner = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if any(inner.is_relative_to(path) for path in paths):
                member.name = str(inner)
                archive.extract(member, Path(folder), filter="data")


main(*sys.argv[1:])
