//! The operations that are dropped: for each what is there before it, and the request.
//!
//! A request is a line with method and target, lines of headers, an empty line and a body. `@9000` as a body stands for
//! 9,000 bytes. `<<name>>` is replaced by a header or an XML element of an earlier reply; `<<blob>>` and `<<file>>` by
//! the URLs of these services.

mod blob;
mod file;
mod rest;

use lazuli_protocol::ServiceKind;

/// One operation, on something that is there.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) service: ServiceKind,
    /// Requests that come before, of the same service unless they begin with another one's name and `>`.
    pub(crate) setup: &'static [&'static str],
    pub(crate) request: &'static str,
    /// Whether every write of a blob makes a version.
    pub(crate) versioned: bool,
    /// Whether it consists of several steps of which some may happen without the others.
    pub(crate) in_parts: bool,
}

impl Case {
    const fn new(
        service: ServiceKind,
        name: &'static str,
        setup: &'static [&'static str],
        request: &'static str,
    ) -> Self {
        Self { name, service, setup, request, versioned: false, in_parts: false }
    }

    const fn versioned(self) -> Self {
        Self { versioned: true, ..self }
    }

    const fn in_parts(self) -> Self {
        Self { in_parts: true, ..self }
    }
}

/// Every case.
pub(crate) fn all() -> Vec<Case> {
    [blob::CASES, rest::CASES, file::CASES].concat()
}

/// Deletes what a case works in.
pub(crate) fn delete(service: ServiceKind) -> &'static str {
    match service {
        ServiceKind::Blob => "DELETE /ccc?restype=container",
        ServiceKind::Queue => "DELETE /qqq",
        ServiceKind::Table => "DELETE /Tables('ttt')",
        ServiceKind::File => "DELETE /sss?restype=share\nx-ms-delete-snapshots: include",
    }
}
