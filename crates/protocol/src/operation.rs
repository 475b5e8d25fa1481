//! The REST operations: one variant each, one table that says everything about them that does not depend on data.
//!
//! [`route`] finds the operation of a request, [`Operation::row`] what it needs: permissions, role, body, scope. The
//! table promises that a request routes to at most one operation. Whether the resource exists, and whether a
//! create-only permission would overwrite something, is for the services.

mod route;
mod table;

#[cfg(test)]
mod tests;

use http::HeaderMap;

use crate::account::Role;
use crate::query::Query;
use crate::service::ServiceKind;
use crate::version::Version;

pub use route::{route, route_website};
pub use table::Operation;

/// What the table says about one operation.
#[derive(Debug)]
pub struct Row {
    /// The operation.
    pub operation: Operation,
    /// Its name in the REST documentation.
    pub name: &'static str,
    /// The service that has it.
    pub service: ServiceKind,
    /// What it acts on, as `srt` of an account SAS counts.
    pub scope: Scope,
    /// The addresses it is sent to.
    pub places: &'static [Place],
    /// The HTTP methods it is sent with.
    pub methods: &'static [&'static str],
    /// The value of `restype`; empty = absent.
    pub restype: &'static str,
    /// The value of `comp`; empty = absent.
    pub comp: &'static str,
    /// What else tells it from operations of the same address and method. The first row of the table that fits wins.
    pub when: &'static [When],
    /// What an account SAS must grant, as a rule; [`Operation::account_permission`] knows the exceptions.
    pub account_sas: Permission,
    /// What a service or user delegation SAS must grant, as a rule; [`Operation::service_permission`] and
    /// [`Operation::delegated_permission`] know the exceptions.
    pub service_sas: Permission,
    /// Who may call it without credentials.
    pub anonymous: Anonymous,
    /// The least role that an OAuth subject needs, as a rule; [`Operation::role`] knows the exceptions.
    pub role: Role,
    /// How large a body it takes.
    pub body: BodyClass,
    /// Whether it only reads: safe to repeat, and served from a secondary.
    pub read: bool,
}

/// What an operation acts on: the letters of `srt`.
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

/// The kinds of address in a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
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
    /// Anything on a static website
    Website,
}

/// A header or query parameter that tells operations apart. Values compare without regard to case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The header is there.
    Header(&'static str),
    /// The header has this value.
    HeaderIs(&'static str, &'static str),
    /// The query parameter has a value: an empty one counts as none, here as in the services.
    Query(&'static str),
    /// The query parameter has this value.
    QueryIs(&'static str, &'static str),
}

/// The letters of a SAS that allow an operation: alternatives are separated by `|`, letters needed together joined by
/// `+`; `*` = any SAS will do, nothing = none will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission(pub &'static str);

/// Who may call an operation without credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// Nobody.
    Never,
    /// Anybody, if the container lets its blobs be read.
    PublicBlob,
    /// Anybody, if the container lets itself be listed too.
    PublicContainer,
    /// Anybody, whatever is addressed.
    Always,
}

/// How large a body an operation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyClass {
    /// None.
    Nothing,
    /// A small XML or JSON document, or a queue message.
    Small,
    /// The first bytes of a file, which need not come with it: 4 MiB.
    Optional,
    /// One write of pages or a range, an entity, a batch: 4 MiB.
    Medium,
    /// A block list: 50,000 block ids.
    Large,
    /// Content that is streamed; the service knows the limit.
    Stream,
}

impl BodyClass {
    /// The most bytes that may be read into memory for it; none = it is streamed.
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
    /// No SAS allows it.
    pub const NEVER: Self = Self("");
    /// Any SAS allows it.
    pub const ANY: Self = Self("*");

    /// Whether these letters allow it.
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

impl When {
    /// Whether the request fits.
    pub fn holds(self, query: &Query, headers: &HeaderMap) -> bool {
        let header_is = |name, value: &str| {
            headers
                .get(name)
                .is_some_and(|h| h.as_bytes().trim_ascii().eq_ignore_ascii_case(value.as_bytes()))
        };
        match self {
            // Nobody who reads a header makes anything of a blank one, so neither does what it asks for.
            Self::Header(name) => headers.get(name).is_some_and(|h| !h.as_bytes().trim_ascii().is_empty()),
            Self::HeaderIs(name, value) => header_is(name, value),
            Self::Query(name) => query.get(name).is_some_and(|v| !v.is_empty()),
            Self::QueryIs(name, value) => query.get(name).is_some_and(|v| v.eq_ignore_ascii_case(value)),
        }
    }
}

impl Operation {
    /// The name in the REST documentation.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Whether it is a browser's question before it asks.
    pub fn is_preflight(self) -> bool {
        self == route::preflight(self.service())
    }

    /// Whether it asks for a user delegation key, which is not for the service to give.
    pub fn is_user_delegation_key(self) -> bool {
        matches!(
            self,
            Self::GetUserDelegationKey | Self::GetQueueUserDelegationKey | Self::GetFileUserDelegationKey
        )
    }

    /// Whether a bearer token has to come with `x-ms-file-request-intent`, since it passes over the permissions of
    /// files: for files, directories and their permissions, but not for the service and for shares.
    pub fn needs_file_request_intent(self) -> bool {
        let row = self.row();
        let is_below_share = row.places.contains(&Place::Object);
        row.service == ServiceKind::File
            && (is_below_share || matches!(self, Self::CreatePermission | Self::GetPermission))
    }

    /// The service that has it.
    pub fn service(self) -> ServiceKind {
        self.row().service
    }

    /// What an account SAS must grant for this request.
    pub fn account_permission(self, query: &Query, headers: &HeaderMap) -> Permission {
        self.exception(query, headers).map_or(self.row().account_sas, |(permission, _)| permission)
    }

    /// What a user delegation SAS must grant for this request. Since 2026-04-06 the right to create suffices for blocks;
    /// `version` is the older one of the request's and the signature's.
    pub fn delegated_permission(self, query: &Query, headers: &HeaderMap, version: Version) -> Permission {
        let usual = self.service_permission(query, headers);
        let of_blocks = matches!(self, Self::PutBlock | Self::PutBlockFromUrl | Self::PutBlockList);
        match usual.0 {
            "w" if of_blocks && version.at_least(2026, 4, 6) => Permission("c|w"),
            "w+t" if of_blocks && version.at_least(2026, 4, 6) => Permission("c+t|w+t"),
            _ => usual,
        }
    }

    /// What a service SAS must grant for this request.
    pub fn service_permission(self, query: &Query, headers: &HeaderMap) -> Permission {
        let usual = self.row().service_sas;
        if usual == Permission::NEVER {
            return usual;
        }
        self.exception(query, headers).map_or(usual, |(permission, _)| permission)
    }

    /// The least role that an OAuth subject needs for this request.
    pub fn role(self, query: &Query, headers: &HeaderMap) -> Role {
        let usual = self.exception(query, headers).map_or(self.row().role, |(_, role)| role);
        self.further_permission(query, headers).map_or(usual, |(_, role)| role.max(usual))
    }

    /// What a request needs besides its operation's permission and role, because its headers do what another operation does:
    /// they protect a blob, or make a container public.
    pub fn further_permission(self, query: &Query, headers: &HeaderMap) -> Option<(Permission, Role)> {
        let further = |(operations, when, _): &&table::Further| {
            operations.contains(&self) && when.iter().any(|when| when.holds(query, headers))
        };
        let of = table::FURTHER.iter().find(further)?.2.row();
        Some((of.service_sas, of.role))
    }

    fn exception(self, query: &Query, headers: &HeaderMap) -> Option<(Permission, Role)> {
        let fits =
            |(operation, when, ..): &&table::Exception| *operation == self && when.holds(query, headers);
        table::EXCEPTIONS.iter().find(fits).map(|(_, _, permission, role)| (*permission, *role))
    }
}
