"""What holds for every file from outside, before any library reads it: sizes, links, and the members of archives."""

import os
import stat
import zipfile
import zlib

LARGEST_BYTES = 4 << 30
"""Of a model, all its files together and as they are when unpacked; protobuf ends at 2 GiB."""
MOST_FILES = 10000


def check_size(path, links=True):
    """Raise ValueError where a file or folder is missing or too large, or something in it leads elsewhere by a link; the path itself may
    be one unless told."""
    found, total = 0, 0
    for at, size, mode in _entries(str(path), os.stat if links else os.lstat):
        if stat.S_ISLNK(mode) or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ValueError("{} is a link or a special file, and a model's files must be its own".format(at))
        found, total = found + 1, total + size
        if found > MOST_FILES:
            raise ValueError("{} holds more than {} files".format(path, MOST_FILES))
    check_bytes(path, total)


def check_bytes(path, total):
    """Raise ValueError where a model has more bytes than it may, unpacked."""
    if total > LARGEST_BYTES:
        raise ValueError("{} has {:.1f} GiB; a model may have {}".format(path, total / 2.0 ** 30, LARGEST_BYTES >> 30))


def _entries(path, look_at):
    """Path, size and mode of a file, or of everything in a folder."""
    try:
        top = look_at(path)
        yield path, 0 if stat.S_ISDIR(top.st_mode) else top.st_size, top.st_mode
        for folder, folders, names in os.walk(path):
            for name in folders + names:
                entry = os.lstat(os.path.join(folder, name))
                yield os.path.join(folder, name), entry.st_size, entry.st_mode
    except OSError as error:
        raise ValueError("{}: {}".format(path, error.strerror)) from error


def start(path, count):
    """The first bytes of a file, b"" where there is none."""
    if not os.path.isfile(str(path)):
        return b""
    with open(str(path), "rb") as file:
        return file.read(count)


def members(path):
    """Names of a zip archive's members, [] where it is none; for recognising alone."""
    if start(path, 4) != b"PK\x03\x04":
        return []
    try:
        with zipfile.ZipFile(str(path)) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return []


def read_members(path, wanted):
    """Bytes by name of the members that `wanted(name)` asks for, of a zip archive that was checked first.

    Raises ValueError that names the file where it is damaged; where a member has an absolute name, leads out of the archive, stands there
    twice or is encrypted; or where all members together, unpacked, are too large.
    """
    try:
        with zipfile.ZipFile(str(path)) as archive:
            entries = archive.infolist()
            _check_entries(path, entries)
            return {entry.filename: _read(archive, entry) for entry in entries if not entry.is_dir() and wanted(entry.filename)}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise damaged(path, error) from error


def damaged(path, error):
    """A ValueError that names the file, of what a library said of it."""
    return ValueError("{}: {}".format(path, one_line(str(error).replace(str(path), "it") or type(error).__name__)))


def one_line(text):
    """An exception, or what it says, on one line of at most 400 characters."""
    text = " ".join(str(text).split())
    return text if len(text) <= 400 else text[:397] + "..."


def _check_entries(path, entries):
    names = set()
    for entry in entries:
        parts = entry.filename.replace("\\", "/").split("/")
        if ".." in parts or parts[0] == "" or ":" in parts[0]:
            raise ValueError("{}: the member {!r} leads out of the archive".format(path, entry.filename))
        if entry.filename in names:
            raise ValueError("{}: the member {!r} stands there twice".format(path, entry.filename))
        names.add(entry.filename)
    if len(entries) > MOST_FILES:
        raise ValueError("{} holds more than {} members".format(path, MOST_FILES))
    check_bytes(path, sum(entry.file_size for entry in entries))


def _read(archive, entry):
    """A member's bytes. zipfile stops at the stated size, so that a false one can't make it larger."""
    with archive.open(entry) as file:
        return file.read(entry.file_size)
