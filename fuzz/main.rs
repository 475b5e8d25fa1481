//! Fuzzes one parser, which the variable `PARSER` names. `fuzz/run` builds and runs it.
#![no_main]

mod parsers;

use std::sync::OnceLock;

use parsers::{PARSERS, Parser};

static PARSER: OnceLock<Parser> = OnceLock::new();

fn parser() -> Parser {
    let name = std::env::var("PARSER").unwrap_or_default();
    match PARSERS.iter().find(|(known, _)| *known == name) {
        Some((_, parser)) => *parser,
        None => panic!("PARSER is {name:?}, which is not a name in parsers.rs"),
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| PARSER.get_or_init(parser)(data));
