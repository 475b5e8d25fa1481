//! The pipe that lists shares: DCE/RPC with the one interface that clients ask for.
//!
//! A pipe takes the fragments of requests and gives back those of responses (C706, MS-RPCE). It knows the shares from the
//! moment it was opened, so everything it does is computed at once. What a client has not read yet is bounded: who writes on
//! without reading is refused.

mod ndr;
mod pdu;
mod srvsvc;

use std::collections::VecDeque;

use pdu::{Bind, Fault, Header, Kind, REQUEST_HEADER};

/// The name of the pipe, below the share of pipes.
const NAME: &str = "srvsvc";
/// The longest fragment in either direction.
const MAX_FRAGMENT: usize = 4280;
/// The shortest fragment that a client can ask for.
const MIN_FRAGMENT: usize = 1024;
/// The longest request, over all its fragments.
const MAX_REQUEST: usize = 64 << 10;
/// Bytes of responses that wait to be read.
const MAX_WAITING: usize = 4 << 20;

/// An open pipe.
#[derive(Debug)]
pub(crate) struct Pipe {
    shares: Vec<String>,
    /// What was written and is no whole fragment yet.
    incoming: Vec<u8>,
    /// Arguments of a request whose last fragment has not come.
    arguments: Vec<u8>,
    /// Fragments that wait to be read.
    outgoing: VecDeque<Vec<u8>>,
    /// The context that was bound to the interface.
    bound: Option<u16>,
    longest: usize,
}

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) bytes: Vec<u8>,
    /// Whether the fragment goes on.
    pub(crate) is_more: bool,
}

/// Not what this protocol sends, or too much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a fragment of DCE/RPC")]
pub(crate) struct Malformed;

impl Pipe {
    /// Whether there is a pipe of that name.
    pub(crate) fn exists(name: &str) -> bool {
        let name = name.trim_start_matches('\\');
        let name =
            name.get(..5).filter(|prefix| prefix.eq_ignore_ascii_case("pipe\\")).map_or(name, |_| &name[5..]);
        name.eq_ignore_ascii_case(NAME)
    }

    /// Opens it, to list these shares.
    pub(crate) fn new(shares: Vec<String>) -> Self {
        Self {
            shares,
            incoming: vec![],
            arguments: vec![],
            outgoing: VecDeque::new(),
            bound: None,
            longest: MAX_FRAGMENT,
        }
    }

    /// Takes bytes of the client.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        if self.incoming.len() + bytes.len() > MAX_REQUEST || self.waiting() > MAX_WAITING {
            return Err(Malformed);
        }
        self.incoming.extend_from_slice(bytes);
        while let Some(length) = Header::length_of(&self.incoming)? {
            if self.incoming.len() < length {
                break;
            }
            let fragment: Vec<u8> = self.incoming.drain(..length).collect();
            self.take(&fragment)?;
        }
        Ok(())
    }

    /// Gives back at most so many bytes of the next fragment; none if there is nothing to read.
    pub(crate) fn read(&mut self, max: usize) -> Option<Read> {
        let mut fragment = self.outgoing.pop_front()?;
        if fragment.len() <= max {
            return Some(Read { bytes: fragment, is_more: false });
        }
        let rest = fragment.split_off(max);
        self.outgoing.push_front(rest);
        Some(Read { bytes: fragment, is_more: true })
    }

    fn waiting(&self) -> usize {
        self.outgoing.iter().map(Vec::len).sum()
    }

    fn take(&mut self, fragment: &[u8]) -> Result<(), Malformed> {
        let header = Header::parse(fragment)?;
        match header.kind {
            Kind::Bind | Kind::AlterContext => self.bind(&header, fragment),
            Kind::Request => self.request(&header, fragment),
            _ => Err(Malformed),
        }
    }

    fn bind(&mut self, header: &Header, fragment: &[u8]) -> Result<(), Malformed> {
        if header.is_authenticated {
            self.outgoing.push_back(pdu::bind_nak(header));
            return Ok(());
        }
        let bind = Bind::parse(fragment)?;
        self.longest = usize::from(bind.max_received).clamp(MIN_FRAGMENT, MAX_FRAGMENT);
        self.bound = bind.accepted().or(self.bound);
        let address = if header.kind == Kind::Bind { r"\PIPE\srvsvc" } else { "" };
        self.outgoing.push_back(bind.acknowledge(header, self.longest as u16, address));
        Ok(())
    }

    fn request(&mut self, header: &Header, fragment: &[u8]) -> Result<(), Malformed> {
        let (call, arguments) = pdu::parse_request(header, fragment)?;
        if header.is_first {
            self.arguments.clear();
        }
        if self.arguments.len() + arguments.len() > MAX_REQUEST {
            return Err(Malformed);
        }
        self.arguments.extend_from_slice(arguments);
        if !header.is_last {
            return Ok(());
        }
        let arguments = std::mem::take(&mut self.arguments);
        let answer = match self.bound == Some(call.context) {
            true => srvsvc::answer(call.operation, &arguments, &self.shares),
            false => Err(Fault::UnknownInterface),
        };
        match answer {
            Ok(result) => {
                let chunk = self.longest - REQUEST_HEADER;
                let count = result.len().div_ceil(chunk).max(1);
                let mut chunks = result.chunks(chunk);
                for index in 0..count {
                    let (is_first, is_last) = (index == 0, index + 1 == count);
                    let left = result.len() - index * chunk;
                    let chunk = chunks.next().unwrap_or_default();
                    self.outgoing.push_back(pdu::response(header, &call, is_first, is_last, left, chunk));
                }
            }
            Err(fault) => self.outgoing.push_back(pdu::fault(header, &call, fault)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
