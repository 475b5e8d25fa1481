//! The REST operations, with one table of all their properties that do not depend on data.
//!
//! [`fn@route`] finds the operation of a request, and [`Operation::row`] its requirements: permissions, role,
//! body, scope. A request matches at most one operation. The services check whether the resource exists, and
//! whether a create-only permission would overwrite something.

mod route;
mod table;

#[cfg(test)]
mod tests;

use http::HeaderMap;

use crate::account::Role;
use crate::kind::ServiceKind;
use crate::query::Query;
use crate::version::Version;

pub use route::{route, route_website};
pub use table::Operation;

/// The table's row of one operation.
#[derive(Debug)]
pub struct Row {
    /// The operation.
    pub operation: Operation,
    /// The name in the REST documentation.
    pub name: &'static str,
    /// The operation's service.
    pub service: ServiceKind,
    /// The resource type, as in `srt` of an account SAS.
    pub scope: Scope,
    /// The kinds of address of the operation's requests.
    pub addresses: &'static [AddressKind],
    /// The HTTP methods of the operation's requests.
    pub methods: &'static [&'static str],
    /// The value of `restype`; empty if absent.
    pub restype: &'static str,
    /// The value of `comp`; empty if absent.
    pub comp: &'static str,
    /// Headers and parameters that distinguish the operation from others with the same address and method.
    /// The first matching row of the table applies.
    pub discriminators: &'static [Discriminator],
    /// The permission usually required of an account SAS; [`Operation::account_permission`] knows the
    /// exceptions.
    pub account_sas: Permission,
    /// The permission usually required of a service or user delegation SAS; [`Operation::service_permission`]
    /// and [`Operation::delegated_permission`] know the exceptions.
    pub service_sas: Permission,
    /// When the operation needs no credentials.
    pub anonymous: Anonymous,
    /// The lowest role usually sufficient for an OAuth subject; [`Operation::role`] knows the exceptions.
    pub role: Role,
    /// The size class of the body.
    pub body: BodyClass,
    /// The operation only reads: it is safe to repeat, and served by secondary endpoints.
    pub read: bool,
}

/// Resource types of operations: the letters of `srt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// `s`: the service.
    Service,
    /// `c`: a container, queue, table or share.
    Container,
    /// `o`: a blob, message, entity, directory or file.
    Object,
    /// Not limited by `srt`.
    Any,
}

/// Kinds of addresses of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    /// `/`
    Service,
    /// `/container`, `/queue`, `/share`
    Container,
    /// `/container/blob`, `/share/path`; also `/blob` in the root container
    Object,
    /// `/queue/messages`
    Messages,
    /// `/queue/messages/id`
    Message,
    /// `/Tables`
    Tables,
    /// `/Tables('table')`
    NamedTable,
    /// `/table`, `/table()`
    Table,
    /// `/table(PartitionKey='…',RowKey='…')`
    Entity,
    /// `/$batch` of the table service
    TableBatch,
    /// Any path of a static website
    Website,
}

/// A header or query parameter that distinguishes operations. Values are compared without regard to case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discriminator {
    /// The header is present and not blank.
    Header(&'static str),
    /// The header has this value.
    HeaderIs(&'static str, &'static str),
    /// The query parameter is present and not empty. The services treat an empty one as absent, too.
    Query(&'static str),
    /// The query parameter has this value.
    QueryIs(&'static str, &'static str),
}

/// The SAS letters that allow an operation. Alternatives are separated by `|`, letters required together by
/// `+`. `*` means that any SAS suffices, an empty text that none does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission(pub &'static str);

/// When an operation needs no credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// Credentials are always required.
    Never,
    /// Allowed if the container's blobs are public.
    PublicBlob,
    /// Allowed if the container and its listing are public.
    PublicContainer,
    /// Allowed on all resources.
    Always,
}

/// Size classes of bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyClass {
    /// No body.
    Nothing,
    /// A small XML or JSON document, or a queue message.
    Small,
    /// The optional initial content of a file: 4 MiB.
    Optional,
    /// A write of pages or a range, an entity, or a batch: 4 MiB.
    Medium,
    /// A block list: 50,000 block ids.
    Large,
    /// Streamed content; the service knows the limit.
    Stream,
}

impl BodyClass {
    /// Returns the maximum number of bytes, which may be read into memory; `None` for a streamed body.
    pub const fn limit(self) -> Option<usize> {
        match self {
            Self::Nothing => Some(0),
            Self::Small => Some(512 << 10),
            Self::Optional | Self::Medium => Some(4 << 20),
            Self::Large => Some(8 << 20),
            Self::Stream => None,
        }
    }
}

impl Permission {
    /// No SAS suffices.
    pub const NEVER: Self = Self("");
    /// Any SAS suffices.
    pub const ANY: Self = Self("*");

    /// Returns whether these letters suffice.
    pub fn granted_by(self, letters: &str) -> bool {
        match self.0 {
            "" => false,
            "*" => true,
            alternatives => alternatives
                .split('|')
                .any(|together| together.split('+').all(|letter| letters.contains(letter))),
        }
    }
}

impl Discriminator {
    /// Returns whether a request matches.
    pub fn holds(self, query: &Query, headers: &HeaderMap) -> bool {
        let header_is = |name, value: &str| {
            headers
                .get(name)
                .is_some_and(|h| h.as_bytes().trim_ascii().eq_ignore_ascii_case(value.as_bytes()))
        };
        match self {
            // The readers of headers ignore a blank value, so it must not select an operation either.
            Self::Header(name) => headers.get(name).is_some_and(|h| !h.as_bytes().trim_ascii().is_empty()),
            Self::HeaderIs(name, value) => header_is(name, value),
            Self::Query(name) => query.get(name).is_some_and(|v| !v.is_empty()),
            Self::QueryIs(name, value) => query.get(name).is_some_and(|v| v.eq_ignore_ascii_case(value)),
        }
    }
}

impl Operation {
    /// Returns the name in the REST documentation.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns whether the operation is a CORS preflight.
    pub fn is_preflight(self) -> bool {
        self == route::preflight(self.service())
    }

    /// Returns whether the operation is Get User Delegation Key, which the front door carries out.
    pub fn is_user_delegation_key(self) -> bool {
        matches!(
            self,
            Self::GetUserDelegationKey | Self::GetQueueUserDelegationKey | Self::GetFileUserDelegationKey
        )
    }

    /// Returns whether a request with a bearer token requires `x-ms-file-request-intent`, because the token
    /// bypasses file permissions. True for files, directories and their permissions, false for the service
    /// and for shares.
    pub fn needs_file_request_intent(self) -> bool {
        let row = self.row();
        let is_below_share = row.addresses.contains(&AddressKind::Object);
        row.service == ServiceKind::File
            && (is_below_share || matches!(self, Self::CreatePermission | Self::GetPermission))
    }

    /// Returns the operation's service.
    pub fn service(self) -> ServiceKind {
        self.row().service
    }

    /// Returns the permission that an account SAS must grant for this request.
    pub fn account_permission(self, query: &Query, headers: &HeaderMap) -> Permission {
        self.exception(query, headers).map_or(self.row().account_sas, |(permission, _)| permission)
    }

    /// Returns the permission that a user delegation SAS must grant for this request. Since version
    /// 2026-04-06 the right to create suffices for blocks. `version` is the older of the request's and the
    /// signature's versions.
    pub fn delegated_permission(self, query: &Query, headers: &HeaderMap, version: Version) -> Permission {
        let usual = self.service_permission(query, headers);
        let writes_blocks = matches!(self, Self::PutBlock | Self::PutBlockFromUrl | Self::PutBlockList);
        match usual.0 {
            "w" if writes_blocks && version.at_least(2026, 4, 6) => Permission("c|w"),
            "w+t" if writes_blocks && version.at_least(2026, 4, 6) => Permission("c+t|w+t"),
            _ => usual,
        }
    }

    /// Returns the permission that a service SAS must grant for this request.
    pub fn service_permission(self, query: &Query, headers: &HeaderMap) -> Permission {
        let usual = self.row().service_sas;
        if usual == Permission::NEVER {
            return usual;
        }
        self.exception(query, headers).map_or(usual, |(permission, _)| permission)
    }

    /// Returns the lowest role that allows an OAuth subject this request.
    pub fn role(self, query: &Query, headers: &HeaderMap) -> Role {
        let usual = self.exception(query, headers).map_or(self.row().role, |(_, role)| role);
        self.additional_permission(query, headers).map_or(usual, |(_, role)| role.max(usual))
    }

    /// Returns the permission and role that a request requires in addition to those of its operation. Some
    /// headers do what another operation does: they protect a blob, or make a container public.
    pub fn additional_permission(self, query: &Query, headers: &HeaderMap) -> Option<(Permission, Role)> {
        let matches = |(operations, headers_of, _): &&table::AdditionalPermission| {
            operations.contains(&self) && headers_of.iter().any(|header| header.holds(query, headers))
        };
        let row = table::ADDITIONAL_PERMISSIONS.iter().find(matches)?.2.row();
        Some((row.service_sas, row.role))
    }

    fn exception(self, query: &Query, headers: &HeaderMap) -> Option<(Permission, Role)> {
        let matches =
            |(operation, when, ..): &&table::Exception| *operation == self && when.holds(query, headers);
        table::EXCEPTIONS.iter().find(matches).map(|(_, _, permission, role)| (*permission, *role))
    }
}
