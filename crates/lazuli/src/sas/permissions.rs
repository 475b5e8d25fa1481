//! The permissions of shared access signatures, as words and as letters.

use super::SasResource;

/// A permission as a word, and its letter.
type Word = (&'static str, char);

const BLOB: &[Word] = &[
    ("read", 'r'),
    ("add", 'a'),
    ("create", 'c'),
    ("write", 'w'),
    ("delete", 'd'),
    ("delete-version", 'x'),
    ("permanent-delete", 'y'),
    ("list", 'l'),
    ("tags", 't'),
    ("filter", 'f'),
    ("move", 'm'),
    ("execute", 'e'),
    ("ownership", 'o'),
    ("permissions", 'p'),
    ("immutability", 'i'),
];
const FILE: &[Word] = &[("read", 'r'), ("create", 'c'), ("write", 'w'), ("delete", 'd'), ("list", 'l')];
const QUEUE: &[Word] = &[("read", 'r'), ("add", 'a'), ("update", 'u'), ("process", 'p')];
const TABLE: &[Word] = &[("read", 'r'), ("query", 'r'), ("add", 'a'), ("update", 'u'), ("delete", 'd')];
const ACCOUNT: &[Word] = &[
    ("read", 'r'),
    ("write", 'w'),
    ("delete", 'd'),
    ("delete-version", 'x'),
    ("permanent-delete", 'y'),
    ("list", 'l'),
    ("add", 'a'),
    ("create", 'c'),
    ("update", 'u'),
    ("process", 'p'),
    ("tags", 't'),
    ("filter", 'f'),
    ("immutability", 'i'),
];

/// Returns the words for a resource, in the order in which a signature has the letters.
const fn words(resource: SasResource) -> &'static [Word] {
    match resource {
        SasResource::Account => ACCOUNT,
        SasResource::Container | SasResource::Blob => BLOB,
        SasResource::Queue => QUEUE,
        SasResource::Table => TABLE,
        SasResource::Share | SasResource::File => FILE,
    }
}

/// Returns the letters that allow reading.
pub(super) const fn readable(resource: SasResource) -> &'static str {
    match resource {
        SasResource::Account | SasResource::Container | SasResource::Share => "rl",
        SasResource::Blob | SasResource::File | SasResource::Queue | SasResource::Table => "r",
    }
}

/// Returns whether the item consists of letters. The beginning of a word does not: it is more likely a typing
/// error, and must not grant other permissions.
fn is_letters(known: &[Word], item: &str) -> bool {
    let is_beginning = item.len() > 2 && known.iter().any(|(word, _)| word.starts_with(item));
    let is_known = |c: char| known.iter().any(|(_, letter)| *letter == c);
    let is_new = |(at, c): (usize, char)| !item[..at].contains(c);
    !is_beginning && item.chars().all(is_known) && item.char_indices().all(is_new)
}

/// Parses permissions: words separated by commas or spaces, letters, or `all`. Returns the letters in the
/// order that a signature needs.
pub(super) fn parse(resource: SasResource, text: &str) -> Result<String, String> {
    let known = words(resource);
    let mut chosen = vec![];
    for item in text.split([',', ' ']).filter(|item| !item.is_empty()) {
        let word = known.iter().find(|(word, _)| word.eq_ignore_ascii_case(item));
        if item == "all" {
            chosen.extend(known.iter().map(|(_, letter)| *letter));
        } else if let Some((_, letter)) = word {
            chosen.push(*letter);
        } else if is_letters(known, item) {
            chosen.extend(item.chars());
        } else {
            let words: Vec<_> = known.iter().map(|(word, letter)| format!("{word} ({letter})")).collect();
            return Err(format!("--permissions {item}: expected all, or some of {}", words.join(", ")));
        }
    }
    let mut letters = String::new();
    for (_, letter) in known {
        if chosen.contains(letter) && !letters.contains(*letter) {
            letters.push(*letter);
        }
    }
    if letters.is_empty() { Err("--permissions is empty".into()) } else { Ok(letters) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_words_or_letters_and_get_into_order() {
        use SasResource::*;
        for (resource, text, expected) in [
            (Container, "rl", Some("rl")),
            (Container, "list,read", Some("rl")),
            (Container, "lr w,delete", Some("rwdl")),
            (Blob, "Read", Some("r")),
            (Blob, "tags,immutability", Some("ti")),
            (Queue, "all", Some("raup")),
            (Table, "query,add", Some("ra")),
            (Table, "all", Some("raud")),
            (Share, "rwdl,create", Some("rcwdl")),
            (Account, "all", Some("rwdxylacuptfi")),
            (File, "process", None),
            (Container, "delet", None),
            (Container, "writ", None),
            (Container, "rr", None),
            (Container, "dl,e", Some("dle")),
            (Queue, "x", None),
            (Container, "", None),
            (Container, ",", None),
        ] {
            assert_eq!(parse(resource, text).ok().as_deref(), expected, "{resource:?} {text}");
        }
        let said = parse(Queue, "fly").unwrap_err();
        assert!(said.contains("process (p)"), "{said}");
    }
}
