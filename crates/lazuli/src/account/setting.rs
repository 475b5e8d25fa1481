//! The options of `lazuli account set`.

use clap::{Args, ValueEnum};
use lazuli_account::Setting;
use lazuli_protocol::ServiceKind;
use lazuli_protocol::account::{Role, RoleAssignment};

/// The settings to change; at least one is required.
#[derive(Args)]
#[group(required = true, multiple = true)]
pub(super) struct SettingArgs {
    /// Create a version with every write of a blob
    #[arg(long, value_name = "on|off")]
    blob_versioning: Option<Switch>,
    /// Keep deleted containers for this many days
    #[arg(long, value_name = "DAYS|off", value_parser = parse_days)]
    container_soft_delete: Option<SoftDelete>,
    /// Allow public containers
    #[arg(long, value_name = "on|off")]
    public_access: Option<Switch>,
    /// Allow immutability policies and legal holds on blobs (version-level immutability), in all containers
    /// or in one
    #[arg(long, value_name = "on|off|add:CONTAINER|remove:CONTAINER", value_parser = parse_immutability)]
    version_immutability: Vec<Setting>,
    /// The tier of blobs that are written without a tier
    #[arg(long, value_name = "hot|cool|cold")]
    default_tier: Option<Tier>,
    /// Add or remove an encryption scope
    #[arg(long, value_name = "add:NAME|remove:NAME", value_parser = parse_scope)]
    encryption_scope: Vec<Setting>,
    /// Give an OAuth subject a role for a service: reader, contributor or owner
    #[arg(long, value_name = "SUBJECT=SERVICE:ROLE", value_parser = parse_role)]
    role: Vec<Setting>,
    /// Remove the role of an OAuth subject for a service
    #[arg(long, value_name = "SUBJECT=SERVICE", value_parser = parse_remove_role)]
    remove_role: Vec<Setting>,
    /// Refuse all requests to the account
    #[arg(long, value_name = "on|off")]
    disabled: Option<Switch>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, ValueEnum)]
enum Tier {
    Hot,
    Cool,
    Cold,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SoftDelete(Option<u16>);

impl From<Switch> for bool {
    fn from(switch: Switch) -> Self {
        matches!(switch, Switch::On)
    }
}

impl SettingArgs {
    /// Returns the changes, in the order of the options above.
    pub(super) fn into_changes(self) -> Vec<Setting> {
        let tier = |tier| match tier {
            Tier::Hot => "Hot",
            Tier::Cool => "Cool",
            Tier::Cold => "Cold",
        };
        let mut changes = Vec::new();
        changes.extend(self.blob_versioning.map(|on| Setting::BlobVersioning(on.into())));
        changes.extend(self.container_soft_delete.map(|days| Setting::ContainerSoftDelete(days.0)));
        changes.extend(self.public_access.map(|on| Setting::PublicAccess(on.into())));
        changes.extend(self.version_immutability);
        changes.extend(self.default_tier.map(|name| Setting::DefaultTier(tier(name).into())));
        changes.extend(self.encryption_scope);
        changes.extend(self.role);
        changes.extend(self.remove_role);
        changes.extend(self.disabled.map(|on| Setting::Disabled(on.into())));
        changes
    }
}

fn parse_days(text: &str) -> Result<SoftDelete, String> {
    match text {
        "off" => Ok(SoftDelete(None)),
        days => days
            .parse()
            .map(|days| SoftDelete(Some(days)))
            .map_err(|_| "neither a number of days nor off".into()),
    }
}

fn parse_immutability(text: &str) -> Result<Setting, String> {
    match (text, text.split_once(':')) {
        ("on" | "off", _) => Ok(Setting::VersionImmutability(text == "on")),
        (_, Some(("add", container))) => Ok(Setting::AddImmutableContainer(container.into())),
        (_, Some(("remove", container))) => Ok(Setting::RemoveImmutableContainer(container.into())),
        _ => Err("neither on, off, add:CONTAINER nor remove:CONTAINER".into()),
    }
}

fn parse_scope(text: &str) -> Result<Setting, String> {
    match text.split_once(':') {
        Some(("add", scope)) => Ok(Setting::AddEncryptionScope(scope.into())),
        Some(("remove", scope)) => Ok(Setting::RemoveEncryptionScope(scope.into())),
        _ => Err("neither add:NAME nor remove:NAME".into()),
    }
}

fn parse_role(text: &str) -> Result<Setting, String> {
    let malformed = || "not SUBJECT=SERVICE:ROLE".to_owned();
    // A subject may contain `=` and `:`; services and roles do not.
    let (subject, rest) = text.rsplit_once('=').ok_or_else(malformed)?;
    let (service, role) = rest.split_once(':').ok_or_else(malformed)?;
    let role = match role {
        "reader" => Role::Reader,
        "contributor" => Role::Contributor,
        "owner" => Role::Owner,
        _ => return Err(format!("{role:?} is not reader, contributor or owner")),
    };
    Ok(Setting::SetRole(RoleAssignment { subject: subject.into(), service: parse_service(service)?, role }))
}

fn parse_remove_role(text: &str) -> Result<Setting, String> {
    let (subject, service) = text.rsplit_once('=').ok_or("not SUBJECT=SERVICE")?;
    Ok(Setting::RemoveRole { subject: subject.into(), service: parse_service(service)? })
}

fn parse_service(text: &str) -> Result<ServiceKind, String> {
    ServiceKind::ALL
        .into_iter()
        .find(|service| service.name() == text)
        .ok_or_else(|| format!("{text:?} is not blob, queue, table or file"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct OnlySettings {
        #[command(flatten)]
        settings: SettingArgs,
    }

    fn parse(arguments: &[&str]) -> Option<Vec<Setting>> {
        let arguments = std::iter::once("set").chain(arguments.iter().copied());
        OnlySettings::try_parse_from(arguments).ok().map(|parsed| parsed.settings.into_changes())
    }

    #[test]
    fn each_option_becomes_a_change() {
        let role = |subject: &str, service, role| {
            Setting::SetRole(RoleAssignment { subject: subject.into(), service, role })
        };
        for (option, value, change) in [
            ("--blob-versioning", "on", Some(Setting::BlobVersioning(true))),
            ("--blob-versioning", "yes", None),
            ("--container-soft-delete", "7", Some(Setting::ContainerSoftDelete(Some(7)))),
            ("--container-soft-delete", "off", Some(Setting::ContainerSoftDelete(None))),
            ("--container-soft-delete", "soon", None),
            ("--public-access", "off", Some(Setting::PublicAccess(false))),
            ("--version-immutability", "on", Some(Setting::VersionImmutability(true))),
            ("--version-immutability", "add:c", Some(Setting::AddImmutableContainer("c".into()))),
            ("--version-immutability", "remove:c", Some(Setting::RemoveImmutableContainer("c".into()))),
            ("--version-immutability", "c", None),
            ("--default-tier", "cool", Some(Setting::DefaultTier("Cool".into()))),
            ("--default-tier", "archive", None),
            ("--encryption-scope", "add:s", Some(Setting::AddEncryptionScope("s".into()))),
            ("--encryption-scope", "remove:s", Some(Setting::RemoveEncryptionScope("s".into()))),
            ("--encryption-scope", "s", None),
            ("--role", "me=blob:owner", Some(role("me", ServiceKind::Blob, Role::Owner))),
            ("--role", "a=b:c=table:reader", Some(role("a=b:c", ServiceKind::Table, Role::Reader))),
            ("--role", "me=blob:king", None),
            ("--role", "me=tape:owner", None),
            ("--role", "me", None),
            (
                "--remove-role",
                "me=file",
                Some(Setting::RemoveRole { subject: "me".into(), service: ServiceKind::File }),
            ),
            ("--disabled", "on", Some(Setting::Disabled(true))),
        ] {
            assert_eq!(parse(&[option, value]), change.map(|change| vec![change]), "{option} {value}");
        }
    }

    #[test]
    fn several_changes_can_be_combined_and_no_change_is_refused() {
        let both = parse(&["--disabled", "on", "--role", "a=blob:owner", "--role", "b=blob:owner"]).unwrap();
        assert_eq!(both.len(), 3);
        assert_eq!(parse(&[]), None);
    }
}
