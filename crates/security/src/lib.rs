//! Security descriptors: the binary form that SMB clients send and receive, and the SDDL text that the file
//! service stores.
//!
//! A [`Descriptor`] represents both. [`binary`] parses and writes the self-relative binary form, [`sddl`] the
//! text. Conditional entries and resource attributes contain an expression, a language of its own that is not
//! supported. Their bytes are refused. Their text is refused as well, except by [`Descriptor::check_sddl`].

mod binary;
pub mod cursor;
mod sddl;
mod sid;

pub use sid::Sid;

/// Maximum number of entries of an access list. A list has at most 64 KiB.
const MAX_ENTRIES: usize = 2048;

/// The parts of a descriptor that a request refers to.
pub mod part {
    /// The owner.
    pub const OWNER: u32 = 0x1;
    /// The primary group.
    pub const GROUP: u32 = 0x2;
    /// The access list (DACL).
    pub const DACL: u32 = 0x4;
    /// The audit list (SACL).
    pub const SACL: u32 = 0x8;
    /// The mandatory label in the SACL.
    pub const LABEL: u32 = 0x10;
}

/// Control bits of a descriptor.
mod control {
    pub(super) const DACL_PRESENT: u16 = 0x0004;
    pub(super) const SACL_PRESENT: u16 = 0x0010;
    pub(super) const DACL_REQUEST: u16 = 0x0100;
    pub(super) const SACL_REQUEST: u16 = 0x0200;
    pub(super) const DACL_INHERITED: u16 = 0x0400;
    pub(super) const SACL_INHERITED: u16 = 0x0800;
    pub(super) const DACL_PROTECTED: u16 = 0x1000;
    pub(super) const SACL_PROTECTED: u16 = 0x2000;
    pub(super) const SELF_RELATIVE: u16 = 0x8000;
}

/// The input is not a valid security descriptor, or contains an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedDescriptor;

/// A security descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// The owner.
    pub owner: Option<Sid>,
    /// The primary group.
    pub group: Option<Sid>,
    /// The access list.
    pub dacl: Option<Acl>,
    /// The audit list, including the label.
    pub sacl: Option<Acl>,
}

/// An access list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    /// Protected from inherited entries.
    pub is_protected: bool,
    /// Inheritance is requested.
    pub is_requested: bool,
    /// Contains inherited entries.
    pub is_inherited: bool,
    /// `None` for a null list, which grants full access to all.
    pub entries: Option<Vec<Ace>>,
}

/// An entry of an access list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ace {
    /// The type: allow, deny, audit and so on.
    pub ace_type: u8,
    /// Inheritance and audit flags.
    pub flags: u8,
    /// The rights.
    pub mask: u32,
    /// Present in entries for parts of an object.
    pub object: Option<ObjectTypes>,
    /// The trustee.
    pub sid: Sid,
}

/// The object types of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectTypes {
    /// The part of the object to which the entry applies, if not to all.
    pub object_type: Option<u128>,
    /// The type of the objects that inherit the entry, if not all.
    pub inherited_object_type: Option<u128>,
}

/// Entry types.
mod ace_type {
    pub(super) const LABEL: u8 = 0x11;
    /// Types with [`super::ObjectTypes`].
    pub(super) const OBJECT_TYPES: [u8; 5] = [0x05, 0x06, 0x07, 0x08, 0x0b];
    /// Supported types, with their names in SDDL.
    pub(super) const NAMES: [(u8, &str); 11] = [
        (0x00, "A"),
        (0x01, "D"),
        (0x02, "AU"),
        (0x03, "AL"),
        (0x05, "OA"),
        (0x06, "OD"),
        (0x07, "OU"),
        (0x08, "OL"),
        (LABEL, "ML"),
        (0x13, "SP"),
        (0x14, "TL"),
    ];
    /// Types with an expression, with their names in SDDL.
    pub(super) const WITH_EXPRESSION: [(u8, &str); 6] =
        [(0x09, "XA"), (0x0a, "XD"), (0x0b, "ZA"), (0x0d, "XU"), (0x12, "RA"), (0x15, "FL")];
}

impl Descriptor {
    /// Fills in a missing owner, group and access list from `other`.
    pub fn or_defaults(self, other: Self) -> Self {
        Self {
            owner: self.owner.or(other.owner),
            group: self.group.or(other.group),
            dacl: self.dacl.or(other.dacl),
            sacl: self.sacl,
        }
    }

    /// Removes all parts that are not requested.
    pub fn filter_parts(mut self, parts: u32) -> Self {
        let wants = |part: u32| parts & part != 0;
        self.owner = self.owner.filter(|_| wants(part::OWNER));
        self.group = self.group.filter(|_| wants(part::GROUP));
        self.dacl = self.dacl.filter(|_| wants(part::DACL));
        self.sacl = self.sacl.filter(|_| wants(part::SACL | part::LABEL));
        if let Some(entries) = self.sacl.as_mut().and_then(|sacl| sacl.entries.as_mut()) {
            entries
                .retain(|ace| wants(if ace.ace_type == ace_type::LABEL { part::LABEL } else { part::SACL }));
        }
        self
    }

    /// Replaces parts by those of `other`. If `other` has no access list, the result is a null list. A list
    /// keeps its "inherited" flag only if it also requests inheritance.
    pub fn replace_parts(&mut self, parts: u32, mut other: Self) {
        for acl in [&mut other.dacl, &mut other.sacl].into_iter().flatten() {
            acl.is_inherited &= acl.is_requested;
            acl.is_requested = false;
        }
        if parts & part::OWNER != 0 && other.owner.is_some() {
            self.owner = other.owner;
        }
        if parts & part::GROUP != 0 && other.group.is_some() {
            self.group = other.group;
        }
        if parts & part::DACL != 0 {
            self.dacl = Some(other.dacl.unwrap_or_default());
        }
        if parts & (part::SACL | part::LABEL) != 0 {
            self.sacl = other.sacl;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SDDL: &str =
        "O:SYG:BAD:PAI(A;OICI;FA;;;SY)(D;;0x116;;;S-1-5-21-1-2-3-1001)S:(AU;SAFA;FA;;;WD)(ML;;0x1;;;ME)";

    #[test]
    fn sddl_survives_a_round_trip_through_the_binary_form() {
        for sddl in [
            SDDL,
            "O:SYG:SYD:(A;OICI;FA;;;BA)(A;OICI;FA;;;SY)(A;OICI;0x1301bf;;;AU)",
            "O:BAG:BAD:",
            "O:BAG:BAD:NO_ACCESS_CONTROL",
            "D:AR(A;CIIOID;GA;;;CO)",
            "O:S-1-5-21-1-2-3-500D:(OA;;FR;bf967a86-0de6-11d0-a285-00aa003049e2;;AN)",
            "",
        ] {
            let descriptor = Descriptor::from_sddl(sddl).unwrap();
            let again = Descriptor::from_bytes(&descriptor.to_bytes()).unwrap();
            assert_eq!(again, descriptor, "{sddl}");
            assert_eq!(again.to_sddl(), sddl);
        }
    }

    #[test]
    fn missing_parts_are_filled_in() {
        for (sent, complete) in [
            ("", "O:SYG:SYD:(A;;FA;;;SY)"),
            ("D:NO_ACCESS_CONTROL", "O:SYG:SYD:NO_ACCESS_CONTROL"),
            ("O:BAG:BUD:P", "O:BAG:BUD:P"),
        ] {
            let other = Descriptor::from_sddl("O:SYG:SYD:(A;;FA;;;SY)S:(AU;SA;FA;;;WD)").unwrap();
            assert_eq!(Descriptor::from_sddl(sent).unwrap().or_defaults(other).to_sddl(), complete);
        }
    }

    #[test]
    fn only_requested_parts_are_returned() {
        let all = Descriptor::from_sddl(SDDL).unwrap();
        for (parts, sddl) in [
            (part::OWNER, "O:SY"),
            (part::GROUP | part::OWNER, "O:SYG:BA"),
            (part::DACL, "D:PAI(A;OICI;FA;;;SY)(D;;0x116;;;S-1-5-21-1-2-3-1001)"),
            (part::SACL, "S:(AU;SAFA;FA;;;WD)"),
            (part::LABEL, "S:(ML;;0x1;;;ME)"),
            (0, ""),
        ] {
            assert_eq!(all.clone().filter_parts(parts).to_sddl(), sddl);
        }
    }

    #[test]
    fn only_the_given_parts_are_replaced() {
        let sent = Descriptor::from_sddl("O:BUG:BUD:(A;;FR;;;WD)").unwrap();
        for (parts, sddl) in [
            (part::OWNER, "O:BUG:SYD:(A;;FA;;;SY)"),
            (part::DACL, "O:SYG:SYD:(A;;FR;;;WD)"),
            (part::GROUP | part::SACL, "O:SYG:BUD:(A;;FA;;;SY)"),
        ] {
            let mut descriptor = Descriptor::from_sddl("O:SYG:SYD:(A;;FA;;;SY)").unwrap();
            descriptor.replace_parts(parts, sent.clone());
            assert_eq!(descriptor.to_sddl(), sddl);
        }
        let mut descriptor = sent;
        descriptor.replace_parts(part::DACL, Descriptor::default());
        assert_eq!(descriptor.to_sddl(), "O:BUG:BUD:NO_ACCESS_CONTROL");
        for (sent, kept) in [("D:AI", "D:"), ("D:AR", "D:"), ("D:ARAI", "D:AI"), ("D:PARAI", "D:PAI")] {
            let mut descriptor = Descriptor::default();
            descriptor.replace_parts(part::DACL, Descriptor::from_sddl(sent).unwrap());
            assert_eq!(descriptor.to_sddl(), kept, "{sent}");
        }
    }
}
