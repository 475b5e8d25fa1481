//! No input in the fuzzer's corpora makes a parser panic.

#[path = "../../../fuzz/parsers.rs"]
mod parsers;

use std::path::PathBuf;

use parsers::PARSERS;

/// Maximum bytes of all corpora together, because they are part of every clone.
const MAX_BYTES: usize = 2 << 20;

fn corpora() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "fuzz", "corpus"].iter().collect()
}

/// Takes one input from the start of a corpus, in the format of `fuzz/corpus.py`.
fn next_input<'a>(corpus: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = corpus.split_first_chunk::<4>()?;
    let (input, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
    *corpus = rest;
    Some(input)
}

#[test]
fn every_parser_accepts_its_whole_corpus() {
    let mut bytes = 0;
    for (name, parser) in PARSERS {
        let packed = std::fs::read(corpora().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        bytes += packed.len();
        let mut corpus = packed.as_slice();
        let mut inputs = 0;
        while let Some(input) = next_input(&mut corpus) {
            parser(input);
            inputs += 1;
        }
        assert!(corpus.is_empty(), "{} bytes are left over of the corpus of {name}", corpus.len());
        assert!(inputs > 0, "the corpus of {name} is empty");
    }
    assert!(bytes <= MAX_BYTES, "the corpora have {bytes} bytes");
}

#[test]
fn every_corpus_has_a_parser() {
    for entry in std::fs::read_dir(corpora()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(PARSERS.iter().any(|(known, _)| *known == name), "{name} names no parser");
    }
}
