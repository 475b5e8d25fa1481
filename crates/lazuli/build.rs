//! Sets `LAZULI_VERSION`: the version with the commit and its date.
//!
//! A release build asks git, or takes `LAZULI_COMMIT` and `LAZULI_COMMIT_DATE` where there is no repository.
//! A debug build does not, so a new commit alone causes no compilation.

use std::path::Path;
use std::process::Command;

fn main() {
    for input in ["LAZULI_COMMIT", "LAZULI_COMMIT_DATE"] {
        println!("cargo::rerun-if-env-changed={input}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let is_debug = std::env::var("PROFILE").is_ok_and(|profile| profile == "debug");
    let from_variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let ask_git = |arguments: &[&str]| if is_debug { None } else { git(arguments) };
    let commit = from_variable("LAZULI_COMMIT").or_else(|| ask_git(&["rev-parse", "--short=12", "HEAD"]));
    let date =
        from_variable("LAZULI_COMMIT_DATE").or_else(|| ask_git(&["show", "-s", "--format=%cs", "HEAD"]));
    if !is_debug {
        watch_head();
    }
    let origin = match (commit, date) {
        (Some(commit), Some(date)) => format!(" ({commit} {date})"),
        (Some(commit), None) => format!(" ({commit})"),
        (None, _) if is_debug => " (debug build)".to_owned(),
        (None, _) => String::new(),
    };
    println!("cargo::rustc-env=LAZULI_VERSION={version}{origin}");
}

/// Runs the script again after the next commit or checkout.
fn watch_head() {
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--path-format=absolute", "--git-path", file])
            && Path::new(&path).exists()
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

/// Returns what git prints, or `None` if git fails.
fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
