//! The access that an access list grants to a client that has logged in with an account key.
//!
//! In Azure an account key grants full access regardless of access lists. Lazuli does the same unless
//! configured to enforce access lists. Then the client counts as SYSTEM and as an administrator, the owners
//! of new files.

use lazuli_security::{Ace, Descriptor, Sid};

use crate::wire::create::access;

/// The groups of the client: SYSTEM, Administrators, Authenticated Users, `Everyone`.
const KEY_HOLDER: [&str; 4] = ["SY", "BA", "AU", "WD"];
/// The SID "owner rights". An entry for it replaces the implicit rights of the owner.
const OWNER_RIGHTS: &str = "OW";
const ALLOWED: u8 = 0;
const DENIED: u8 = 1;
/// The entry is only inherited, and does not apply to the object itself.
const INHERIT_ONLY: u8 = 0x08;
/// The implicit rights of the owner.
const OWNER_DEFAULT_RIGHTS: u32 = access::READ_CONTROL | access::WRITE_DAC;

/// Returns all rights that the descriptor grants. For each right, the first entry that contains it decides.
pub(crate) fn granted_access(descriptor: &Descriptor, map_generic: impl Fn(u32) -> u32) -> u32 {
    let Some(entries) = descriptor.dacl.as_ref().and_then(|dacl| dacl.entries.as_ref()) else {
        return access::ALL;
    };
    let is_owner = descriptor.owner.as_ref().is_some_and(is_key_holder);
    let applies = |ace: &&Ace| {
        ace.flags & INHERIT_ONLY == 0
            && (is_key_holder(&ace.sid) || is_owner && is_named(&ace.sid, OWNER_RIGHTS))
    };
    let (mut granted, mut denied) = (0, 0);
    for ace in entries.iter().filter(applies) {
        let mask = map_generic(ace.mask);
        match ace.ace_type {
            ALLOWED => granted |= mask & !denied,
            DENIED => denied |= mask & !granted,
            _ => {}
        }
    }
    let limits_owner = entries.iter().any(|ace| is_named(&ace.sid, OWNER_RIGHTS));
    if is_owner && !limits_owner {
        granted |= OWNER_DEFAULT_RIGHTS;
    }
    granted & access::ALL
}

fn is_key_holder(sid: &Sid) -> bool {
    KEY_HOLDER.iter().any(|name| is_named(sid, name))
}

fn is_named(sid: &Sid, name: &str) -> bool {
    Sid::parse(name).is_ok_and(|named| named == *sid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_entry_that_contains_a_right_decides() {
        for (sddl, granted) in [
            ("O:SYG:SYD:(A;OICI;FA;;;BA)(A;OICI;FA;;;SY)(A;OICI;0x1301bf;;;AU)", access::ALL),
            ("O:SYG:SYD:NO_ACCESS_CONTROL", access::ALL),
            ("O:SYG:SY", access::ALL),
            ("O:SYG:SYD:", OWNER_DEFAULT_RIGHTS),
            ("O:BUG:SYD:", 0),
            ("O:SYG:SYD:(A;;FA;;;CO)", OWNER_DEFAULT_RIGHTS),
            ("O:BUG:SYD:(D;;0x2;;;WD)(A;;0x3;;;SY)", 0x1),
            ("O:BUG:SYD:(A;;0x3;;;SY)(D;;0x2;;;WD)", 0x3),
            ("O:BUG:SYD:(A;IO;0x3;;;SY)", 0),
            ("O:SYG:SYD:(A;;0x1;;;OW)", 0x1),
            ("O:BUG:SYD:(A;;0x1;;;OW)(A;;0x2;;;SY)", 0x2),
        ] {
            let descriptor = Descriptor::from_sddl(sddl).unwrap();
            assert_eq!(granted_access(&descriptor, |mask| mask), granted, "{sddl}");
        }
    }
}
