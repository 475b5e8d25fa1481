//! Typed values of properties.

use std::borrow::Cow;

use lazuli_protocol::{ErrorCode, Refusal};
use serde::{Deserialize, Serialize};

/// Maximum length of a String in UTF-16 code units, and of a Binary in bytes: 64 KiB each.
const MAX_STRING_UNITS: usize = 32 << 10;
const MAX_BINARY_BYTES: usize = 64 << 10;

/// The value of a property. Rows store the index of the variant, so the order must not change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Value<'a> {
    String(#[serde(borrow)] Cow<'a, str>),
    Boolean(bool),
    Int32(i32),
    Int64(i64),
    Double(f64),
    /// Ticks of 100 ns since 0001-01-01.
    DateTime(u64),
    Guid([u8; 16]),
    Binary(#[serde(borrow)] Cow<'a, [u8]>),
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EdmType {
    String,
    Boolean,
    Int32,
    Int64,
    Double,
    DateTime,
    Guid,
    Binary,
}

impl EdmType {
    const ALL: [Self; 8] = [
        Self::String,
        Self::Boolean,
        Self::Int32,
        Self::Int64,
        Self::Double,
        Self::DateTime,
        Self::Guid,
        Self::Binary,
    ];

    /// Returns the type's name in annotations.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::String => "Edm.String",
            Self::Boolean => "Edm.Boolean",
            Self::Int32 => "Edm.Int32",
            Self::Int64 => "Edm.Int64",
            Self::Double => "Edm.Double",
            Self::DateTime => "Edm.DateTime",
            Self::Guid => "Edm.Guid",
            Self::Binary => "Edm.Binary",
        }
    }

    /// Returns the type with the given name in annotations.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|edm| edm.name() == name)
    }
}

impl Value<'_> {
    /// Returns the type of the value.
    pub(crate) const fn edm_type(&self) -> EdmType {
        match self {
            Self::String(_) => EdmType::String,
            Self::Boolean(_) => EdmType::Boolean,
            Self::Int32(_) => EdmType::Int32,
            Self::Int64(_) => EdmType::Int64,
            Self::Double(_) => EdmType::Double,
            Self::DateTime(_) => EdmType::DateTime,
            Self::Guid(_) => EdmType::Guid,
            Self::Binary(_) => EdmType::Binary,
        }
    }

    /// Returns the number of bytes that the value adds to the size of its entity.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::String(text) => 4 + 2 * text.encode_utf16().count(),
            Self::Boolean(_) => 1,
            Self::Int32(_) => 4,
            Self::Int64(_) | Self::Double(_) | Self::DateTime(_) => 8,
            Self::Guid(_) => 16,
            Self::Binary(bytes) => 4 + bytes.len(),
        }
    }

    /// Refuses a value that is too large for a property.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let fits = match self {
            Self::String(text) => text.encode_utf16().take(MAX_STRING_UNITS + 1).count() <= MAX_STRING_UNITS,
            Self::Binary(bytes) => bytes.len() <= MAX_BINARY_BYTES,
            _ => true,
        };
        if fits { Ok(()) } else { Err(ErrorCode::PropertyValueTooLarge.into()) }
    }
}
