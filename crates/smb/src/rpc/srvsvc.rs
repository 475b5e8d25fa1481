//! The server service: which shares there are (MS-SRVS).

use super::ndr::{Arguments, Results};
use super::pdu::Fault;

/// Shares in one response. A client that gives a handle can have the rest.
const MAX_ENTRIES: usize = 4096;

const DISK: u32 = 0;
/// Of pipes, and hidden.
const PIPES: u32 = 0x8000_0003;

/// Operations, by number.
mod operation {
    pub(super) const SHARE_ENUM: u16 = 15;
    pub(super) const SHARE_GET_INFO: u16 = 16;
    pub(super) const SERVER_GET_INFO: u16 = 21;
    pub(super) const SHARE_ENUM_STICKY: u16 = 36;
}

/// Outcomes of an operation.
mod outcome {
    pub(super) const SUCCESS: u32 = 0;
    pub(super) const MORE_DATA: u32 = 234;
    pub(super) const INVALID_LEVEL: u32 = 124;
    pub(super) const NO_SUCH_SHARE: u32 = 2310;
}

/// Calls an operation.
pub(super) fn answer(number: u16, arguments: &[u8], shares: &[String]) -> Result<Vec<u8>, Fault> {
    let mut arguments = Arguments::new(arguments);
    match number {
        operation::SHARE_ENUM | operation::SHARE_ENUM_STICKY => share_enum(&mut arguments, shares),
        operation::SHARE_GET_INFO => share_get_info(&mut arguments, shares),
        operation::SERVER_GET_INFO => server_get_info(&mut arguments),
        _ => Err(Fault::UnknownOperation),
    }
}

/// How much of a share a client wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// The name.
    L0,
    /// And what it is.
    L1,
    /// And who uses it, and where it is.
    L2,
    /// Level 1 and how clients may cache.
    L501,
    /// Level 2 and who may.
    L502,
    /// And the name of the server.
    L503,
}

impl Level {
    fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::L0,
            1 => Self::L1,
            2 => Self::L2,
            501 => Self::L501,
            502 => Self::L502,
            503 => Self::L503,
            _ => return None,
        })
    }

    /// Writes a share without the strings that it points to.
    fn write(self, share: &Share<'_>, results: &mut Results) {
        const UNLIMITED: u32 = u32::MAX;
        results.string(share.name);
        if self == Self::L0 {
            return;
        }
        results.u32(share.kind).string(share.remark);
        if self == Self::L501 {
            results.u32(0);
        }
        if matches!(self, Self::L2 | Self::L502 | Self::L503) {
            results.u32(0).u32(UNLIMITED).u32(0).string(&format!(r"C:\{}", share.name)).u32(0);
        }
        if self == Self::L503 {
            results.string("*");
        }
        if matches!(self, Self::L502 | Self::L503) {
            // No descriptor of the share itself.
            results.u32(0).u32(0);
        }
    }
}

/// A share as this interface shows it.
#[derive(Clone, Copy, Debug)]
struct Share<'a> {
    name: &'a str,
    kind: u32,
    remark: &'a str,
}

fn all(shares: &[String]) -> impl Iterator<Item = Share<'_>> {
    let pipes = Share { name: "IPC$", kind: PIPES, remark: "Remote IPC" };
    shares.iter().map(|name| Share { name, kind: DISK, remark: "" }).chain([pipes])
}

fn share_enum(arguments: &mut Arguments<'_>, shares: &[String]) -> Result<Vec<u8>, Fault> {
    let _server = arguments.optional_string()?;
    let (number, _) = (arguments.u32()?, arguments.u32()?);
    if arguments.u32()? != 0 && {
        arguments.u32()?;
        arguments.u32()?
    } != 0
    {
        // Entries that the client sends along: there can be none.
        return Err(Fault::BadArguments);
    }
    let _wanted_bytes = arguments.u32()?;
    let resume = arguments.optional_u32()?;
    let mut results = Results::default();
    results.u32(number).u32(number);
    let Some(level) = Level::of(number) else {
        results.u32(0).u32(0).u32(0).u32(outcome::INVALID_LEVEL);
        return Ok(results.finish());
    };
    let left: Vec<_> = all(shares).skip(resume.unwrap_or_default() as usize).collect();
    let listed = &left[..left.len().min(MAX_ENTRIES)];
    results.pointer().u32(listed.len() as u32);
    if listed.is_empty() {
        results.u32(0);
    } else {
        results.pointer().u32(listed.len() as u32);
        listed.iter().for_each(|share| level.write(share, &mut results));
    }
    results.end().u32(left.len() as u32);
    let is_all = listed.len() == left.len();
    match resume {
        None => results.u32(0),
        Some(_) if is_all => results.pointer().u32(0),
        Some(at) => results.pointer().u32(at.saturating_add(listed.len() as u32)),
    };
    results.u32(if is_all { outcome::SUCCESS } else { outcome::MORE_DATA });
    Ok(results.finish())
}

fn share_get_info(arguments: &mut Arguments<'_>, shares: &[String]) -> Result<Vec<u8>, Fault> {
    let _server = arguments.optional_string()?;
    let (name, number) = (arguments.string()?, arguments.u32()?);
    let share = all(shares).find(|share| share.name.eq_ignore_ascii_case(&name));
    let mut results = Results::default();
    results.u32(number);
    match (Level::of(number), share) {
        (Some(level), Some(share)) => {
            results.pointer();
            level.write(&share, &mut results);
            results.end().u32(outcome::SUCCESS);
        }
        (Some(_), None) => _ = results.u32(0).u32(outcome::NO_SUCH_SHARE),
        (None, _) => _ = results.u32(0).u32(outcome::INVALID_LEVEL),
    }
    Ok(results.finish())
}

fn server_get_info(arguments: &mut Arguments<'_>) -> Result<Vec<u8>, Fault> {
    const PLATFORM_NT: u32 = 500;
    const VERSION: [u32; 2] = [10, 0];
    /// A workstation and server of that platform.
    const KIND: u32 = 0x0000_9003;
    let _server = arguments.optional_string()?;
    let number = arguments.u32()?;
    let mut results = Results::default();
    results.u32(number);
    match number {
        100 => _ = results.pointer().u32(PLATFORM_NT).string("LAZULI"),
        101 => {
            results.pointer().u32(PLATFORM_NT).string("LAZULI");
            results.u32(VERSION[0]).u32(VERSION[1]).u32(KIND).string("");
        }
        _ => {
            results.u32(0).u32(outcome::INVALID_LEVEL);
            return Ok(results.finish());
        }
    }
    results.end().u32(outcome::SUCCESS);
    Ok(results.finish())
}
