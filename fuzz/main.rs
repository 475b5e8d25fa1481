//! Fuzzes one parser, which the variable `PARSER` names. `fuzz/run` builds and runs it. If `SEEDS_TO` names a
//! folder, writes the seeds of the parser to it instead.
#![no_main]

mod parsers;

use std::path::Path;
use std::sync::OnceLock;

use parsers::{PARSERS, Parser, Seeds};

static PARSER: OnceLock<Parser> = OnceLock::new();

fn entry() -> (Parser, Seeds) {
    let name = std::env::var("PARSER").unwrap_or_default();
    match PARSERS.iter().find(|(known, ..)| *known == name) {
        Some((_, parser, seeds)) => (*parser, *seeds),
        None => panic!("PARSER is {name:?}, which is no name in parsers.rs"),
    }
}

fn parser() -> Parser {
    entry().0
}

/// Writes the seeds of the parser to a folder, and exits.
fn write_seeds() {
    let Some(folder) = std::env::var_os("SEEDS_TO") else { return };
    let (_, seeds) = entry();
    for (number, seed) in seeds().iter().enumerate() {
        let file = Path::new(&folder).join(format!("seed-{number}"));
        if let Err(error) = std::fs::write(&file, seed) {
            panic!("cannot write {}: {error}", file.display());
        }
    }
    std::process::exit(0);
}

libfuzzer_sys::fuzz_target!(init: write_seeds(), |data: &[u8]| {
    PARSER.get_or_init(parser)(data);
});
