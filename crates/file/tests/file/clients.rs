//! Requests as shipped clients send them, which once failed. What decided each answer: docs/decisions/0019.

use crate::support::start;

const PERMISSION: &str = "/docs?restype=share&comp=filepermission";
const SDDL: &str = "O:SYG:SYD:(A;;FA;;;BA)";

#[tokio::test]
async fn a_permission_may_be_sent_with_capitals() {
    let server = start().await;
    let bytes = "AQAEgDAAAABAAAAAAAAAABQAAAACABwAAQAAAAAAFAD/AR8AAQEAAAAAAAEAAAAAAQIAAAAAAAUgAAAAIAIAAAEBAAAAAAAFEgAAAA==";
    for (body, sddl) in [
        // .NET of 2020, Go of 2020.
        (format!(r#"{{"Permission":"{SDDL}"}}"#), SDDL),
        // .NET of 2025.
        (format!(r#"{{"permission":"{SDDL}","format":"Sddl"}}"#), SDDL),
        (format!(r#"{{"permission":"{bytes}","format":"Binary"}}"#), "O:BAG:SYD:(A;;FA;;;WD)"),
        (format!(r#"{{"Permission":"{SDDL}","Format":"SDDL"}}"#), SDDL),
        (format!(r#"{{"permission":"{SDDL}","format":null}}"#), SDDL),
    ] {
        let json = "content-type: application/json; charset=utf-8\nx-ms-version: 2025-05-05";
        let created = server.put(PERMISSION, json, body.clone()).await.expect(201);
        let key = created.header("x-ms-file-permission-key").unwrap();
        let ask = async |version: &str| {
            let headers = format!("x-ms-file-permission-key: {key}\nx-ms-version: {version}");
            server.get(PERMISSION, &headers).await.expect(200).text().to_owned()
        };
        let with_format = format!(r#"{{"permission":"{sddl}","format":"sddl"}}"#);
        assert_eq!(ask("2025-05-05").await, with_format, "{body}");
        assert_eq!(ask("2024-11-04").await, with_format, "{body}");
        assert_eq!(ask("2021-10-04").await, format!(r#"{{"permission":"{sddl}"}}"#), "{body}");
    }
    for bad in [
        r#"{"permission":"O:SYG:SYD:","format":"xml"}"#,
        r#"{"permission":"O:SYG:SYD:","Permission":"O:SYG:SYD:"}"#,
        r#"{"PERMISSION":"O:SYG:SYD:"}"#,
        "{}",
    ] {
        server.put(PERMISSION, "", bad).await.refused(400, "InvalidInput");
    }
}
