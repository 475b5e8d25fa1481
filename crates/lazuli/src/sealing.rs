//! Encryption of backups and exports, in the format of age (age-encryption.org/v1). Writing requires
//! recipients, which are public. Reading requires an identity, which is secret. So a server can make backups
//! that it cannot read.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use age::x25519::Recipient;
use clap::Args;

use crate::Failure;

/// Maximum size of a file of recipients or identities, in bytes.
const MAX_KEY_FILE: u64 = 1 << 20;

/// Options that name recipients.
#[derive(Args)]
pub(crate) struct RecipientArgs {
    /// Encrypt for this age recipient (age1…); may be given more than once
    #[arg(long = "recipient", value_name = "RECIPIENT")]
    recipients: Vec<String>,
    /// Encrypt for the age recipients in this file, one a line; may be given more than once
    #[arg(long = "recipients-file", value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Options that name the keys for decryption.
#[derive(Args)]
pub(crate) struct IdentityArgs {
    /// Decrypt with the age identities in this file; may be given more than once
    #[arg(long = "identity", value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Recipients, at least one.
pub(crate) struct Recipients(Vec<Recipient>);

/// Identities, any of which may decrypt.
pub(crate) struct Identities(Vec<age::x25519::Identity>);

impl Recipients {
    /// Formats the recipients, one per line, in sorted order.
    pub(crate) fn to_text(&self) -> String {
        let lines: std::collections::BTreeSet<_> = self.0.iter().map(|one| format!("{one}\n")).collect();
        lines.into_iter().collect()
    }
}

impl RecipientArgs {
    /// Loads the recipients. Returns `None` if no option names one.
    pub(crate) fn load(&self) -> Result<Option<Recipients>, Failure> {
        let mut recipients = vec![];
        for text in &self.recipients {
            let wrong = |_| Failure::Usage("--recipient is not an age X25519 recipient (age1…)".into());
            recipients.push(text.parse().map_err(wrong)?);
        }
        for path in &self.files {
            for line in key_lines(path)? {
                // Do not quote the line: it may be a secret that got there by mistake.
                let wrong = |_| {
                    let path = path.display();
                    Failure::Usage(format!("{path} holds a line that is not an age X25519 recipient (age1…)"))
                };
                recipients.push(line.parse().map_err(wrong)?);
            }
        }
        match (recipients.is_empty(), self.files.first()) {
            (false, _) => Ok(Some(Recipients(recipients))),
            (true, None) => Ok(None),
            // An empty file must not lead to an unencrypted backup.
            (true, Some(path)) => Err(Failure::Usage(format!("{} contains no recipient", path.display()))),
        }
    }
}

impl IdentityArgs {
    /// Loads the identities. Returns `None` if no option names a file.
    pub(crate) fn load(&self) -> Result<Option<Identities>, Failure> {
        let mut identities = vec![];
        for path in &self.files {
            for line in key_lines(path)? {
                // Do not quote the line: it is a secret.
                let identity = line.parse();
                identities.push(identity.map_err(|_| {
                    Failure::Usage(format!(
                        "{} holds a line that is not an age X25519 identity",
                        path.display()
                    ))
                })?);
            }
        }
        match (identities.is_empty(), self.files.first()) {
            (false, _) => Ok(Some(Identities(identities))),
            (true, None) => Ok(None),
            (true, Some(path)) => Err(Failure::Usage(format!("{} contains no identity", path.display()))),
        }
    }
}

impl Recipients {
    /// Returns a writer that encrypts. Call [`finish`](age::stream::StreamWriter::finish) at the end.
    pub(crate) fn seal<W: Write>(&self, out: W) -> io::Result<age::stream::StreamWriter<W>> {
        let recipients = self.0.iter().map(|recipient| recipient as &dyn age::Recipient);
        age::Encryptor::with_recipients(recipients).map_err(io::Error::other)?.wrap_output(out)
    }

    /// Encrypts bytes.
    pub(crate) fn seal_bytes(&self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut writer = self.seal(Vec::with_capacity(bytes.len() + bytes.len() / 256 + 512))?;
        writer.write_all(bytes)?;
        writer.finish()
    }
}

impl Identities {
    /// Returns a reader that decrypts. A truncated stream fails at its end.
    pub(crate) fn open<R: Read>(&self, input: R) -> io::Result<age::stream::StreamReader<R>> {
        let identities = self.0.iter().map(|identity| identity as &dyn age::Identity);
        let decryptor = age::Decryptor::new(input).map_err(io::Error::other)?;
        decryptor.decrypt(identities).map_err(io::Error::other)
    }
}

/// Reads the lines of a key file, without comments.
fn key_lines(path: &Path) -> Result<Vec<String>, Failure> {
    let failed = |error: io::Error| Failure::Usage(format!("{}: {error}", path.display()));
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(MAX_KEY_FILE).read_to_string(&mut text))
        .map_err(failed)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use age::secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn sealed_bytes_open_for_every_recipient_and_no_other_key() {
        let [first, second, other] = [(); 3].map(|()| age::x25519::Identity::generate());
        let recipients = Recipients(vec![first.to_public(), second.to_public()]);
        let bytes: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
        let sealed = recipients.seal_bytes(&bytes).unwrap();
        assert!(!sealed.windows(64).any(|window| window == &bytes[..64]));
        let open = |identity: &age::x25519::Identity, sealed: &[u8]| {
            let mut read = vec![];
            Identities(vec![identity.clone()]).open(sealed)?.read_to_end(&mut read).map(|_| read)
        };
        for identity in [&first, &second] {
            assert_eq!(open(identity, &sealed).unwrap(), bytes);
        }
        assert!(open(&other, &sealed).is_err());
        assert!(open(&first, &sealed[..sealed.len() - 1]).is_err(), "cut short");
        let mut changed = sealed;
        let middle = changed.len() / 2;
        changed[middle] ^= 1;
        assert!(open(&first, &changed).is_err(), "changed");
    }

    #[test]
    fn keys_come_from_options_and_files_and_an_empty_file_is_refused() {
        let identity = age::x25519::Identity::generate();
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let public = identity.to_public().to_string();
        let load = |recipients: &[&str], files: &[&PathBuf]| {
            let recipients = recipients.iter().map(|text| text.to_string()).collect();
            let files = files.iter().map(|path| path.to_path_buf()).collect();
            RecipientArgs { recipients, files }.load().map(|loaded| loaded.map(|Recipients(all)| all.len()))
        };
        let lines = file("lines", &format!("# mine\n\n{public}\n  {public}\n"));
        let (empty, wrong) = (file("empty", "# nothing\n"), file("wrong", "ssh-ed25519 AAAA\n"));
        assert_eq!(load(&[], &[]).unwrap(), None);
        assert_eq!(load(&[&public], &[&lines]).unwrap(), Some(3));
        assert!(
            load(&[], &[&empty]).is_err() && load(&[], &[&wrong]).is_err() && load(&["age1x"], &[]).is_err()
        );
        let secret = file("key", &format!("# created\n{}\n", identity.to_string().expose_secret()));
        let identities = |files: &[&PathBuf]| {
            let files = files.iter().map(|path| path.to_path_buf()).collect();
            IdentityArgs { files }.load().map(|loaded| loaded.map(|Identities(all)| all.len()))
        };
        assert_eq!(identities(&[&secret]).unwrap(), Some(1));
        assert_eq!(identities(&[]).unwrap(), None);
        let refused = identities(&[&lines]).unwrap_err().to_string();
        assert!(!refused.contains("age1"), "{refused}");
    }
}
