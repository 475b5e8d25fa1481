//! What an access list grants to the holder of an account's key.
//!
//! In the cloud the key opens everything, whatever a list says, and so it does here unless the server is told to hold its
//! users to the lists: then the holder is the system and an administrator, as new files name them.

use lazuli_security::{Ace, Descriptor, Sid};

use crate::open::access;

/// The groups that the holder is in: the system, administrators, whoever has logged in, everybody.
const HOLDER: [&str; 4] = ["SY", "BA", "AU", "WD"];
/// Stands for the owner in a list, and takes from it what owners have by nature.
const OWNER_RIGHTS: &str = "OW";
const ALLOWED: u8 = 0;
const DENIED: u8 = 1;
/// The entry is there to be inherited and says nothing about what it stands at.
const INHERIT_ONLY: u8 = 0x08;
/// What an owner has by nature.
const OWNERS: u32 = access::READ_CONTROL | access::WRITE_DAC;

/// All that the holder may do. The first entry that speaks of a right decides about it.
pub(crate) fn granted(descriptor: &Descriptor, generic: impl Fn(u32) -> u32) -> u32 {
    let Some(entries) = descriptor.dacl.as_ref().and_then(|dacl| dacl.entries.as_ref()) else {
        return access::ALL;
    };
    let is_owner = descriptor.owner.as_ref().is_some_and(is_holder);
    let concerns = |ace: &&Ace| {
        ace.flags & INHERIT_ONLY == 0 && (is_holder(&ace.sid) || is_owner && is_named(&ace.sid, OWNER_RIGHTS))
    };
    let (mut granted, mut denied) = (0, 0);
    for ace in entries.iter().filter(concerns) {
        let mask = generic(ace.mask);
        match ace.kind {
            ALLOWED => granted |= mask & !denied,
            DENIED => denied |= mask & !granted,
            _ => {}
        }
    }
    let limits_owner = entries.iter().any(|ace| is_named(&ace.sid, OWNER_RIGHTS));
    if is_owner && !limits_owner {
        granted |= OWNERS;
    }
    granted & access::ALL
}

fn is_holder(sid: &Sid) -> bool {
    HOLDER.iter().any(|name| is_named(sid, name))
}

fn is_named(sid: &Sid, name: &str) -> bool {
    Sid::parse(name).is_ok_and(|named| named == *sid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_entry_that_speaks_of_a_right_decides() {
        for (sddl, granted) in [
            ("O:SYG:SYD:(A;OICI;FA;;;BA)(A;OICI;FA;;;SY)(A;OICI;0x1301bf;;;AU)", access::ALL),
            ("O:SYG:SYD:NO_ACCESS_CONTROL", access::ALL),
            ("O:SYG:SY", access::ALL),
            ("O:SYG:SYD:", OWNERS),
            ("O:BUG:SYD:", 0),
            ("O:SYG:SYD:(A;;FA;;;CO)", OWNERS),
            ("O:BUG:SYD:(D;;0x2;;;WD)(A;;0x3;;;SY)", 0x1),
            ("O:BUG:SYD:(A;;0x3;;;SY)(D;;0x2;;;WD)", 0x3),
            ("O:BUG:SYD:(A;IO;0x3;;;SY)", 0),
            ("O:SYG:SYD:(A;;0x1;;;OW)", 0x1),
            ("O:BUG:SYD:(A;;0x1;;;OW)(A;;0x2;;;SY)", 0x2),
        ] {
            let descriptor = Descriptor::from_sddl(sddl).unwrap();
            assert_eq!(super::granted(&descriptor, |mask| mask), granted, "{sddl}");
        }
    }
}
