//! Parses the body of Set Service Properties.
//!
//! The cloud service checks this document as a whole: a missing or invalid child is `InvalidXmlDocument`
//! rather than a specific code. An element that the service does not have is `UnsupportedXmlNode`.

use super::{DeleteRetention, Logging, Metrics, ProtocolSettings, StaticWebsite, Update};
use crate::cors::CorsRule;
use crate::error::{ErrorCode, Refusal};
use crate::kind::ServiceKind;
use crate::version::Version;
use crate::xml::{Reader, invalid};

const MAX_RETENTION_DAYS: u32 = 365;
const MAX_CORS_RULES: usize = 5;
/// Maximum bytes of all origins, methods and headers of all rules.
const MAX_CORS_SIZE: usize = 2048;
const MAX_CORS_ORIGINS: usize = 64;
const MAX_CORS_LITERAL_HEADERS: usize = 64;
const MAX_CORS_PREFIXED_HEADERS: usize = 2;
/// Maximum length of one origin or header, in characters.
const MAX_CORS_WORD: usize = 256;
const CORS_METHODS: [&str; 8] = ["DELETE", "GET", "HEAD", "MERGE", "OPTIONS", "PATCH", "POST", "PUT"];

impl Update {
    /// Parses a Set request for a service.
    pub fn parse(service: ServiceKind, body: &[u8]) -> Result<Self, Refusal> {
        use ServiceKind::{Blob, File};
        let mut update = Self::default();
        let mut xml = Reader::root(body, "StorageServiceProperties")?;
        while let Some(root) = xml.child()? {
            match (root, service) {
                ("Logging", service) if service != File => update.logging = Some(logging(&mut xml)?),
                // Versions before 2013-08-15 have `Metrics` instead of `HourMetrics`.
                ("HourMetrics" | "Metrics", _) => update.hour_metrics = Some(metrics(&mut xml)?),
                ("MinuteMetrics", _) => update.minute_metrics = Some(metrics(&mut xml)?),
                ("Cors", _) => update.cors = Some(cors(&mut xml)?),
                ("DefaultServiceVersion", Blob) => {
                    update.default_service_version = Some(xml.value(Version::parse)?);
                }
                ("DeleteRetentionPolicy", Blob) => update.delete_retention = Some(retention(&mut xml)?),
                ("StaticWebsite", Blob) => update.static_website = Some(static_website(&mut xml)?),
                ("ShareDeleteRetentionPolicy", File) => {
                    update.share_delete_retention_days = Some(retention(&mut xml)?.days);
                }
                ("ProtocolSettings", File) => update.protocol_settings = Some(protocol_settings(&mut xml)?),
                _ => return Err(xml.unsupported()),
            }
        }
        xml.finish()?;
        Ok(update)
    }
}

/// Returns a required child, or refuses the document.
fn required<T>(child: Option<T>, name: &str) -> Result<T, Refusal> {
    child.ok_or_else(|| invalid(format!("{name} is missing.")))
}

/// Turns the refusal of a single value into a refusal of the whole document.
fn in_document<T>(value: Result<T, Refusal>) -> Result<T, Refusal> {
    value.map_err(|refusal| match refusal.code() {
        ErrorCode::InvalidXmlNodeValue => invalid(refusal.text()),
        _ => refusal,
    })
}

/// Parses the version of logs or metrics, such as `1.0`.
fn analytics_version(text: &str) -> Option<String> {
    let short = (1..=8).contains(&text.len());
    (short && text.bytes().all(|b| b.is_ascii_digit() || b == b'.')).then(|| text.to_owned())
}

fn logging(xml: &mut Reader<'_>) -> Result<Logging, Refusal> {
    let (mut version, mut delete, mut read, mut write, mut retention_policy) = (None, None, None, None, None);
    while let Some(child) = xml.child()? {
        match child {
            "Version" => version = Some(in_document(xml.value(analytics_version))?),
            "Delete" => delete = Some(in_document(xml.flag())?),
            "Read" => read = Some(in_document(xml.flag())?),
            "Write" => write = Some(in_document(xml.flag())?),
            "RetentionPolicy" => retention_policy = Some(retention(xml)?),
            _ => return Err(xml.unsupported()),
        }
    }
    Ok(Logging {
        version: required(version, "Version")?,
        delete: required(delete, "Delete")?,
        read: required(read, "Read")?,
        write: required(write, "Write")?,
        retention_days: required(retention_policy, "RetentionPolicy")?.days,
    })
}

fn metrics(xml: &mut Reader<'_>) -> Result<Metrics, Refusal> {
    let (mut version, mut enabled, mut include_apis, mut retention_policy) = (None, None, None, None);
    while let Some(child) = xml.child()? {
        match child {
            "Version" => version = Some(in_document(xml.value(analytics_version))?),
            "Enabled" => enabled = Some(in_document(xml.flag())?),
            "IncludeAPIs" => include_apis = Some(in_document(xml.flag())?),
            "RetentionPolicy" => retention_policy = Some(retention(xml)?),
            _ => return Err(xml.unsupported()),
        }
    }
    let enabled = required(enabled, "Enabled")?;
    Ok(Metrics {
        version: required(version, "Version")?,
        enabled,
        include_apis: if enabled { Some(required(include_apis, "IncludeAPIs")?) } else { None },
        retention_days: required(retention_policy, "RetentionPolicy")?.days,
    })
}

/// Parses any of the retention policies. `AllowPermanentDelete` has an effect only for blobs.
fn retention(xml: &mut Reader<'_>) -> Result<DeleteRetention, Refusal> {
    let (mut enabled, mut days, mut allow_permanent_delete) = (None, None, false);
    while let Some(child) = xml.child()? {
        match child {
            "Enabled" => enabled = Some(in_document(xml.flag())?),
            "Days" => days = Some(in_document(xml.number(0..=MAX_RETENTION_DAYS))? as u16),
            "AllowPermanentDelete" => allow_permanent_delete = in_document(xml.flag())?,
            _ => return Err(xml.unsupported()),
        }
    }
    let days =
        if required(enabled, "Enabled")? { Some(required(days.filter(|d| *d > 0), "Days")?) } else { None };
    Ok(DeleteRetention { days, allow_permanent_delete })
}

fn static_website(xml: &mut Reader<'_>) -> Result<StaticWebsite, Refusal> {
    let (mut enabled, mut website) = (None, StaticWebsite::default());
    while let Some(child) = xml.child()? {
        let field = match child {
            "Enabled" => {
                enabled = Some(in_document(xml.flag())?);
                continue;
            }
            "IndexDocument" => &mut website.index_document,
            "ErrorDocument404Path" => &mut website.error_document_404_path,
            "DefaultIndexDocumentPath" => &mut website.default_index_document_path,
            _ => return Err(xml.unsupported()),
        };
        *field = Some(xml.text()?).filter(|text| !text.is_empty());
    }
    website.enabled = required(enabled, "Enabled")?;
    Ok(website)
}

fn protocol_settings(xml: &mut Reader<'_>) -> Result<ProtocolSettings, Refusal> {
    let mut settings = ProtocolSettings::default();
    while let Some(protocol) = xml.child()? {
        if protocol != "SMB" {
            return Err(xml.unsupported());
        }
        while let Some(setting) = xml.child()? {
            match setting {
                "Multichannel" => settings.smb_multichannel = switch(xml, "Enabled")?,
                "EncryptionInTransit" => settings.smb_encryption_required = Some(switch(xml, "Required")?),
                _ => return Err(xml.unsupported()),
            }
        }
    }
    Ok(settings)
}

/// Parses an element with a single child, a flag called `name`.
fn switch(xml: &mut Reader<'_>, name: &str) -> Result<bool, Refusal> {
    let mut on = None;
    while let Some(child) = xml.child()? {
        if child != name {
            return Err(xml.unsupported());
        }
        on = Some(in_document(xml.flag())?);
    }
    required(on, name)
}

fn cors(xml: &mut Reader<'_>) -> Result<Vec<CorsRule>, Refusal> {
    let mut rules = Vec::new();
    while let Some(child) = xml.child()? {
        if child != "CorsRule" {
            return Err(xml.unsupported());
        }
        if rules.len() == MAX_CORS_RULES {
            return Err(invalid(format!("There are more than {MAX_CORS_RULES} CORS rules.")));
        }
        rules.push(cors_rule(xml)?);
    }
    let size: usize = rules.iter().flat_map(cors_words).map(String::len).sum();
    if size > MAX_CORS_SIZE {
        return Err(invalid(format!("The CORS rules are larger than {MAX_CORS_SIZE} bytes.")));
    }
    Ok(rules)
}

fn cors_rule(xml: &mut Reader<'_>) -> Result<CorsRule, Refusal> {
    let (mut origins, mut methods, mut headers, mut exposed, mut max_age) = (None, None, None, None, None);
    while let Some(child) = xml.child()? {
        match child {
            "AllowedOrigins" => origins = Some(words(xml)?),
            "AllowedMethods" => methods = Some(words(xml)?),
            "AllowedHeaders" => headers = Some(words(xml)?),
            "ExposedHeaders" => exposed = Some(words(xml)?),
            "MaxAgeInSeconds" => max_age = Some(in_document(xml.number(0..=i32::MAX as u32))?),
            _ => return Err(xml.unsupported()),
        }
    }
    let rule = CorsRule {
        allowed_origins: required(origins, "AllowedOrigins")?,
        allowed_methods: required(methods, "AllowedMethods")?,
        allowed_headers: required(headers, "AllowedHeaders")?,
        exposed_headers: required(exposed, "ExposedHeaders")?,
        max_age_seconds: required(max_age, "MaxAgeInSeconds")?,
    };
    check_cors_rule(&rule).map_err(invalid)?;
    Ok(rule)
}

fn words(xml: &mut Reader<'_>) -> Result<Vec<String>, Refusal> {
    let text = xml.text()?;
    Ok(text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect())
}

fn cors_words(rule: &CorsRule) -> impl Iterator<Item = &String> {
    [&rule.allowed_origins, &rule.allowed_methods, &rule.allowed_headers, &rule.exposed_headers]
        .into_iter()
        .flatten()
}

fn check_cors_rule(rule: &CorsRule) -> Result<(), String> {
    let check = |fine: bool, reason: &str| if fine { Ok(()) } else { Err(reason.to_owned()) };
    check(!rule.allowed_origins.is_empty(), "A CORS rule has no allowed origin.")?;
    check(!rule.allowed_methods.is_empty(), "A CORS rule has no allowed method.")?;
    check(rule.allowed_origins.len() <= MAX_CORS_ORIGINS, "A CORS rule has too many origins.")?;
    for headers in [&rule.allowed_headers, &rule.exposed_headers] {
        let prefixed = headers.iter().filter(|header| header.ends_with('*')).count();
        check(prefixed <= MAX_CORS_PREFIXED_HEADERS, "A CORS rule has too many prefixed headers.")?;
        check(headers.len() - prefixed <= MAX_CORS_LITERAL_HEADERS, "A CORS rule has too many headers.")?;
    }
    let short = cors_words(rule).all(|word| word.chars().count() <= MAX_CORS_WORD);
    check(short, "An origin or header of a CORS rule is too long.")?;
    let known = rule.allowed_methods.iter().all(|method| CORS_METHODS.contains(&method.as_str()));
    check(known, "A CORS rule allows a method that does not exist.")
}
