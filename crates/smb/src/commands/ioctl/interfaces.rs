//! The server addresses at which a client can open more connections for a session.

use std::net::{IpAddr, SocketAddr};

use crate::wire::cursor::ByteWriter;

/// Bytes of one interface entry.
const ENTRY: usize = 152;

/// Returns the interface entry of the address that the client has connected to.
pub(super) fn interfaces(reached: Option<SocketAddr>) -> Vec<u8> {
    const INDEX: u32 = 1;
    const BITS_PER_SECOND: u64 = 10_000_000_000;
    const INTERNET: u16 = 2;
    const INTERNET_6: u16 = 23;
    let Some(reached) = reached else { return vec![] };
    let mut writer = ByteWriter::new();
    writer.u32(0).u32(INDEX).u32(0).u32(0).u64(BITS_PER_SECOND);
    match reached.ip().to_canonical() {
        IpAddr::V4(address) => writer.u16(INTERNET).u16(0).put(&address.octets()),
        IpAddr::V6(address) => writer.u16(INTERNET_6).u16(0).u32(0).put(&address.octets()),
    };
    writer.zeros(ENTRY - writer.len());
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_entry_has_the_same_size_for_ipv4_and_ipv6() {
        let four = interfaces(Some("10.1.2.3:445".parse().expect("an address")));
        assert_eq!((four.len(), &four[24..32]), (ENTRY, &[2, 0, 0, 0, 10, 1, 2, 3][..]));
        let six = interfaces(Some("[2001:db8::7]:445".parse().expect("an address")));
        assert_eq!((six.len(), &six[24..34]), (ENTRY, &[23, 0, 0, 0, 0, 0, 0, 0, 0x20, 1][..]));
        assert_eq!(interfaces(Some("[::ffff:10.1.2.3]:445".parse().expect("an address"))), four);
        assert!(interfaces(None).is_empty());
    }
}
