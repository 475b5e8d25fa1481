//! Renders the reply to Get Service Properties.

use super::{Logging, Metrics, ServiceProperties};
use crate::cors::CorsRule;
use crate::kind::ServiceKind;
use crate::version::Version;
use crate::xml::Writer;

impl ServiceProperties {
    /// Returns the body of a Get reply: the elements that the service has in that version of the protocol.
    pub fn to_xml(&self, service: ServiceKind, version: Version) -> String {
        let mut xml = Writer::new();
        xml.open("StorageServiceProperties");
        if service != ServiceKind::File {
            logging(&mut xml, &self.logging);
        }
        if version.at_least(2013, 8, 15) {
            metrics(&mut xml, "HourMetrics", &self.hour_metrics);
            metrics(&mut xml, "MinuteMetrics", &self.minute_metrics);
            cors(&mut xml, &self.cors);
        } else {
            metrics(&mut xml, "Metrics", &self.hour_metrics);
        }
        match service {
            ServiceKind::Blob => self.blob(&mut xml, version),
            ServiceKind::File => self.file(&mut xml, version),
            ServiceKind::Queue | ServiceKind::Table => {}
        }
        xml.finish()
    }

    fn blob(&self, xml: &mut Writer, version: Version) {
        xml.optional("DefaultServiceVersion", self.default_service_version);
        if version.at_least(2017, 7, 29) {
            let permanent =
                version.at_least(2020, 2, 10).then_some(self.delete_retention.allow_permanent_delete);
            xml.open("DeleteRetentionPolicy");
            xml.text("Enabled", self.delete_retention.days.is_some());
            xml.optional("Days", self.delete_retention.days)
                .optional("AllowPermanentDelete", permanent)
                .close();
        }
        if version.at_least(2018, 3, 28) {
            let website = &self.static_website;
            xml.open("StaticWebsite").text("Enabled", website.enabled);
            xml.optional("IndexDocument", website.index_document.as_deref());
            xml.optional("ErrorDocument404Path", website.error_document_404_path.as_deref());
            xml.optional("DefaultIndexDocumentPath", website.default_index_document_path.as_deref());
            xml.close();
        }
    }

    fn file(&self, xml: &mut Writer, version: Version) {
        if version.at_least(2020, 2, 10) {
            retention(xml, "ShareDeleteRetentionPolicy", self.share_delete_retention_days);
            xml.open("ProtocolSettings").open("SMB");
            xml.open("Multichannel").text("Enabled", self.protocol_settings.smb_multichannel).close();
            if let Some(required) = self.protocol_settings.smb_encryption_required {
                xml.open("EncryptionInTransit").text("Required", required).close();
            }
            xml.close().close();
        }
    }
}

fn logging(xml: &mut Writer, logging: &Logging) {
    xml.open("Logging").text("Version", &logging.version);
    xml.text("Delete", logging.delete).text("Read", logging.read).text("Write", logging.write);
    retention(xml, "RetentionPolicy", logging.retention_days);
    xml.close();
}

fn metrics(xml: &mut Writer, root: &'static str, metrics: &Metrics) {
    xml.open(root).text("Version", &metrics.version).text("Enabled", metrics.enabled);
    xml.optional("IncludeAPIs", metrics.include_apis);
    retention(xml, "RetentionPolicy", metrics.retention_days);
    xml.close();
}

fn retention(xml: &mut Writer, root: &'static str, days: Option<u16>) {
    xml.open(root).text("Enabled", days.is_some()).optional("Days", days).close();
}

fn cors(xml: &mut Writer, rules: &[CorsRule]) {
    xml.open("Cors");
    for rule in rules {
        xml.open("CorsRule").text("AllowedMethods", rule.allowed_methods.join(","));
        xml.text("AllowedOrigins", rule.allowed_origins.join(","));
        xml.text("AllowedHeaders", rule.allowed_headers.join(","));
        xml.text("ExposedHeaders", rule.exposed_headers.join(","));
        xml.text("MaxAgeInSeconds", rule.max_age_seconds).close();
    }
    xml.close();
}
