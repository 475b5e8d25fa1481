//! The properties of the services.

use std::sync::Arc;

use http::{Method, StatusCode};
use lazuli_client::client::Call;
use lazuli_protocol::ServiceKind;
use serde_json::Value;

use super::document::ServiceProperties;
use super::{Connections, Database, FolderError, Import, Step, element, run_step};

/// Imports the properties of the service whose objects a database holds.
pub(super) async fn import(
    import: &Arc<Import>,
    database: Database,
    service: ServiceKind,
) -> Result<(), FolderError> {
    run_step(import, database, Properties(service)).await
}

struct Properties(ServiceKind);

impl Step for Properties {
    type Document = ServiceProperties;

    fn select(
        &self,
        import: &Import,
        collection: &str,
        document: Value,
    ) -> Option<(String, ServiceProperties)> {
        let properties: ServiceProperties =
            (collection == "$SERVICES_COLLECTION$").then(|| import.parse(collection, document))??;
        Some((properties.account_name.clone(), properties))
    }

    async fn run(&self, import: &Import, connections: &mut Connections, properties: ServiceProperties) {
        let service = self.0;
        let mut xml = String::from("<StorageServiceProperties>");
        if let Some(rules) = properties.cors {
            xml += "<Cors>";
            for rule in rules {
                xml += "<CorsRule>";
                element(&mut xml, "AllowedOrigins", &rule.allowed_origins);
                element(&mut xml, "AllowedMethods", &rule.allowed_methods);
                element(&mut xml, "AllowedHeaders", &rule.allowed_headers);
                element(&mut xml, "ExposedHeaders", &rule.exposed_headers);
                element(&mut xml, "MaxAgeInSeconds", &rule.max_age_in_seconds.to_string());
                xml += "</CorsRule>";
            }
            xml += "</Cors>";
        }
        if let Some(version) = properties.default_service_version.filter(|_| service == ServiceKind::Blob) {
            element(&mut xml, "DefaultServiceVersion", &version);
        }
        if let Some(website) = properties.static_website.filter(|_| service == ServiceKind::Blob) {
            xml += "<StaticWebsite>";
            element(&mut xml, "Enabled", if website.enabled { "true" } else { "false" });
            for (name, value) in [
                ("IndexDocument", website.index_document),
                ("ErrorDocument404Path", website.error_document404_path),
            ] {
                if let Some(value) = value.filter(|_| website.enabled) {
                    element(&mut xml, name, &value);
                }
            }
            xml += "</StaticWebsite>";
        }
        xml += "</StorageServiceProperties>";
        let call = Call::new(Method::PUT, "", "restype=service&comp=properties").body(xml.into());
        let account = &properties.account_name;
        match connections.send(account, service, &call, &[StatusCode::ACCEPTED]).await {
            Ok(_) => import.progress.imported("service properties", 0),
            Err(failure) => {
                import.progress.left_out(format_args!("{} properties of {account}", service.name()), failure);
            }
        }
    }
}
