//! Security descriptors: the bytes that clients of SMB send and receive, and the SDDL that the file service keeps.
//!
//! A [`Descriptor`] is what both say. [`binary`] reads and writes the bytes, in the self-relative form; [`sddl`] the text.
//! Conditional entries and resource attributes have an expression, which is a language of its own and not understood:
//! their bytes are refused, and their text is, but by [`Descriptor::check_sddl`].

mod binary;
pub mod cursor;
mod sddl;
mod sid;

pub use sid::Sid;

/// Entries of one access list. Lists are 64 KiB at most.
const MAX_ENTRIES: usize = 2048;

/// Which parts of a descriptor a request is about.
pub mod part {
    /// The owner.
    pub const OWNER: u32 = 0x1;
    /// The group.
    pub const GROUP: u32 = 0x2;
    /// The access list.
    pub const DACL: u32 = 0x4;
    /// The audit list.
    pub const SACL: u32 = 0x8;
    /// The label.
    pub const LABEL: u32 = 0x10;
}

/// Bits that say how a list came to be.
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

/// It is neither bytes nor text of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// A security descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Whose it is.
    pub owner: Option<Sid>,
    /// The owner's group.
    pub group: Option<Sid>,
    /// Who may do what.
    pub dacl: Option<Acl>,
    /// What is audited, and the label.
    pub sacl: Option<Acl>,
}

/// An access list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    /// Not changed by what is inherited.
    pub is_protected: bool,
    /// To be inherited anew.
    pub is_requested: bool,
    /// Made by inheritance.
    pub is_inherited: bool,
    /// None: there is a list, and it is no list. Everybody may do everything.
    pub entries: Option<Vec<Ace>>,
}

/// An entry of an access list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ace {
    /// What it does: allow, deny, audit.
    pub kind: u8,
    /// What inherits it, and when it counts.
    pub flags: u8,
    /// The rights that it is about.
    pub mask: u32,
    /// Of the kinds that are about parts of an object.
    pub object: Option<Object>,
    /// Whom it is about.
    pub sid: Sid,
}

/// What an entry is about, if not all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// The kind of part.
    pub kind: Option<u128>,
    /// The kind of what inherits it.
    pub inherited_kind: Option<u128>,
}

/// Kinds of entries.
mod kind {
    pub(super) const LABEL: u8 = 0x11;
    /// Kinds that are about parts of an object.
    pub(super) const OF_OBJECTS: [u8; 5] = [0x05, 0x06, 0x07, 0x08, 0x0b];
    /// By number, with the letters that SDDL has for them.
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
    /// Those that have an expression.
    pub(super) const WITH_EXPRESSION: [(u8, &str); 6] =
        [(0x09, "XA"), (0x0a, "XD"), (0x0b, "ZA"), (0x0d, "XU"), (0x12, "RA"), (0x15, "FL")];
}

impl Descriptor {
    /// The same, with the owner, group and access list of another where it has none.
    pub fn or(self, other: Self) -> Self {
        Self {
            owner: self.owner.or(other.owner),
            group: self.group.or(other.group),
            dacl: self.dacl.or(other.dacl),
            sacl: self.sacl,
        }
    }

    /// The parts that a client asks for.
    pub fn only(mut self, parts: u32) -> Self {
        let wants = |part: u32| parts & part != 0;
        self.owner = self.owner.filter(|_| wants(part::OWNER));
        self.group = self.group.filter(|_| wants(part::GROUP));
        self.dacl = self.dacl.filter(|_| wants(part::DACL));
        self.sacl = self.sacl.filter(|_| wants(part::SACL | part::LABEL));
        if let Some(entries) = self.sacl.as_mut().and_then(|sacl| sacl.entries.as_mut()) {
            entries.retain(|ace| wants(if ace.kind == kind::LABEL { part::LABEL } else { part::SACL }));
        }
        self
    }

    /// Takes over the parts of another. An access list that the other does not have becomes none. A list that says that it
    /// was inherited is believed if it asks for that, too.
    pub fn replace(&mut self, parts: u32, mut other: Self) {
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
    fn text_becomes_bytes_and_text_again() {
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
    fn what_is_missing_of_a_new_file_is_filled_in() {
        for (sent, complete) in [
            ("", "O:SYG:SYD:(A;;FA;;;SY)"),
            ("D:NO_ACCESS_CONTROL", "O:SYG:SYD:NO_ACCESS_CONTROL"),
            ("O:BAG:BUD:P", "O:BAG:BUD:P"),
        ] {
            let other = Descriptor::from_sddl("O:SYG:SYD:(A;;FA;;;SY)S:(AU;SA;FA;;;WD)").unwrap();
            assert_eq!(Descriptor::from_sddl(sent).unwrap().or(other).to_sddl(), complete);
        }
    }

    #[test]
    fn a_client_gets_the_parts_that_it_asks_for() {
        let all = Descriptor::from_sddl(SDDL).unwrap();
        for (parts, sddl) in [
            (part::OWNER, "O:SY"),
            (part::GROUP | part::OWNER, "O:SYG:BA"),
            (part::DACL, "D:PAI(A;OICI;FA;;;SY)(D;;0x116;;;S-1-5-21-1-2-3-1001)"),
            (part::SACL, "S:(AU;SAFA;FA;;;WD)"),
            (part::LABEL, "S:(ML;;0x1;;;ME)"),
            (0, ""),
        ] {
            assert_eq!(all.clone().only(parts).to_sddl(), sddl);
        }
    }

    #[test]
    fn what_a_client_sets_replaces_that_part_and_no_other() {
        let sent = Descriptor::from_sddl("O:BUG:BUD:(A;;FR;;;WD)").unwrap();
        for (parts, sddl) in [
            (part::OWNER, "O:BUG:SYD:(A;;FA;;;SY)"),
            (part::DACL, "O:SYG:SYD:(A;;FR;;;WD)"),
            (part::GROUP | part::SACL, "O:SYG:BUD:(A;;FA;;;SY)"),
        ] {
            let mut descriptor = Descriptor::from_sddl("O:SYG:SYD:(A;;FA;;;SY)").unwrap();
            descriptor.replace(parts, sent.clone());
            assert_eq!(descriptor.to_sddl(), sddl);
        }
        let mut descriptor = sent;
        descriptor.replace(part::DACL, Descriptor::default());
        assert_eq!(descriptor.to_sddl(), "O:BUG:BUD:NO_ACCESS_CONTROL");
        for (sent, kept) in [("D:AI", "D:"), ("D:AR", "D:"), ("D:ARAI", "D:AI"), ("D:PARAI", "D:PAI")] {
            let mut descriptor = Descriptor::default();
            descriptor.replace(part::DACL, Descriptor::from_sddl(sent).unwrap());
            assert_eq!(descriptor.to_sddl(), kept, "{sent}");
        }
    }
}
