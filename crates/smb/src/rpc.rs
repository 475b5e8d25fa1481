//! The pipe that lists shares: DCE/RPC with the server service, the only supported interface.
//!
//! A pipe receives the fragments of requests and returns those of responses (C706, MS-RPCE). It gets the list
//! of shares when it is opened, so all calls complete immediately. Unread responses are bounded: a client
//! that keeps writing without reading is refused.

mod ndr;
mod pdu;
mod srvsvc;

use std::collections::VecDeque;

use pdu::{Bind, Fault, FragmentHeader, PacketType, REQUEST_HEADER_SIZE};

/// The name of the pipe.
const NAME: &str = "srvsvc";
/// Maximum length of a fragment in either direction.
const MAX_FRAGMENT: usize = 4280;
/// Minimum for the maximum fragment length that a client requests.
const MIN_FRAGMENT: usize = 1024;
/// Maximum length of a request, over all fragments.
const MAX_REQUEST: usize = 64 << 10;
/// Maximum number of unread bytes of responses.
const MAX_UNREAD: usize = 4 << 20;

/// An open pipe.
#[derive(Debug)]
pub(crate) struct Pipe {
    shares: Vec<String>,
    /// Bytes that do not form a complete fragment yet.
    incoming: Vec<u8>,
    /// Arguments of a request whose last fragment has not arrived.
    arguments: Vec<u8>,
    /// Unread fragments.
    outgoing: VecDeque<Vec<u8>>,
    /// Id of the presentation context that is bound to the interface.
    bound: Option<u16>,
    max_fragment: usize,
}

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PipeRead {
    pub(crate) bytes: Vec<u8>,
    /// Whether the fragment has more bytes.
    pub(crate) is_more: bool,
}

/// The fragment is invalid, or too many bytes are unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid DCE/RPC fragment, or too many unread responses")]
pub(crate) struct MalformedRpc;

impl Pipe {
    /// Returns whether there is a pipe with this name.
    pub(crate) fn exists(name: &str) -> bool {
        let name = name.trim_start_matches('\\');
        let name =
            name.get(..5).filter(|prefix| prefix.eq_ignore_ascii_case("pipe\\")).map_or(name, |_| &name[5..]);
        name.eq_ignore_ascii_case(NAME)
    }

    /// Opens the pipe, to list these shares.
    pub(crate) fn new(shares: Vec<String>) -> Self {
        Self {
            shares,
            incoming: vec![],
            arguments: vec![],
            outgoing: VecDeque::new(),
            bound: None,
            max_fragment: MAX_FRAGMENT,
        }
    }

    /// Processes bytes from the client.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), MalformedRpc> {
        if self.incoming.len() + bytes.len() > MAX_REQUEST || self.unread_bytes() > MAX_UNREAD {
            return Err(MalformedRpc);
        }
        self.incoming.extend_from_slice(bytes);
        while let Some(length) = FragmentHeader::length_of(&self.incoming)? {
            if self.incoming.len() < length {
                break;
            }
            let fragment: Vec<u8> = self.incoming.drain(..length).collect();
            self.process_fragment(&fragment)?;
        }
        Ok(())
    }

    /// Returns at most `max` bytes of the next fragment, or `None` if there is nothing to read.
    pub(crate) fn read(&mut self, max: usize) -> Option<PipeRead> {
        let mut fragment = self.outgoing.pop_front()?;
        if fragment.len() <= max {
            return Some(PipeRead { bytes: fragment, is_more: false });
        }
        let rest = fragment.split_off(max);
        self.outgoing.push_front(rest);
        Some(PipeRead { bytes: fragment, is_more: true })
    }

    fn unread_bytes(&self) -> usize {
        self.outgoing.iter().map(Vec::len).sum()
    }

    fn process_fragment(&mut self, fragment: &[u8]) -> Result<(), MalformedRpc> {
        let header = FragmentHeader::parse(fragment)?;
        match header.packet_type {
            PacketType::Bind | PacketType::AlterContext => self.bind(&header, fragment),
            PacketType::Request => self.request(&header, fragment),
            _ => Err(MalformedRpc),
        }
    }

    fn bind(&mut self, header: &FragmentHeader, fragment: &[u8]) -> Result<(), MalformedRpc> {
        if header.is_authenticated {
            self.outgoing.push_back(pdu::bind_nak(header));
            return Ok(());
        }
        let bind = Bind::parse(fragment)?;
        self.max_fragment = usize::from(bind.max_received).clamp(MIN_FRAGMENT, MAX_FRAGMENT);
        self.bound = bind.accepted().or(self.bound);
        let address = if header.packet_type == PacketType::Bind { r"\PIPE\srvsvc" } else { "" };
        self.outgoing.push_back(bind.acknowledge(header, self.max_fragment as u16, address));
        Ok(())
    }

    fn request(&mut self, header: &FragmentHeader, fragment: &[u8]) -> Result<(), MalformedRpc> {
        let (call, arguments) = pdu::parse_request(header, fragment)?;
        if header.is_first {
            self.arguments.clear();
        }
        if self.arguments.len() + arguments.len() > MAX_REQUEST {
            return Err(MalformedRpc);
        }
        self.arguments.extend_from_slice(arguments);
        if !header.is_last {
            return Ok(());
        }
        let arguments = std::mem::take(&mut self.arguments);
        let outcome = match self.bound == Some(call.context) {
            true => srvsvc::call_operation(call.operation, &arguments, &self.shares),
            false => Err(Fault::UnknownInterface),
        };
        match outcome {
            Ok(result) => {
                let chunk = self.max_fragment - REQUEST_HEADER_SIZE;
                let count = result.len().div_ceil(chunk).max(1);
                let mut chunks = result.chunks(chunk);
                for index in 0..count {
                    let (is_first, is_last) = (index == 0, index + 1 == count);
                    let remaining = result.len() - index * chunk;
                    let chunk = chunks.next().unwrap_or_default();
                    self.outgoing
                        .push_back(pdu::response(header, &call, is_first, is_last, remaining, chunk));
                }
            }
            Err(fault) => self.outgoing.push_back(pdu::fault(header, &call, fault)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
