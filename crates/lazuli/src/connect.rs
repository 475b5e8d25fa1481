//! `lazuli account connection-string`: what to paste into a client.

use clap::ValueEnum;
use lazuli_auth::sign;
use lazuli_concurrency::{Clock, Span, SystemClock};
use lazuli_protocol::{Key, ServiceKind, date};

use crate::Failure;
use crate::endpoints::{Endpoints, reachable};

/// For how long the signatures in lines for AzCopy are valid.
const SAS_LIFE: Span = Span::seconds(7 * 24 * 60 * 60);

/// A client for which a connection string is formatted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClientTool {
    /// The Azure CLI
    Az,
    /// AzCopy, with a signature for seven days
    Azcopy,
    /// rclone: sections of its configuration file
    Rclone,
    /// The SDKs for .NET
    Dotnet,
    /// The SDKs for Python
    Python,
    /// A mount of a share over SMB
    Mount,
    /// A credentials file for mount.cifs (-o credentials=FILE) and smbclient (-A FILE)
    Smb,
}

/// Formats what a client needs to connect to an account.
pub(crate) fn text(
    client: Option<ClientTool>,
    endpoints: &Endpoints,
    account: &str,
    key: &Key,
) -> Result<String, Failure> {
    let secret = key.to_base64();
    let connection = endpoints.connection_string(account, &secret);
    let url = |kind| endpoints.account_url(kind, account);
    let certificate = endpoints.certificate.as_ref().map(|path| path.display().to_string());
    let trust = |variable: &str| match &certificate {
        Some(path) => format!("export {variable}='{path}'\n"),
        None => String::new(),
    };
    Ok(match client {
        None => format!("{connection}\n"),
        Some(ClientTool::Az) => {
            format!(
                "{}export AZURE_STORAGE_CONNECTION_STRING='{connection}'\naz storage container list -o table\n",
                trust("REQUESTS_CA_BUNDLE")
            )
        }
        Some(ClientTool::Azcopy) => {
            let expiry = date::iso8601_seconds(SystemClock.now() + SAS_LIFE);
            let fields =
                [("sv", "2022-11-02"), ("ss", "bf"), ("srt", "sco"), ("sp", "rwdlacuptfi"), ("se", &expiry)];
            let query = sign::account_sas(account, key, &fields);
            let line = |(kind, name): (ServiceKind, &str)| {
                let url = url(kind)?;
                let place = if kind == ServiceKind::Blob { "CONTAINER" } else { "SHARE" };
                let flags = format!("--recursive --from-to=Local{name}");
                Some(format!("azcopy copy 'FOLDER/*' '{url}/{place}?{query}' {flags}\n"))
            };
            let lines: String = [(ServiceKind::Blob, "Blob"), (ServiceKind::File, "File")]
                .into_iter()
                .filter_map(line)
                .collect();
            format!("{}{lines}", trust("SSL_CERT_FILE"))
        }
        Some(ClientTool::Rclone) => {
            let blob = url(ServiceKind::Blob).map(|url| {
                format!("[lazuli]\ntype = azureblob\naccount = {account}\nkey = {secret}\nendpoint = {url}\n")
            });
            let file = url(ServiceKind::File).map(|url| {
                format!(
                    "[lazuli-files]\ntype = azurefiles\naccount = {account}\nkey = {secret}\nendpoint = {url}\n\
                     share_name = SHARE\n"
                )
            });
            blob.into_iter().chain(file).collect::<Vec<_>>().join("\n")
        }
        Some(ClientTool::Smb) => format!("username={account}\npassword={secret}\n"),
        Some(ClientTool::Dotnet) => format!("var service = new BlobServiceClient(\"{connection}\");\n"),
        Some(ClientTool::Python) => format!(
            "from azure.storage.blob import BlobServiceClient\n\
             service = BlobServiceClient.from_connection_string(\"{connection}\")\n"
        ),
        Some(ClientTool::Mount) => {
            let smb = endpoints.smb.ok_or_else(|| Failure::Failed("SMB is not enabled".into()))?;
            let address = reachable(smb);
            // Arguments of a command are visible to all users of the machine, so the key goes into a file.
            let (ip, port) = (address.ip(), address.port());
            format!(
                "(umask 077; printf 'username=%s\\npassword=%s\\n' '{account}' '{secret}' > lazuli.credentials)\n\
                 sudo mount -t cifs //{ip}/SHARE /mnt \
                 -o credentials=lazuli.credentials,port={port},vers=3.1.1,seal,serverino\n"
            )
        }
    })
}
