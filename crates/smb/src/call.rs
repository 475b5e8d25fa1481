//! One request as its command sees it, and what the command answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::connection::Connection;
use crate::negotiated::Dialect;
use crate::open::{FileId, Open};
use crate::sequence::{Overtaken, Underway};
use crate::server::Server;
use crate::session::{Session, TreeConnect};
use crate::wire::cursor::Truncated;
use crate::wire::header::{Command, Header, flags};
use crate::wire::status::Status;

/// What a command answers: a status that may come with a body, the body after the header, and bytes that follow it.
#[derive(Default)]
pub(crate) struct Reply {
    /// Success, or a warning that comes with data.
    pub(crate) status: Status,
    /// The body, from behind the header.
    pub(crate) body: Vec<u8>,
    /// What follows the body, for reads.
    pub(crate) data: Vec<Bytes>,
    /// The session that a session setup is about: the response names it, and is signed with its key if it has one.
    pub(crate) session: Option<Arc<Session>>,
    /// The tree that was connected.
    pub(crate) tree_id: Option<u32>,
    /// Sees the bytes of the response as they are sent, for the hash over the messages that set up a session.
    pub(crate) sees_response: Option<SeesResponse>,
}

impl Reply {
    /// A success.
    pub(crate) fn new(body: Vec<u8>) -> Self {
        Self { body, ..Self::default() }
    }

    /// The same with a warning.
    pub(crate) fn with(self, status: Status) -> Self {
        Self { status, ..self }
    }
}

/// A refusal: a status, and what the error response carries.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: Status,
    pub(crate) data: Vec<u8>,
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        Self { status, data: vec![] }
    }
}

impl From<Truncated> for Refused {
    fn from(truncated: Truncated) -> Self {
        Status::from(truncated).into()
    }
}

/// What comes of a command.
pub(crate) type Answer = Result<Reply, Refused>;

/// One request.
pub(crate) struct Call {
    pub(crate) server: Arc<Server>,
    pub(crate) connection: Arc<Connection>,
    pub(crate) header: Header,
    /// The whole message, from its header on.
    pub(crate) message: Bytes,
    /// Whose it is; checked before commands that need one are called.
    pub(crate) session: Option<Arc<Session>>,
    /// In which share; checked likewise.
    pub(crate) tree: Option<Arc<TreeConnect>>,
    /// The session with whose key it came encrypted, if it did.
    pub(crate) sealed_by: Option<Arc<Session>>,
    /// Whether others of its compound follow.
    pub(crate) is_last: bool,
    /// What the requests of a compound hand on to each other.
    pub(crate) chain: Arc<Mutex<Chain>>,
    /// Cancelled when the client says so, and when the connection is lost.
    pub(crate) cancelled: CancellationToken,
    /// The number under which it is known once it has become asynchronous.
    pub(crate) async_id: u64,
    /// Sends the interim response, once.
    pub(crate) pending: Mutex<Option<Pend>>,
    /// Its place among the asynchronous requests of the connection, until it is answered.
    pub(crate) place: Mutex<Option<OwnedSemaphorePermit>>,
    /// Counted for the files that it is about, until it is answered.
    pub(crate) underway: Mutex<Vec<Underway>>,
}

/// Sees the bytes of a response.
pub(crate) type SeesResponse = Box<dyn FnOnce(&[u8]) + Send>;

/// Sends an interim response with that number, if there is a place for another asynchronous request.
pub(crate) type Pend = Box<dyn FnOnce(u64) -> Result<OwnedSemaphorePermit, Status> + Send>;

/// What related requests of a compound hand on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chain {
    /// The file that the last request was about.
    pub(crate) file: Option<FileId>,
    /// Why there is none: the failure of the request that should have opened it.
    pub(crate) failed: Option<Status>,
}

impl Call {
    /// Whether its answer is going to be signed or encrypted.
    pub(crate) fn is_protected(&self) -> bool {
        self.sealed_by.is_some() || self.header.flags & flags::SIGNED != 0
    }

    /// The session.
    pub(crate) fn session(&self) -> Result<&Arc<Session>, Status> {
        self.session.as_ref().ok_or(Status::USER_SESSION_DELETED)
    }

    /// The session of another connection with whose key the request was signed.
    pub(crate) fn session_elsewhere(&self) -> Option<Arc<Session>> {
        let session = self.server.sessions.get(self.header.session_id)?;
        let key = &session.login()?.keys.signing;
        let is_signed = self.header.flags & flags::SIGNED != 0 && key.verify(&self.message);
        is_signed.then_some(session)
    }

    /// The share.
    pub(crate) fn tree(&self) -> Result<&Arc<TreeConnect>, Status> {
        self.tree.as_ref().ok_or(Status::NETWORK_NAME_DELETED)
    }

    /// The open file that a request names, or that the compound is about.
    pub(crate) fn open(&self, id: FileId) -> Result<Arc<Open>, Status> {
        let id = if id == FileId::RELATED {
            let chain = self.chain.lock();
            match (chain.failed, chain.file) {
                (Some(status), _) => return Err(status),
                (None, Some(file)) => file,
                (None, None) => return Err(Status::FILE_CLOSED),
            }
        } else {
            id
        };
        let open = self.session()?.open(id).ok_or(Status::FILE_CLOSED)?;
        if !Arc::ptr_eq(&open.tree, self.tree()?) {
            return Err(Status::FILE_CLOSED);
        }
        self.chain.lock().file = Some(id);
        open.is_used.store(true, Ordering::Relaxed);
        if self.connection.dialect() >= Dialect::Smb300 {
            self.count(&open)?;
        }
        Ok(open)
    }

    /// The request is under way, unless it was overtaken.
    fn count(&self, open: &Open) -> Result<(), Status> {
        let command = Command::of(self.header.command);
        let changes = matches!(command, Some(Command::Write | Command::SetInfo | Command::Ioctl));
        let is_repeated = self.header.flags & flags::REPLAY != 0;
        let admitted = open.sequence.admit(self.header.channel_sequence(), is_repeated, changes);
        let underway = admitted.map_err(|Overtaken| Status::FILE_NOT_AVAILABLE)?;
        self.underway.lock().extend(underway);
        Ok(())
    }

    /// Whether nobody wants the answer any more. The connection alone may be lost: the client can ask on another.
    pub(crate) fn is_given_up(&self) -> bool {
        let elsewhere = self.session.as_ref().is_some_and(|session| session.is_elsewhere(&self.connection));
        !(elsewhere && self.connection.is_closed())
    }

    /// Tells the client that this takes time: the interim response. To be called before waiting for others to act; does
    /// nothing the second time. Refused in the middle of a compound, where only an open may wait, and if too many wait.
    pub(crate) fn pend(&self) -> Result<(), Status> {
        if !self.is_last {
            let may_wait = self.header.command == Command::Create as u16;
            return if may_wait { Ok(()) } else { Err(Status::INTERNAL_ERROR) };
        }
        if let Some(pend) = self.pending.lock().take() {
            *self.place.lock() = Some(pend(self.async_id)?);
        }
        Ok(())
    }
}
