//! The client's side of a login, for the seeds of the fuzzer.

use super::message::flags;
use super::response::{apply_rc4, hmac_md5, response_key};
use super::{ChallengedLogin, MAGIC};
use crate::wire::cursor::{ByteWriter, utf16};

/// The session key that the client chooses.
const SESSION_KEY: [u8; 16] = [9; 16];
const DOMAIN: &str = "Domain";
const WORKSTATION: &str = "CLIENT";
/// Offset of the MIC, which covers all three messages.
const MIC: usize = 72;
/// Bytes of the fixed part.
const FIXED: usize = 88;

/// Returns a NEGOTIATE message.
pub(crate) fn negotiate() -> Vec<u8> {
    let mut writer = ByteWriter::new();
    writer.put(&MAGIC).u32(1).u32(flags::UNICODE | flags::NTLM | flags::OPTIONAL).zeros(16);
    writer.put(&[10, 0, 0x61, 0x4a, 0, 0, 0, 15]);
    writer.finish()
}

/// Returns an AUTHENTICATE message with a correct proof of the password and a correct MIC.
pub(crate) fn authenticate(challenged: &ChallengedLogin, user: &str, password: &str) -> Vec<u8> {
    // The attributes say that there is a MIC.
    let attributes = [6, 0, 4, 0, 2, 0, 0, 0, 0, 0, 0, 0];
    let proved = [&[1, 1][..], &[0; 6], &[3; 8], &[4; 8], &[0; 4], &attributes].concat();
    let key = response_key(user, DOMAIN, password);
    let proof = hmac_md5(&key[..], &[&challenged.nonce, &proved]);
    let base = hmac_md5(&key[..], &[&proof]);
    let mut encrypted_key = SESSION_KEY;
    apply_rc4(&base, &mut encrypted_key);
    let response = [&proof[..], &proved].concat();
    let fields = [vec![], response, utf16(DOMAIN), utf16(user), utf16(WORKSTATION), encrypted_key.to_vec()];
    let mut writer = ByteWriter::new();
    writer.put(&MAGIC).u32(3);
    let mut at = FIXED;
    for field in &fields {
        writer.u16(field.len() as u16).u16(field.len() as u16).u32(at as u32);
        at += field.len();
    }
    writer.u32(flags::UNICODE | flags::NTLM | flags::OPTIONAL).zeros(8).zeros(16).put(&fields.concat());
    let mut message = writer.finish();
    let mic = hmac_md5(&SESSION_KEY, &[&challenged.negotiate, &challenged.challenge, &message]);
    message[MIC..FIXED].copy_from_slice(&mic);
    message
}
