//! The cases: operations whose requests are dropped, each with the requests that prepare its state.
//!
//! A request is a line with method and target, lines of headers, an empty line and a body. The body `@9000`
//! stands for 9,000 bytes. `<<name>>` is replaced by a header or an XML element of an earlier reply;
//! `<<blob>>` and `<<file>>` by the URLs of these services.

mod blob;
mod file;
mod rest;

use lazuli_protocol::ServiceKind;

/// One operation in a prepared state.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) service: ServiceKind,
    /// Preparing requests. They are for the same service unless they begin with another service's name and
    /// `>`.
    pub(crate) setup: &'static [&'static str],
    pub(crate) request: &'static str,
    /// Blob versioning is enabled.
    pub(crate) versioned: bool,
    /// The operation has several steps, some of which may happen without the others.
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

/// Returns all cases.
pub(crate) fn all() -> Vec<Case> {
    [blob::CASES, rest::CASES, file::CASES].concat()
}

/// Returns the request that deletes the container, queue, table or share of a case.
pub(crate) fn delete(service: ServiceKind) -> &'static str {
    match service {
        ServiceKind::Blob => "DELETE /ccc?restype=container",
        ServiceKind::Queue => "DELETE /qqq",
        ServiceKind::Table => "DELETE /Tables('ttt')",
        ServiceKind::File => "DELETE /sss?restype=share\nx-ms-delete-snapshots: include",
    }
}
