"""Files over SMB through unmodified clients: Samba's smbclient, smbprotocol, impacket.

With SMB_ANCHOR=1 the same tests run against a local smbd: what fails there is a mistake of the test.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest
import smbclient as high_level
from azure.storage.fileshare import ShareServiceClient
from impacket.smb3structs import SMB2_DIALECT_21, SMB2_DIALECT_30, SMB2_DIALECT_002, SMB2_DIALECT_311
from impacket.smbconnection import SessionError, SMBConnection
from smbprotocol.connection import Dialects
from smbprotocol.file_info import FileAttributes, FileStandardInformation
from smbprotocol.open import CreateDisposition

from conftest import ACCOUNT, KEY
from smb_support import HOST, Client, Status, refused

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "smb"))
from servers import Samba  # noqa: E402

SMBCLIENT_DIALECTS = ("SMB2_02", "SMB2_10", "SMB3_00", "SMB3_02", "SMB3_11")
WITH_ENCRYPTION = ("SMB3_00", "SMB3_02", "SMB3_11")
LIBRARY_DIALECTS = (
    Dialects.SMB_2_0_2, Dialects.SMB_2_1_0, Dialects.SMB_3_0_0, Dialects.SMB_3_0_2, Dialects.SMB_3_1_1,
)  # fmt: skip
ANCHOR_SHARES = [f"anchor{number}" for number in range(300)]
IDLE_CONNECTIONS = 500
IDLE_MEMORY = 50_000_000


class Target:
    """An SMB endpoint, and a function that returns a new share."""

    def __init__(self, port, pid, new_share):
        self.port, self.pid, self.new_share = port, pid, new_share


@pytest.fixture(scope="session")
def target(request):
    if os.environ.get("SMB_ANCHOR"):
        with tempfile.TemporaryDirectory() as directory:
            os.chmod(directory, 0o755)
            with Samba(Path(directory), ANCHOR_SHARES) as samba:
                yield Target(samba.port, samba.process.pid, iter(ANCHOR_SHARES).__next__)
        return
    server = request.getfixturevalue("server")
    service = ShareServiceClient.from_connection_string(server.connection_string)

    def new_share():
        return service.create_share(f"smb-{uuid.uuid4().hex[:20]}").share_name

    yield Target(server.smb, server.process.pid, new_share)


@pytest.fixture
def share(target):
    return target.new_share()


@pytest.fixture
def client(target, share):
    with Client(target.port, share) as connected:
        yield connected


def smbclient(target, address, *options, commands=None, user=f"{ACCOUNT}%{KEY}", directory=None):
    """Runs Debian's smbclient and returns its output. Fails if smbclient fails."""
    done = smbclient_unchecked(target, address, *options, commands=commands, user=user, directory=directory)
    assert done.returncode == 0, done.stdout
    assert "NT_STATUS" not in done.stdout, done.stdout
    return done.stdout


def smbclient_unchecked(target, address, *options, commands=None, user, directory=None):
    command = ["smbclient", address, "-p", str(target.port), "-U", user, *options]
    if commands:
        command += ["-c", "; ".join(commands)]
    return subprocess.run(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
    )


def only_dialect(dialect):
    return ("-m", dialect, f"--option=client min protocol={dialect}")


def listed(output):
    """Returns the names and kinds in the output of `ls`."""
    entry = re.compile(r"^  (\S.*?) +([DAHSRN]*) +(\d+)  \w{3} \w{3} .*$", re.MULTILINE)
    return {name: (kind, int(size)) for name, kind, size in entry.findall(output) if name not in (".", "..")}


@pytest.mark.parametrize("protection", ["sign", "off", "encrypt"])
@pytest.mark.parametrize("dialect", SMBCLIENT_DIALECTS)
def test_smbclient_puts_gets_renames_and_deletes_in_every_dialect(target, share, dialect, protection, tmp_path):
    if protection == "encrypt" and dialect not in WITH_ENCRYPTION:
        protection = "sign"
    content = os.urandom(3_000_001)
    (tmp_path / "here").write_bytes(content)
    options = (*only_dialect(dialect), f"--client-protection={protection}")
    said = smbclient(
        target, f"//{HOST}/{share}", *options, directory=tmp_path,
        commands=[
            "mkdir dir", "put here dir/there", "rename dir/there dir/moved", "get dir/moved back", "cd dir", "ls",
            "del moved", "cd ..", "rmdir dir", "mkdir gone", "rmdir gone", "ls *",
        ],
    )  # fmt: skip
    assert listed(said) == {"moved": ("A", len(content))}
    assert (tmp_path / "back").read_bytes() == content


def test_smbclient_lists_the_shares(target):
    shares = {target.new_share() for _ in range(3)}
    said = smbclient(target, f"//{HOST}/", "-L", f"//{HOST}")
    disks = set(re.findall(r"^\t(\S+)\s+Disk", said, re.MULTILINE))
    assert shares <= disks
    assert re.search(r"^\tIPC\$\s+IPC", said, re.MULTILINE)


@pytest.mark.parametrize("options", [("-L", f"//{HOST}"), ("-c", "ls")])
@pytest.mark.parametrize("user", [f"{ACCOUNT}%{KEY[::-1]}", f"{ACCOUNT}%", f"nobody-here%{KEY}"])
def test_smbclient_with_a_wrong_password_or_name_is_refused(target, share, user, options):
    done = smbclient_unchecked(target, f"//{HOST}/{share}", *options, user=user)
    assert done.returncode == 1 and "NT_STATUS_LOGON_FAILURE" in done.stdout, done.stdout


@pytest.mark.parametrize("name", ["not-there", "s", "x" * 70, "no_name"])
def test_smbclient_is_refused_a_share_that_does_not_exist(target, name):
    done = smbclient_unchecked(target, f"//{HOST}/{name}", "-c", "ls", user=f"{ACCOUNT}%{KEY}")
    assert done.returncode == 1 and "NT_STATUS_BAD_NETWORK_NAME" in done.stdout, done.stdout


def test_logins_ignore_the_domain_and_the_case_of_the_account(target, share):
    for user in (f"{ACCOUNT.upper()}%{KEY}", f"ANYWHERE\\{ACCOUNT}%{KEY}"):
        smbclient(target, f"//{HOST}/{share}", user=user, commands=["mkdir dir", "rmdir dir"])


def test_smbclient_lists_with_patterns(target, share, tmp_path):
    names = ["one.txt", "two.txt", "three.md", "Fourth.TXT", "naïve ü.txt", "no-extension"]
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    address = f"//{HOST}/{share}"
    smbclient(target, address, directory=tmp_path, commands=["prompt off", "mput *"])
    for pattern, expected in {
        "*": names,
        "*.txt": ["one.txt", "two.txt", "Fourth.TXT", "naïve ü.txt"],
        "t*": ["two.txt", "three.md"],
        "T??.txt": ["two.txt"],
        "no-extension": ["no-extension"],
        "NAÏVE Ü.TXT": ["naïve ü.txt"],
    }.items():
        said = smbclient(target, address, commands=[f'ls "{pattern}"'])
        assert sorted(listed(said)) == sorted(expected), pattern
    done = smbclient_unchecked(target, address, "-c", "ls *.none", user=f"{ACCOUNT}%{KEY}")
    assert "NT_STATUS_NO_SUCH_FILE" in done.stdout


def test_smbclient_uploads_and_downloads_a_tree(target, share, tmp_path):
    tree = {f"tree/{a}/{b}/file-{a}{b}": os.urandom(10_000 * a + b) for a in range(4) for b in range(4)}
    for name, content in tree.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    address = f"//{HOST}/{share}"
    smbclient(target, address, directory=tmp_path, commands=["prompt off", "recurse on", "mput tree"])
    (tmp_path / "back").mkdir()
    smbclient(target, address, directory=tmp_path / "back", commands=["prompt off", "recurse on", "mget tree"])
    assert {
        str(path.relative_to(tmp_path / "back")): path.read_bytes()
        for path in (tmp_path / "back").rglob("*") if path.is_file()
    } == tree  # fmt: skip
    said = smbclient(target, address, commands=["recurse on", "ls"])
    assert len(listed(said)) == len({part for name in tree for part in Path(name).parts})
    smbclient(target, address, commands=["deltree tree"])
    assert listed(smbclient(target, address, commands=["ls"])) == {}


def test_smbclient_sees_attributes_times_and_sizes(target, share, tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 1000)
    address = f"//{HOST}/{share}"
    said = smbclient(
        target, address, directory=tmp_path,
        commands=[
            "put file", "setmode file +rhs", "allinfo file", "setmode file -rhs",
            "utimes file -1 -1 2001:02:03-04:05:06 -1", "allinfo file",
        ],
    )  # fmt: skip
    attributes = re.findall(r"^attributes: (\w*) \((\w+)\)", said, re.MULTILINE)
    assert attributes == [("RHSA", "27"), ("A", "20")]
    assert "write_time:     Sat Feb  3 04:05:06 2001" in said
    assert said.count("stream: [::$DATA], 1000 bytes") == 2


def test_smbclient_reports_the_size_of_the_volume(target, share):
    said = smbclient(target, f"//{HOST}/{share}", commands=["volume", "du"])
    assert re.search(r"\d+ blocks of size \d+\. \d+ blocks available", said)


def test_smbclient_copies_inside_the_server(target, share, tmp_path):
    content = os.urandom(5_000_000)
    (tmp_path / "file").write_bytes(content)
    smbclient(
        target, f"//{HOST}/{share}", directory=tmp_path, commands=["put file", "scopy file copy", "get copy back"]
    )
    assert (tmp_path / "back").read_bytes() == content


@pytest.mark.parametrize("encrypt", [False, True])
@pytest.mark.parametrize("dialect", LIBRARY_DIALECTS)
def test_smbprotocol_writes_reads_and_queries_in_every_dialect(target, share, dialect, encrypt):
    encrypt = encrypt and dialect >= Dialects.SMB_3_0_0
    content = os.urandom(200_000)
    with Client(target.port, share, dialect=dialect, encrypt=encrypt) as client:
        assert client.connection.dialect == dialect
        handle = client.open("file", "rw", disposition=CreateDisposition.FILE_CREATE)
        for offset in range(0, len(content), 50_000):
            assert handle.write(content[offset : offset + 50_000], offset) == 50_000
        handle.flush()
        assert b"".join(handle.read(offset, 40_000) for offset in range(0, len(content), 40_000)) == content
        refused(Status.END_OF_FILE, lambda: handle.read(len(content), 1))
        standard = handle.query(FileStandardInformation)
        assert standard["end_of_file"].get_value() == len(content)
        assert not standard["delete_pending"].get_value() and not standard["directory"].get_value()
        handle.close()
        assert client.names() == ["file"]


@pytest.mark.parametrize(
    "disposition, there, not_there",
    [
        (CreateDisposition.FILE_SUPERSEDE, b"", None),
        (CreateDisposition.FILE_OPEN, b"old", Status.OBJECT_NAME_NOT_FOUND),
        (CreateDisposition.FILE_CREATE, Status.OBJECT_NAME_COLLISION, None),
        (CreateDisposition.FILE_OPEN_IF, b"old", None),
        (CreateDisposition.FILE_OVERWRITE, b"", Status.OBJECT_NAME_NOT_FOUND),
        (CreateDisposition.FILE_OVERWRITE_IF, b"", None),
    ],
)
def test_dispositions_open_create_or_truncate(client, disposition, there, not_there):
    old = client.open("there", "rw")
    old.write(b"old")
    old.close()
    for name, expected in (("there", there), ("not-there", not_there)):
        if isinstance(expected, int):
            refused(expected, lambda: client.open(name, "rw", disposition=disposition))
            continue
        handle = client.open(name, "rw", disposition=disposition)
        assert handle.query(FileStandardInformation)["end_of_file"].get_value() == len(expected or b"")
        if expected:
            assert handle.read() == expected
        handle.close()


SHARING = ["", "r", "w", "d", "rw", "rd", "wd", "rwd"]


@pytest.mark.parametrize("first_share", SHARING)
@pytest.mark.parametrize("first_access", SHARING[1:])
def test_an_open_conflicts_with_share_modes_of_others(target, client, share, first_access, first_share):
    """An open fails if another open does not share its access, or if it does not share the access of another open."""
    with Client(target.port, share) as other:
        first = client.open("file", first_access, first_share)
        for access in SHARING[1:]:
            for shares in SHARING:
                if set(access) <= set(first_share) and set(first_access) <= set(shares):
                    other.open("file", access, shares).close()
                else:
                    refused(Status.SHARING_VIOLATION, lambda: other.open("file", access, shares))
        first.close()


def test_byte_range_locks_block_other_opens(target, client, share):
    with Client(target.port, share) as other:
        mine, theirs = client.open("file", "rw"), other.open("file", "rw")
        mine.write(b"0123456789")
        mine.lock(0, 5)
        refused(Status.LOCK_NOT_GRANTED, lambda: theirs.lock(4, 1))
        refused(Status.LOCK_NOT_GRANTED, lambda: theirs.lock(4, 1, exclusive=False))
        refused(Status.FILE_LOCK_CONFLICT, lambda: theirs.read(0, 10))
        refused(Status.FILE_LOCK_CONFLICT, lambda: theirs.write(b"x", 4))
        assert theirs.read(5, 5) == b"56789" and theirs.write(b"x", 5) == 1
        theirs.lock(5, 5, exclusive=False)
        mine.lock(5, 5, exclusive=False)
        refused(Status.FILE_LOCK_CONFLICT, lambda: mine.write(b"x", 6))
        refused(Status.RANGE_NOT_LOCKED, lambda: theirs.unlock(0, 5))
        mine.unlock(0, 5)
        theirs.lock(0, 5)
        theirs.close()
        mine.lock(0, 5)
        mine.close()


def test_a_lock_that_waits_is_granted_when_the_range_is_free(target, client, share):
    with ThreadPoolExecutor(1) as pool, Client(target.port, share) as other:
        mine, theirs = client.open("file", "rw"), other.open("file", "rw")
        mine.lock(0, 10)
        waiting = pool.submit(theirs.lock, 5, 1, True, True)
        refused(Status.LOCK_NOT_GRANTED, lambda: other.open("file", "rw").lock(5, 1))
        assert not waiting.done()
        mine.unlock(0, 10)
        waiting.result(timeout=20)
        refused(Status.LOCK_NOT_GRANTED, lambda: mine.lock(5, 1))


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("asked", ["R", "RH", "RW", "RWH"])
def test_leases_are_granted_as_requested(client, asked, v2):
    handle = client.open("file", "rw", lease=asked, v2=v2)
    assert set(handle.lease) == set(asked)
    again = client.open("file", "rw", lease=asked, key=handle.lease_key, v2=v2)
    assert set(again.lease) == set(asked)
    client.no_break()


@pytest.mark.parametrize(
    "held, access, after",
    [("RWH", "r", "RH"), ("RW", "r", "R"), ("RH", "r", None), ("R", "r", None)],
)
def test_an_open_by_another_client_takes_the_write_part_of_a_lease(target, client, share, held, access, after):
    with ThreadPoolExecutor(1) as pool, Client(target.port, share) as other:
        holder = client.open("file", "rw", lease=held)
        assert set(holder.lease) == set(held)
        opening = pool.submit(other.open, "file", access)
        if after is not None:
            seen = client.next_break()
            assert (seen.key, set(seen.before), set(seen.after)) == (holder.lease_key, set(held), set(after))
            assert seen.must_acknowledge and not opening.done()
            holder.write(b"what was only in my cache")
            client.acknowledge(seen)
        opened = opening.result(timeout=20)
        client.no_break()
        if after is not None:
            assert opened.read() == b"what was only in my cache"


def test_a_write_by_another_client_takes_read_leases_without_waiting(target, client, share):
    with Client(target.port, share) as other:
        holder = client.open("file", "r", lease="RH")
        writer = other.open("file", "rw")
        writer.write(b"new")
        seen = client.next_break()
        assert (seen.key, set(seen.before), seen.after) == (holder.lease_key, set("RH"), "")
        if seen.must_acknowledge:
            client.acknowledge(seen)
        assert holder.read() == b"new"


def test_renames_replace_only_on_request_and_keep_the_open(client):
    for name in ("source", "target"):
        handle = client.open(name, "rwd")
        handle.write(name.encode())
        handle.close()
    client.directory("dir").close()
    source = client.open("source", "rd")
    refused(Status.OBJECT_NAME_COLLISION, lambda: source.rename("target"))
    source.rename("target", replace=True)
    source.rename(r"dir\moved")
    assert source.read() == b"source"
    source.close()
    assert (client.names(), client.names("dir")) == (["dir"], ["moved"])
    directory = client.directory("dir", "rd")
    directory.rename("DIR")
    directory.close()
    assert (client.names(), client.names("dir")) == (["DIR"], ["moved"])


def test_deletion_waits_for_the_last_handle(target, client, share):
    with Client(target.port, share) as other:
        first, second = client.open("file", "rwd"), other.open("file", "rwd")
        first.delete_on_close()
        assert second.query(FileStandardInformation)["delete_pending"].get_value()
        refused(Status.DELETE_PENDING, lambda: client.open("file", "r"))
        second.delete_on_close(False)
        client.open("file", "r").close()
        second.delete_on_close()
        first.close()
        refused(Status.DELETE_PENDING, lambda: client.open("file", "r"))
        second.close()
        refused(
            Status.OBJECT_NAME_NOT_FOUND,
            lambda: client.open("file", "r", disposition=CreateDisposition.FILE_OPEN),
        )


def test_only_empty_directories_are_deleted(client):
    client.directory("dir").close()
    client.open(r"dir\file").close()
    handle = client.directory("dir", "rd")
    refused(Status.DIRECTORY_NOT_EMPTY, handle.delete_on_close)
    handle.close()
    assert client.names("dir") == ["file"]


def test_read_only_files_are_neither_written_nor_deleted(client):
    client.open("file", "rw", attributes=FileAttributes.FILE_ATTRIBUTE_READONLY).close()
    refused(Status.ACCESS_DENIED, lambda: client.open("file", "w"))
    handle = client.open("file", "d")
    refused(Status.CANNOT_DELETE, handle.delete_on_close)
    handle.set_attributes(FileAttributes.FILE_ATTRIBUTE_NORMAL)
    handle.delete_on_close()
    handle.close()
    assert client.names() == []


def test_a_large_directory_is_listed_whole_and_once(client):
    names = [f"file-{number:04}-{'x' * 100}" for number in range(1500)]
    for name in names:
        client.open(name).close()
    assert sorted(client.names()) == names
    assert sorted(client.names(pattern="FILE-01*")) == names[100:200]


def test_smbprotocol_works_as_a_file_system(target, share):
    """Uses the high-level interface of smbprotocol, as scripts do."""
    cache = {}
    options = dict(username=ACCOUNT, password=KEY, port=target.port, connection_cache=cache)
    root = rf"\\{HOST}\{share}"
    high_level.makedirs(rf"{root}\a\b\c", **options)
    with high_level.open_file(rf"{root}\a\b\file.txt", "w", encoding="utf-8", **options) as file:
        file.write("grüße\n" * 10_000)
    with high_level.open_file(rf"{root}\a\b\file.txt", "a", encoding="utf-8", **options) as file:
        file.write("end")
    with high_level.open_file(rf"{root}\a\b\file.txt", encoding="utf-8", **options) as file:
        assert file.read() == "grüße\n" * 10_000 + "end"
    assert sorted(high_level.listdir(rf"{root}\a\b", **options)) == ["c", "file.txt"]
    high_level.copyfile(rf"{root}\a\b\file.txt", rf"{root}\copy", **options)
    size = len(("grüße\n" * 10_000 + "end").encode())
    assert high_level.stat(rf"{root}\copy", **options).st_size == size
    high_level.truncate(rf"{root}\copy", 7, **options)
    high_level.utime(rf"{root}\copy", ns=(10**18, 10**18 + 100), **options)
    seen = high_level.stat(rf"{root}\copy", **options)
    assert (seen.st_size, seen.st_mtime_ns) == (7, 10**18 + 100)
    high_level.replace(rf"{root}\copy", rf"{root}\a\b\file.txt", **options)
    walked = list(high_level.walk(rf"{root}\a", **options))
    assert [(where.rpartition("\\")[2], *below) for where, *below in walked] == [("a", ["b"], []), ("b", ["c"], ["file.txt"]), ("c", [], [])]
    high_level.remove(rf"{root}\a\b\file.txt", **options)
    high_level.removedirs(rf"{root}\a\b\c", **options)
    assert high_level.listdir(root, **options) == []
    high_level.reset_connection_cache(connection_cache=cache)


def test_smbprotocol_with_a_wrong_password_is_refused(target, share):
    for user, password in ((ACCOUNT, "wrong"), ("nobody-here", KEY)):
        refused(Status.LOGON_FAILURE, lambda: Client(target.port, share, user, password))


def test_wrong_passwords_cost_time_and_more_with_each(target, share):
    """smbd does not delay wrong passwords, so this test is for Lazuli only."""

    def seconds_of_wrong_password():
        begun = time.monotonic()
        refused(Status.LOGON_FAILURE, lambda: Client(target.port, share, password="wrong"))
        return time.monotonic() - begun

    spent = [seconds_of_wrong_password() for _ in range(6)]
    assert all(seconds >= 0.09 * 2**count for count, seconds in enumerate(spent)), spent
    # The right password ends the delay. A busy machine may delay one attempt as long as the sixth, not all.
    after_right = []
    for _ in range(3):
        with Client(target.port, share) as client:
            assert client.names() == []
        after_right.append(seconds_of_wrong_password())
    assert min(after_right) < spent[5], (after_right, spent)


def impacket(target, dialect=None, user=ACCOUNT, password=KEY):
    connection = SMBConnection(HOST, HOST, sess_port=target.port, preferredDialect=dialect)
    connection.login(user, password)
    return connection


@pytest.mark.parametrize("dialect", [SMB2_DIALECT_002, SMB2_DIALECT_21, SMB2_DIALECT_30, SMB2_DIALECT_311, None])
def test_impacket_uploads_and_downloads(target, share, dialect):
    connection = impacket(target, dialect)
    content = os.urandom(1_500_000)
    connection.createDirectory(share, "dir")
    connection.putFile(share, r"dir\file", BytesIO(content).read)
    back = BytesIO()
    connection.getFile(share, r"dir\file", back.write)
    assert back.getvalue() == content
    found = {entry.get_longname(): entry.get_filesize() for entry in connection.listPath(share, r"dir\*")}
    assert found.pop("file") == len(content) and set(found) == {".", ".."}
    connection.rename(share, r"dir\file", "moved")
    connection.deleteFile(share, "moved")
    connection.deleteDirectory(share, "dir")
    assert {entry.get_longname() for entry in connection.listPath(share, "*")} <= {".", ".."}
    connection.logoff()


def test_impacket_lists_the_shares(target, share):
    connection = impacket(target)
    names = [entry["shi1_netname"][:-1] for entry in connection.listShares()]
    assert share in names and "IPC$" in names
    connection.logoff()


def test_impacket_with_a_wrong_password_is_refused(target):
    with pytest.raises(SessionError) as refusal:
        impacket(target, password="wrong")
    assert refusal.value.getErrorCode() == Status.LOGON_FAILURE


def resident(pid):
    """Returns the resident bytes of a process and its children. smbd has one child per connection."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        except OSError:
            continue
        if str(pid) in (fields["Pid"].strip(), fields["PPid"].strip()) and "VmRSS" in fields:
            total += int(fields["VmRSS"].split()[0]) * 1024
    return total


def test_idle_connections_cost_little_memory(target, share):
    """Each connection negotiates, logs in, connects to the share, and then sends nothing."""
    with Client(target.port, share):
        before = resident(target.pid)
    threads = threading.active_count()
    with ThreadPoolExecutor(8) as pool:
        clients = list(pool.map(lambda _: Client(target.port, share), range(IDLE_CONNECTIONS)))
    try:
        grown = resident(target.pid) - before
        assert grown < IDLE_MEMORY, f"{grown / 1e6:.1f} MB for {IDLE_CONNECTIONS} connections"
        assert clients[0].names() == clients[-1].names() == []
    finally:
        for client in clients:
            client.connection.disconnect(False)
    assert threading.active_count() <= threads + 8
