//! The order in which newer clients sort the `x-ms-*` headers that they sign.
//!
//! The order is the word sort of the live service's platform. Hyphens and apostrophes are ignored at first;
//! punctuation comes before digits, and digits before letters. Names that differ only in hyphens and
//! apostrophes are ordered by them: the name whose first extra hyphen comes later is first. The result
//! differs from ordinal order for names such as `x-ms-meta-a_b`, `x-ms-meta-a-b` and `x-ms-meta-ab`.

use std::cmp::Ordering;

/// The characters that are compared first, in ascending order.
const RANKED: &[u8] = b"!#$%&*.^_`|~+0123456789abcdefghijklmnopqrstuvwxyz";

/// Compares two lowercase header names.
pub(super) fn weighted(a: &str, b: &str) -> Ordering {
    ranks(a).cmp(ranks(b)).then_with(|| by_hyphens(a.as_bytes(), b.as_bytes()))
}

fn ranks(name: &str) -> impl Iterator<Item = usize> + '_ {
    name.bytes().filter_map(|byte| RANKED.iter().position(|ranked| *ranked == byte))
}

/// Compares names with the same ranked characters. At the first position where only one name has a hyphen or
/// apostrophe, that name is later. If both have one, the apostrophe is first.
fn by_hyphens(a: &[u8], b: &[u8]) -> Ordering {
    let odd = |byte: Option<&u8>| byte.filter(|byte| !RANKED.contains(byte)).copied();
    (0..a.len().max(b.len()))
        .map(|i| odd(a.get(i)).cmp(&odd(b.get(i))))
        .find(|o| o.is_ne())
        .unwrap_or(Ordering::Equal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hyphens_are_compared_last_and_punctuation_comes_first() {
        // Sorted with the comparison function of the Python SDK.
        let sorted = [
            "x-ms-blob-type",
            "x-ms-client-request-id",
            "x-ms-date",
            "x-ms-meta-a!b",
            "x-ms-meta-a_b",
            "x-ms-meta-a+b",
            "x-ms-meta-a1",
            "x-ms-metaab",
            "x-ms-meta-ab",
            "x-ms-meta-a'b",
            "x-ms-meta-a-b",
            "x-ms-meta-a-b-",
            "x-ms-meta-abc",
            "x-ms-meta-ab-c",
            "x-ms-version",
        ];
        for (i, a) in sorted.iter().enumerate() {
            for (j, b) in sorted.iter().enumerate() {
                assert_eq!(weighted(a, b), i.cmp(&j), "{a} {b}");
            }
        }
    }
}
