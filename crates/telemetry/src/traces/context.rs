//! The trace that a caller names in `traceparent` and `tracestate` (W3C Trace Context).

/// Maximum length of an adopted `tracestate`, as the specification asks for.
const MAX_STATE: usize = 512;

/// A trace and the span that a request belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub(super) trace: [u8; 16],
    /// The caller's span; `None` for a request that begins a trace.
    pub(super) parent: Option<u64>,
    pub(super) state: Option<Box<str>>,
    pub(super) is_sampled: bool,
}

impl TraceContext {
    /// Returns the context of a request that begins a trace.
    pub(super) const fn root(trace: [u8; 16]) -> Self {
        Self { trace, parent: None, state: None, is_sampled: true }
    }

    /// Parses the values of the headers. If `traceparent` is malformed, returns `None`: the request begins a
    /// trace of its own.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let mut parts = traceparent.split('-');
        let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let version = hex(version, 2)?;
        // Later versions may have more parts.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let (trace, parent, flags) = (hex(trace, 32)?, hex(parent, 16)?, hex(flags, 2)?);
        if trace == 0 || parent == 0 {
            return None;
        }
        let is_kept = |state: &&str| {
            !state.is_empty()
                && state.len() <= MAX_STATE
                && state.bytes().all(|byte| matches!(byte, 0x20..=0x7e))
        };
        Some(Self {
            trace: trace.to_be_bytes(),
            parent: u64::try_from(parent).ok(),
            state: tracestate.filter(is_kept).map(Into::into),
            is_sampled: flags & 1 == 1,
        })
    }
}

/// Parses this many lower-case hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_valid = text.len() == digits && text.bytes().all(is_hex);
    is_valid.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn well_formed_contexts_are_adopted_and_others_ignored() {
        for (header, adopted) in [
            (format!("00-{TRACE}-{SPAN}-01"), Some(true)),
            (format!("00-{TRACE}-{SPAN}-00"), Some(false)),
            (format!("01-{TRACE}-{SPAN}-03-more"), Some(true)),
            (format!("00-{TRACE}-{SPAN}-01-more"), None),
            (format!("ff-{TRACE}-{SPAN}-01"), None),
            (format!("00-{}-{SPAN}-01", "0".repeat(32)), None),
            (format!("00-{TRACE}-{}-01", "0".repeat(16)), None),
            (format!("00-{}-{SPAN}-01", TRACE.to_uppercase()), None),
            (format!("00-{TRACE}-{SPAN}"), None),
            (format!("00-+{}-{SPAN}-01", &TRACE[1..]), None),
            (String::new(), None),
        ] {
            let parsed = TraceContext::parse(&header, None);
            assert_eq!(parsed.map(|context| context.is_sampled), adopted, "{header}");
        }
    }

    #[test]
    fn long_or_binary_state_is_dropped() {
        let header = format!("00-{TRACE}-{SPAN}-01");
        let long = "x".repeat(MAX_STATE + 1);
        for (state, kept) in [("a=1,b=2", true), (&long, false), ("a=\n", false), ("", false)] {
            let context = TraceContext::parse(&header, Some(state));
            assert_eq!(context.is_some_and(|context| context.state.is_some()), kept, "{state:?}");
        }
    }
}
