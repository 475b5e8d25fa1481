//! No input in the fuzzer's corpora makes a parser panic, and the inputs reach what follows parsing.

#[path = "../../../fuzz/parsers.rs"]
mod parsers;

use std::path::PathBuf;

use parsers::PARSERS;

/// Maximum bytes of all corpora together, because they are part of every clone.
const MAX_BYTES: usize = 2 << 20;
/// Longest input that `fuzz/run` lets the fuzzer try.
const MAX_INPUT_BYTES: usize = 4096;

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
    for (name, parser, _) in PARSERS {
        let packed = std::fs::read(corpora().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        bytes += packed.len();
        let mut corpus = packed.as_slice();
        let (mut inputs, mut valid) = (0, 0);
        while let Some(input) = next_input(&mut corpus) {
            valid += usize::from(parser(input));
            inputs += 1;
        }
        assert!(corpus.is_empty(), "{} bytes are left over of the corpus of {name}", corpus.len());
        assert!(inputs > 0, "the corpus of {name} is empty");
        assert!(
            valid > 0,
            "none of the {inputs} inputs of {name} is valid, so they miss what follows parsing"
        );
    }
    assert!(bytes <= MAX_BYTES, "the corpora have {bytes} bytes");
}

#[test]
fn every_seed_is_valid() {
    let mut refused = vec![];
    for (name, parser, seeds) in PARSERS {
        let seeds = seeds();
        assert!(!seeds.is_empty(), "{name} has no seeds");
        for seed in &seeds {
            assert!(seed.len() <= MAX_INPUT_BYTES, "a seed of {name} has {} bytes", seed.len());
            if !parser(seed) {
                refused.push(format!("{name}: {}", seed.escape_ascii()));
            }
        }
    }
    assert!(refused.is_empty(), "seeds that their parsers refuse:\n{}", refused.join("\n"));
}

#[test]
fn dictionary_has_tokens_for_every_crate_and_libfuzzer_can_read_it() {
    let dictionary = std::fs::read_to_string(corpora().with_file_name("parsers.dict")).unwrap();
    let lines = dictionary.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut crates = std::collections::BTreeSet::new();
    for line in lines {
        let entry = line.split_once('=').and_then(|(name, value)| Some((name, quoted(value)?)));
        let (name, token) = entry.unwrap_or_else(|| panic!("libFuzzer cannot read this line: {line}"));
        assert!((1..=64).contains(&token.len()), "libFuzzer takes tokens of at most 64 bytes: {line}");
        crates.insert(name.to_owned());
    }
    let of_parsers = PARSERS.iter().filter_map(|(name, ..)| name.split_once('_')).map(|(part, _)| part);
    for part in of_parsers {
        assert!(crates.contains(part), "the dictionary has no tokens for {part}");
    }
}

/// Decodes a token as libFuzzer does. Returns `None` if libFuzzer refuses it.
fn quoted(value: &str) -> Option<Vec<u8>> {
    let mut rest = value.strip_prefix('"')?.strip_suffix('"')?.bytes();
    let mut token = vec![];
    while let Some(byte) = rest.next() {
        token.push(match byte {
            b'\\' => match rest.next()? {
                escaped @ (b'\\' | b'"') => escaped,
                b'x' => {
                    let digits = [rest.next()?, rest.next()?];
                    u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?
                }
                _ => return None,
            },
            b' '..=b'~' if byte != b'"' => byte,
            _ => return None,
        });
    }
    Some(token)
}

#[test]
fn every_corpus_has_a_parser() {
    for entry in std::fs::read_dir(corpora()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(PARSERS.iter().any(|(known, ..)| *known == name), "{name} names no parser");
    }
}
