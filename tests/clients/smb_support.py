"""An SMB client for tests, built on the library smbprotocol.

Adds opens that are described by letters, and lease breaks. The library can request leases but knows no unsolicited
messages. `Breaks` acts as the request that such a message seems to answer.
"""

import queue
import struct
import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum

import pytest
from smbprotocol.connection import Connection
from smbprotocol.create_contexts import (
    CreateContextName,
    SMB2CreateContextRequest,
    SMB2CreateRequestLease,
    SMB2CreateRequestLeaseV2,
    SMB2CreateResponseLease,
    SMB2CreateResponseLeaseV2,
)
from smbprotocol.exceptions import SMBResponseException
from smbprotocol.file_info import (
    FileAttributes,
    FileBasicInformation,
    FileDispositionInformation,
    FileInformationClass,
    FileRenameInformation,
)
from smbprotocol.header import Commands, SMB2HeaderRequest
from smbprotocol.open import (
    CreateDisposition,
    CreateOptions,
    ImpersonationLevel,
    LockFlags,
    Open,
    SMB2LockElement,
    SMB2QueryInfoRequest,
    SMB2QueryInfoResponse,
    SMB2SetInfoRequest,
)
from smbprotocol.session import Session
from smbprotocol.structure import BytesField, IntField, Structure
from smbprotocol.tree import TreeConnect

from conftest import ACCOUNT, KEY

HOST = "127.0.0.1"
NOTIFICATION = 0xFFFFFFFFFFFFFFFF
BREAK_SECONDS = 20

# FILE_READ_DATA, FILE_WRITE_DATA with FILE_APPEND_DATA, DELETE. Access to attributes is always requested: it
# conflicts with no other open.
ACCESS = {"r": 0x1, "w": 0x6, "d": 0x10000}
ATTRIBUTES = 0x180
SHARE = {"r": 1, "w": 2, "d": 4}
LEASE = {"R": 1, "H": 2, "W": 4}
LEASE_OPLOCK_LEVEL = 0xFF


class Status(IntEnum):
    """The NT statuses that the tests expect. The library does not name them all."""

    NO_MORE_FILES = 0x80000006
    NO_SUCH_FILE = 0xC000000F
    END_OF_FILE = 0xC0000011
    ACCESS_DENIED = 0xC0000022
    OBJECT_NAME_NOT_FOUND = 0xC0000034
    OBJECT_NAME_COLLISION = 0xC0000035
    SHARING_VIOLATION = 0xC0000043
    FILE_LOCK_CONFLICT = 0xC0000054
    LOCK_NOT_GRANTED = 0xC0000055
    DELETE_PENDING = 0xC0000056
    LOGON_FAILURE = 0xC000006D
    RANGE_NOT_LOCKED = 0xC000007E
    DIRECTORY_NOT_EMPTY = 0xC0000101
    CANNOT_DELETE = 0xC0000121
    FILE_CLOSED = 0xC0000128


def bits(letters: str, table: dict) -> int:
    return sum(table[letter] for letter in letters)


def letters(state: int) -> str:
    """Returns a lease state as in the specification: RWH, RH, RW, R or nothing."""
    return "".join(letter for letter in "RWH" if state & LEASE[letter])


@dataclass
class LeaseBreak:
    """A lease break notification."""

    key: bytes
    before: str
    after: str
    must_acknowledge: bool
    epoch: int


@dataclass
class OplockBreak:
    file_id: bytes
    level: int


class Acknowledgment(Structure):
    """A lease break acknowledgment."""

    COMMAND = Commands.SMB2_OPLOCK_BREAK

    def __init__(self, key=b"\0" * 16, state=0):
        self.fields = OrderedDict(
            [
                ("structure_size", IntField(size=2, default=36)),
                ("reserved", IntField(size=2, default=0)),
                ("flags", IntField(size=4, default=0)),
                ("lease_key", BytesField(size=16, default=key)),
                ("lease_state", IntField(size=4, default=state)),
                ("lease_duration", IntField(size=8, default=0)),
            ]
        )
        super().__init__()


class Breaks:
    """A request that never completes, under the message id of notifications."""

    def __init__(self):
        self.arrived = queue.Queue()
        self.session_id = None
        self.async_id = None
        self.message = SMB2HeaderRequest()
        self.response_event = threading.Event()
        self.response_event_lock = threading.Lock()

    @property
    def response(self):
        return None

    @response.setter
    def response(self, header):
        body = header["data"].get_value()
        (size,) = struct.unpack_from("<H", body)
        if size == 44:
            epoch, flags, key, before, after = struct.unpack_from("<HI16sII", body, 2)
            self.arrived.put(LeaseBreak(key, letters(before), letters(after), bool(flags & 1), epoch))
        else:
            level, file_id = struct.unpack_from("<B5x16s", body, 2)
            self.arrived.put(OplockBreak(file_id, level))


class Client:
    """A connection with one session and one share."""

    def __init__(self, port, share, user=ACCOUNT, password=KEY, dialect=None, encrypt=False, signing=True):
        self.connection = Connection(uuid.uuid4(), HOST, port, require_signing=signing)
        self.connection.connect(dialect)
        self.breaks = Breaks()
        self.connection.outstanding_requests[NOTIFICATION] = self.breaks
        self.session = Session(self.connection, user, password, require_encryption=encrypt, auth_protocol="ntlm")
        self.session.connect()
        self.tree = TreeConnect(self.session, rf"\\{HOST}\{share}")
        self.tree.connect(require_secure_negotiate=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.disconnect(False)

    def open(
        self, name, access="r", share="rwd", disposition=CreateDisposition.FILE_OPEN_IF, options=0,
        lease=None, key=None, v2=False, oplock=0, attributes=0, rights=0,
    ):  # fmt: skip
        """Opens a file. `lease` requests a lease with letters of RWH under `key`, or else under a new key."""
        handle = Handle(self, name)
        contexts = None
        if lease is not None:
            handle.lease_key = key or uuid.uuid4().bytes
            contexts, oplock = [lease_context(lease, handle.lease_key, v2)], LEASE_OPLOCK_LEVEL
        answers = handle.open.create(
            ImpersonationLevel.Impersonation, bits(access, ACCESS) | ATTRIBUTES | rights,
            attributes or FileAttributes.FILE_ATTRIBUTE_NORMAL, bits(share, SHARE), disposition, options,
            contexts, oplock,
        )  # fmt: skip
        for answer in answers or []:
            if isinstance(answer, (SMB2CreateResponseLease, SMB2CreateResponseLeaseV2)):
                handle.lease = letters(answer["lease_state"].get_value())
        return handle

    def directory(self, name, access="r", share="rwd", disposition=CreateDisposition.FILE_OPEN_IF):
        return self.open(name, access, share, disposition, CreateOptions.FILE_DIRECTORY_FILE)

    def names(self, directory="", pattern="*"):
        """Returns the names in a directory, without `.` and `..`."""
        handle = self.directory(directory, disposition=CreateDisposition.FILE_OPEN)
        found = []
        while True:
            try:
                entries = handle.open.query_directory(
                    pattern, FileInformationClass.FILE_ID_BOTH_DIRECTORY_INFORMATION
                )
            except SMBResponseException as end:
                assert end.status in (Status.NO_MORE_FILES, Status.NO_SUCH_FILE), end
                break
            found += [entry["file_name"].get_value().decode("utf-16-le") for entry in entries]
        handle.close()
        return [name for name in found if name not in (".", "..")]

    def next_break(self, seconds=BREAK_SECONDS):
        return self.breaks.arrived.get(timeout=seconds)

    def no_break(self):
        """Checks that no other break has arrived. After a round trip, everything that the server sent has arrived."""
        self.connection.echo(sid=self.session.session_id)
        assert self.breaks.arrived.empty(), self.breaks.arrived.queue

    def acknowledge(self, lease_break: LeaseBreak, state=None):
        """Acknowledges a break with the announced state, or with a lower one."""
        wanted = lease_break.after if state is None else state
        return self.request(Acknowledgment(lease_break.key, bits(wanted, LEASE)))

    def request(self, message):
        sent = self.connection.send(message, self.session.session_id, self.tree.tree_connect_id)
        return self.connection.receive(sent, timeout=60)


def lease_context(state, key, v2):
    lease = SMB2CreateRequestLeaseV2() if v2 else SMB2CreateRequestLease()
    lease["lease_key"] = key
    lease["lease_state"] = bits(state, LEASE)
    if v2:
        lease["parent_lease_key"], lease["epoch"] = bytes(16), bytes(2)
    context = SMB2CreateContextRequest()
    context["buffer_name"] = CreateContextName.SMB2_CREATE_REQUEST_LEASE
    context["buffer_data"] = lease
    return context


class Handle:
    """An open file."""

    def __init__(self, client: Client, name: str):
        self.client, self.name = client, name
        self.open = Open(client.tree, name)
        self.lease, self.lease_key = None, None

    def read(self, offset=0, length=65536):
        return self.open.read(offset, length)

    def write(self, data, offset=0):
        return self.open.write(data, offset)

    def flush(self):
        self.open.flush()

    def lock(self, offset, length, exclusive=True, wait=False):
        kind = LockFlags.SMB2_LOCKFLAG_EXCLUSIVE_LOCK if exclusive else LockFlags.SMB2_LOCKFLAG_SHARED_LOCK
        self._lock(offset, length, kind if wait else kind | LockFlags.SMB2_LOCKFLAG_FAIL_IMMEDIATELY)

    def unlock(self, offset, length):
        self._lock(offset, length, LockFlags.SMB2_LOCKFLAG_UNLOCK)

    def _lock(self, offset, length, flags):
        element = SMB2LockElement()
        element["offset"], element["length"], element["flags"] = offset, length, flags
        self.open.lock([element])

    def delete_on_close(self, pending=True):
        information = FileDispositionInformation()
        information["delete_pending"] = pending
        self.set(information)

    def rename(self, name, replace=False):
        information = FileRenameInformation()
        information["replace_if_exists"] = replace
        information["file_name"] = name
        self.set(information)

    def set_attributes(self, attributes):
        information = FileBasicInformation()
        information["file_attributes"] = attributes
        self.set(information)

    def set(self, information):
        message = SMB2SetInfoRequest()
        message["info_type"] = information.INFO_TYPE
        message["file_info_class"] = information.INFO_CLASS
        message["file_id"] = self.open.file_id
        message["buffer"] = information
        self.client.request(message)

    def query(self, kind):
        message = SMB2QueryInfoRequest()
        message["info_type"] = kind.INFO_TYPE
        message["file_info_class"] = kind.INFO_CLASS
        message["file_id"] = self.open.file_id
        message["output_buffer_length"] = 65536
        answer = SMB2QueryInfoResponse()
        answer.unpack(self.client.request(message)["data"].get_value())
        information = kind()
        information.unpack(answer["buffer"].get_value())
        return information

    def close(self):
        self.open.close()


def refused(status, call):
    """Checks that a call fails with this NT status."""
    with pytest.raises(SMBResponseException) as refusal:
        call()
    assert refusal.value.status == status, f"{status!r} was expected: {refusal.value}"
