//! The book's reference pages list every operation and every option of `serve`.

use std::path::Path;
use std::process::Command;

use lazuli_protocol::operation::Operation;

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_operation_is_on_the_compatibility_page() {
    let page = page("compatibility.md");
    let missing: Vec<_> = Operation::ALL
        .iter()
        .map(|operation| operation.row().name)
        .filter(|name| !page.contains(&format!("\n| {name} |")))
        .collect();
    assert_eq!(missing, [""; 0]);
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
