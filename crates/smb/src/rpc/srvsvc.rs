//! The server service, which lists shares (MS-SRVS).

use super::ndr::{Arguments, Results};
use super::pdu::Fault;

/// Maximum number of shares in one response. A client that sends a resume handle can get the rest.
const MAX_ENTRIES: usize = 4096;

const DISK: u32 = 0;
/// The type of `IPC$`: named pipes, hidden.
const PIPES: u32 = 0x8000_0003;

/// Numbers of operations.
mod operation {
    pub(super) const SHARE_ENUM: u16 = 15;
    pub(super) const SHARE_GET_INFO: u16 = 16;
    pub(super) const SERVER_GET_INFO: u16 = 21;
    pub(super) const SHARE_ENUM_STICKY: u16 = 36;
}

/// Result codes of operations.
mod result {
    pub(super) const SUCCESS: u32 = 0;
    pub(super) const MORE_DATA: u32 = 234;
    pub(super) const INVALID_LEVEL: u32 = 124;
    pub(super) const NO_SUCH_SHARE: u32 = 2310;
}

/// Executes an operation.
pub(super) fn call_operation(number: u16, arguments: &[u8], shares: &[String]) -> Result<Vec<u8>, Fault> {
    let mut arguments = Arguments::new(arguments);
    match number {
        operation::SHARE_ENUM | operation::SHARE_ENUM_STICKY => share_enum(&mut arguments, shares),
        operation::SHARE_GET_INFO => share_get_info(&mut arguments, shares),
        operation::SERVER_GET_INFO => server_get_info(&mut arguments),
        _ => Err(Fault::UnknownOperation),
    }
}

/// Information level of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InfoLevel {
    /// Name.
    L0,
    /// Level 0 and type.
    L1,
    /// Level 1, number of users and path.
    L2,
    /// Level 1 and caching flags.
    L501,
    /// Level 2 and security descriptor.
    L502,
    /// Level 502 and server name.
    L503,
}

impl InfoLevel {
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

    /// Writes a share without its deferred strings.
    fn write(self, share: &ShareEntry<'_>, results: &mut Results) {
        const UNLIMITED: u32 = u32::MAX;
        results.string(share.name);
        if self == Self::L0 {
            return;
        }
        results.u32(share.share_type).string(share.remark);
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
            // Shares have no security descriptor.
            results.u32(0).u32(0);
        }
    }
}

/// A share in a listing.
#[derive(Clone, Copy, Debug)]
struct ShareEntry<'a> {
    name: &'a str,
    share_type: u32,
    remark: &'a str,
}

fn share_entries(shares: &[String]) -> impl Iterator<Item = ShareEntry<'_>> {
    let pipes = ShareEntry { name: "IPC$", share_type: PIPES, remark: "Remote IPC" };
    shares.iter().map(|name| ShareEntry { name, share_type: DISK, remark: "" }).chain([pipes])
}

fn share_enum(arguments: &mut Arguments<'_>, shares: &[String]) -> Result<Vec<u8>, Fault> {
    let _server = arguments.optional_string()?;
    let (number, _) = (arguments.u32()?, arguments.u32()?);
    if arguments.u32()? != 0 && {
        arguments.u32()?;
        arguments.u32()?
    } != 0
    {
        // A request must not contain entries.
        return Err(Fault::BadArguments);
    }
    let _wanted_bytes = arguments.u32()?;
    let resume = arguments.optional_u32()?;
    let mut results = Results::default();
    results.u32(number).u32(number);
    let Some(level) = InfoLevel::of(number) else {
        results.u32(0).u32(0).u32(0).u32(result::INVALID_LEVEL);
        return Ok(results.finish());
    };
    let remaining: Vec<_> = share_entries(shares).skip(resume.unwrap_or_default() as usize).collect();
    let listed = &remaining[..remaining.len().min(MAX_ENTRIES)];
    results.pointer().u32(listed.len() as u32);
    if listed.is_empty() {
        results.u32(0);
    } else {
        results.pointer().u32(listed.len() as u32);
        listed.iter().for_each(|share| level.write(share, &mut results));
    }
    results.write_deferred_strings().u32(remaining.len() as u32);
    let is_complete = listed.len() == remaining.len();
    match resume {
        None => results.u32(0),
        Some(_) if is_complete => results.pointer().u32(0),
        Some(at) => results.pointer().u32(at.saturating_add(listed.len() as u32)),
    };
    results.u32(if is_complete { result::SUCCESS } else { result::MORE_DATA });
    Ok(results.finish())
}

fn share_get_info(arguments: &mut Arguments<'_>, shares: &[String]) -> Result<Vec<u8>, Fault> {
    let _server = arguments.optional_string()?;
    let (name, number) = (arguments.string()?, arguments.u32()?);
    let share = share_entries(shares).find(|share| share.name.eq_ignore_ascii_case(&name));
    let mut results = Results::default();
    results.u32(number);
    match (InfoLevel::of(number), share) {
        (Some(level), Some(share)) => {
            results.pointer();
            level.write(&share, &mut results);
            results.write_deferred_strings().u32(result::SUCCESS);
        }
        (Some(_), None) => _ = results.u32(0).u32(result::NO_SUCH_SHARE),
        (None, _) => _ = results.u32(0).u32(result::INVALID_LEVEL),
    }
    Ok(results.finish())
}

fn server_get_info(arguments: &mut Arguments<'_>) -> Result<Vec<u8>, Fault> {
    const PLATFORM_NT: u32 = 500;
    const VERSION: [u32; 2] = [10, 0];
    /// A workstation and server running Windows NT.
    const SERVER_TYPE: u32 = 0x0000_9003;
    let _server = arguments.optional_string()?;
    let number = arguments.u32()?;
    let mut results = Results::default();
    results.u32(number);
    match number {
        100 => _ = results.pointer().u32(PLATFORM_NT).string("LAZULI"),
        101 => {
            results.pointer().u32(PLATFORM_NT).string("LAZULI");
            results.u32(VERSION[0]).u32(VERSION[1]).u32(SERVER_TYPE).string("");
        }
        _ => {
            results.u32(0).u32(result::INVALID_LEVEL);
            return Ok(results.finish());
        }
    }
    results.write_deferred_strings().u32(result::SUCCESS);
    Ok(results.finish())
}
