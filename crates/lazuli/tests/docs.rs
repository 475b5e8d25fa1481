//! The book's reference pages list every operation and every option of `serve`.

use std::path::Path;
use std::process::Command;

use lazuli_protocol::operation::{Discriminator, Operation, Permission, Row};

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Formats the first cells of an operation's line on the page, as the operation table defines them.
fn line(row: &Row) -> String {
    let mut request = row.methods.join(", ");
    let parts = [("restype", row.restype), ("comp", row.comp)];
    let parts: Vec<_> = parts
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    if !parts.is_empty() {
        request += &format!(" `{}`", parts.join("&"));
    }
    let conditions: Vec<_> = row
        .discriminators
        .iter()
        .map(|condition| match condition {
            Discriminator::Header(name) | Discriminator::Query(name) => format!("`{name}`"),
            Discriminator::HeaderIs(name, value) => format!("`{name}: {value}`"),
            Discriminator::QueryIs(name, value) => format!("`{name}={value}`"),
        })
        .collect();
    if !conditions.is_empty() {
        request += &format!(", with {}", conditions.join(" and "));
    }
    let letters = |permission: Permission| match permission.0 {
        "" => "–".to_owned(),
        letters => letters.replace('|', " or ").replace('+', " and "),
    };
    let role = format!("{:?}", row.role).to_lowercase();
    let (account, service) = (letters(row.account_sas), letters(row.service_sas));
    format!("| {} | {request} | {account}; {service} | {role} |", row.name)
}

#[test]
fn compatibility_page_agrees_with_the_operation_table() {
    let page = page("compatibility.md");
    let expected: Vec<_> = Operation::ALL.iter().map(|operation| line(operation.row())).collect();
    let missing: Vec<_> =
        expected.iter().filter(|line| !page.contains(&format!("\n{line} "))).map(String::as_str).collect();
    assert!(missing.is_empty(), "lines that are not on the page:\n{}", missing.join("\n"));
    // No line is left of an operation that is gone.
    let tables = page.split("\n## Authorization").next().unwrap_or_default();
    let lines = tables.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| operation"));
    assert_eq!(lines.count(), expected.len());
}

#[test]
fn every_option_of_serve_is_on_the_settings_page() {
    let page = page("settings.md");
    let help = Command::new(env!("CARGO_BIN_EXE_lazuli")).args(["serve", "--help"]).output().expect("help");
    let help = String::from_utf8(help.stdout).expect("text");
    let options: Vec<_> = help
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("--"))
        .map(|option| option.split(|c: char| c != '-' && !c.is_ascii_lowercase()).next().unwrap_or_default())
        .collect();
    assert!(options.len() > 20, "{options:?}");
    let missing: Vec<_> =
        options.into_iter().filter(|option| !page.contains(&format!("`--{option}"))).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn lock_order_page_has_the_ranks_of_the_file_service() {
    let rows = |text: &str, prefix: &str| -> Vec<String> {
        let row = format!("{prefix}| `");
        text.lines()
            .filter(|line| line.starts_with(&row))
            .map(|line| line[prefix.len()..].to_owned())
            .collect()
    };
    let code = Path::new(env!("CARGO_MANIFEST_DIR")).join("../file/src/lock_order.rs");
    let code = std::fs::read_to_string(code).expect("the table in the code");
    let in_code = rows(&code, "//! ");
    assert!(in_code.len() > 10, "{in_code:?}");
    let page = page("design/lock-order.md");
    let in_page: Vec<_> = rows(&page, "").into_iter().take(in_code.len()).collect();
    assert_eq!(in_page, in_code);
}
