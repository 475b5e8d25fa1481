//! The request as a command sees it, and the command's result.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::channel_sequence::{ChannelSequence, CountedRequest, StaleRequest};
use crate::connection::SmbConnection;
use crate::connection::outgoing::OnPacked;
use crate::limits::AccountPermit;
use crate::negotiated::Dialect;
use crate::server::ServerState;
use crate::session::open::Open;
use crate::session::{Session, TreeConnect};
use crate::wire::FileId;
use crate::wire::cursor::Truncated;
use crate::wire::header::{MessageHeader, SmbCommand, flags};
use crate::wire::status::Status;

/// A successful result of a command.
#[derive(Default)]
pub(crate) struct CommandReply {
    /// Success, or a warning.
    pub(crate) status: Status,
    /// The response body, without the header.
    pub(crate) body: Vec<u8>,
    /// Data after the body, for reads.
    pub(crate) data: Vec<Bytes>,
    /// The session of a Session Setup. The response names it, and is signed with its key if it has one.
    pub(crate) session: Option<Arc<Session>>,
    /// The new tree connect.
    pub(crate) tree_id: Option<u32>,
    /// Called with the bytes of the response when it is packed for sending. Session Setup and Negotiate hash
    /// them.
    pub(crate) on_packed: Option<OnPacked>,
}

impl CommandReply {
    /// Returns a reply with the status success.
    pub(crate) fn new(body: Vec<u8>) -> Self {
        Self { body, ..Self::default() }
    }

    /// Replaces the status.
    pub(crate) fn with_status(self, status: Status) -> Self {
        Self { status, ..self }
    }
}

/// A failed command: a status, and the data of the error response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommandError {
    pub(crate) status: Status,
    pub(crate) data: Vec<u8>,
}

impl From<Status> for CommandError {
    fn from(status: Status) -> Self {
        Self { status, data: vec![] }
    }
}

impl From<Truncated> for CommandError {
    fn from(truncated: Truncated) -> Self {
        Status::from(truncated).into()
    }
}

/// The result of a command.
pub(crate) type CommandResult = Result<CommandReply, CommandError>;

/// One request.
pub(crate) struct Call {
    pub(crate) server: Arc<ServerState>,
    pub(crate) connection: Arc<SmbConnection>,
    pub(crate) header: MessageHeader,
    /// The whole message, from its header on.
    pub(crate) message: Bytes,
    /// The session of the request. Present for all commands that need one.
    pub(crate) session: Option<Arc<Session>>,
    /// The tree connect of the request. Present for all commands that need one.
    pub(crate) tree: Option<Arc<TreeConnect>>,
    /// The session whose key encrypted the request, if it was encrypted.
    pub(crate) encrypted_by: Option<Arc<Session>>,
    /// Whether the signature has been verified.
    pub(crate) is_verified: bool,
    /// Whether the request binds a session to this connection.
    pub(crate) is_binding: bool,
    /// True for the last request of a compound.
    pub(crate) is_last: bool,
    /// State that the requests of a compound share.
    pub(crate) compound: Arc<Mutex<CompoundState>>,
    /// Canceled by a CANCEL of the client, and when the connection ends.
    pub(crate) cancelled: CancellationToken,
    /// The id of the request once it is asynchronous.
    pub(crate) async_id: u64,
    /// Sends the interim response. `None` once used.
    pub(crate) interim: Mutex<Option<SendInterim>>,
    /// Counts the request as asynchronous until it is answered.
    pub(crate) async_permit: Mutex<Option<OwnedSemaphorePermit>>,
    /// Counts the request as outstanding in the channel sequences of its opens until it is answered.
    pub(crate) counted: Mutex<Vec<CountedRequest>>,
}

/// Sends the interim response with this async id. Fails if the connection has too many asynchronous requests.
pub(crate) type SendInterim = Box<dyn FnOnce(u64) -> Result<OwnedSemaphorePermit, Status> + Send>;

/// State that the related requests of a compound share.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CompoundState {
    /// The open of the last request.
    pub(crate) file: Option<FileId>,
    /// The error of the CREATE that should have made the open.
    pub(crate) create_error: Option<Status>,
}

impl Call {
    /// Returns whether the response will be signed or encrypted.
    pub(crate) fn is_protected(&self) -> bool {
        self.encrypted_by.is_some() || self.header.flags & flags::SIGNED != 0
    }

    /// Returns the session, or the error for a missing one.
    pub(crate) fn session(&self) -> Result<&Arc<Session>, Status> {
        self.session.as_ref().ok_or(Status::USER_SESSION_DELETED)
    }

    /// Returns the session of another connection if its key signed the request.
    pub(crate) fn signing_session(&self) -> Option<Arc<Session>> {
        let session = self.server.sessions.get(self.header.session_id)?;
        let key = &session.login()?.keys.signing;
        let is_signed = self.header.flags & flags::SIGNED != 0 && key.verify(&self.message);
        is_signed.then_some(session)
    }

    /// Returns an open in the request's session and tree connect that refers to no file yet.
    pub(crate) fn new_open(&self, persistent: u64, permit: Arc<AccountPermit>) -> Result<Open, Status> {
        let id = FileId { persistent, volatile: self.server.next_id() };
        let channel_sequence = ChannelSequence::new(self.header.channel_sequence());
        Ok(Open { channel_sequence, ..Open::new(id, self.tree()?.clone(), self.session()?, permit) })
    }

    /// Returns the tree connect, or the error for a missing one.
    pub(crate) fn tree(&self) -> Result<&Arc<TreeConnect>, Status> {
        self.tree.as_ref().ok_or(Status::NETWORK_NAME_DELETED)
    }

    /// Returns the open that a request names, or the current open of the compound. Counts the request in the
    /// open's channel sequence.
    pub(crate) fn open(&self, id: FileId) -> Result<Arc<Open>, Status> {
        let id = if id == FileId::RELATED {
            let compound = self.compound.lock();
            match (compound.create_error, compound.file) {
                (Some(status), _) => return Err(status),
                (None, Some(file)) => file,
                (None, None) => return Err(Status::FILE_CLOSED),
            }
        } else {
            id
        };
        let open = self.session()?.find_open(id).ok_or(Status::FILE_CLOSED)?;
        if !Arc::ptr_eq(&open.tree, self.tree()?) {
            return Err(Status::FILE_CLOSED);
        }
        self.compound.lock().file = Some(id);
        open.is_used.store(true, Ordering::Relaxed);
        if self.connection.dialect() >= Dialect::Smb300 {
            self.count_in_sequence(&open)?;
        }
        Ok(open)
    }

    /// Counts the request as outstanding, unless its channel sequence number is stale.
    fn count_in_sequence(&self, open: &Open) -> Result<(), Status> {
        let command = SmbCommand::from_code(self.header.command);
        let modifies = matches!(command, Some(SmbCommand::Write | SmbCommand::SetInfo | SmbCommand::Ioctl));
        let is_replay = self.header.flags & flags::REPLAY != 0;
        let admitted = open.channel_sequence.admit(self.header.channel_sequence(), is_replay, modifies);
        let counted = admitted.map_err(|StaleRequest| Status::FILE_NOT_AVAILABLE)?;
        self.counted.lock().extend(counted);
        Ok(())
    }

    /// Returns whether the client no longer waits for the response. If only the connection was lost, the
    /// client can repeat the request on another channel of the session.
    pub(crate) fn is_abandoned(&self) -> bool {
        let has_other =
            self.session.as_ref().is_some_and(|session| session.has_other_channel(&self.connection));
        !(has_other && self.connection.is_closed())
    }

    /// Sends the interim response. Call this before waiting for other clients. Further calls do nothing.
    /// Fails in the middle of a compound, where only CREATE may wait, and if too many requests wait.
    pub(crate) fn send_interim_response(&self) -> Result<(), Status> {
        if !self.is_last {
            let may_wait = self.header.command == SmbCommand::Create as u16;
            return if may_wait { Ok(()) } else { Err(Status::INTERNAL_ERROR) };
        }
        if let Some(send) = self.interim.lock().take() {
            *self.async_permit.lock() = Some(send(self.async_id)?);
        }
        Ok(())
    }
}
