//! Tests of content maps against a model: a vector of bytes, each written or not.
#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_extents::conformance::pattern;
use lazuli_extents::{
    Change, Content, ContentReader, Diff, Edit, Extents, INLINE_BYTES, LocalExtents, MAX_CONTENT_BYTES,
    Options, Piece, Pieces, ROOT_ENTRIES, Ranges, Writer, read_all,
};
use proptest::prelude::*;

struct TestStore {
    extents: Arc<dyn Extents>,
    writer: Writer,
    _dir: tempfile::TempDir,
}

fn store() -> TestStore {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 64 << 20, grow_bytes: 1 << 20 };
    let extents: Arc<dyn Extents> = Arc::new(LocalExtents::open(dir.path(), options).unwrap());
    TestStore { writer: extents.writer(), extents, _dir: dir }
}

impl TestStore {
    async fn extent(&self, bytes: &[u8]) -> Content {
        let bytes = Bytes::copy_from_slice(bytes);
        Content::extent(self.extents.append(&self.writer, vec![bytes]).await.unwrap())
    }

    fn edit(&self, content: &Content) -> Edit {
        Edit::new(&self.extents, &self.writer, content)
    }

    async fn bytes(&self, content: &Content, range: Range<u64>) -> Vec<u8> {
        let mut reader = ContentReader::new(&self.extents, content, range, None);
        let mut out = vec![];
        while let Some(bytes) = reader.next().await.unwrap() {
            assert!(!bytes.is_empty() && bytes.len() <= 256 << 10);
            out.extend_from_slice(&bytes);
        }
        out
    }

    async fn ranges(&self, content: &Content, range: Range<u64>) -> Vec<Range<u64>> {
        let mut ranges = Ranges::new(&self.extents, content, range);
        let mut out = vec![];
        while let Some(range) = ranges.next().await.unwrap() {
            out.push(range);
        }
        out
    }

    async fn diff(&self, older: &Content, newer: &Content, range: Range<u64>) -> Vec<Change> {
        let mut diff = Diff::new(&self.extents, older, newer, range);
        let mut out = vec![];
        while let Some(change) = diff.next().await.unwrap() {
            out.push(change);
        }
        out
    }

    /// Returns the bytes appended for nodes and payloads since the start.
    fn appended(&self) -> u64 {
        self.extents.storage_use().appended_since_mark
    }
}

type Model = Vec<Byte>;

/// The state of a byte: untouched, cleared, or written, with the number of the write and the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Byte {
    #[default]
    Hole,
    Cleared,
    Written(u32, u8),
}

impl Byte {
    fn value(self) -> Option<u8> {
        if let Self::Written(_, value) = self { Some(value) } else { None }
    }
}

#[derive(Clone, Debug)]
enum EditStep {
    Write { at: usize, length: usize, own_extent: bool },
    Append { length: usize, own_extent: bool },
    Clear(usize, usize),
    Resize(usize),
    Slice(usize, usize),
    AppendOld(usize),
    AppendPart(usize, usize, usize),
    WriteOld { which: usize, at: usize },
    Commit,
}

fn step() -> impl Strategy<Value = EditStep> {
    let (at, length) = (0..30_000usize, prop_oneof![4 => 1..600usize, 1 => 1..20_000usize]);
    prop_oneof![
        8 => (at.clone(), length.clone(), any::<bool>())
            .prop_map(|(at, length, own_extent)| EditStep::Write { at, length, own_extent }),
        3 => (length.clone(), any::<bool>()).prop_map(|(length, own_extent)| EditStep::Append { length, own_extent }),
        4 => (at.clone(), length.clone()).prop_map(|(at, length)| EditStep::Clear(at, at + length)),
        1 => (0..40_000usize).prop_map(EditStep::Resize),
        1 => (0..4000usize, 10_000..60_000usize).prop_map(|(from, to)| EditStep::Slice(from, to)),
        2 => any::<usize>().prop_map(EditStep::AppendOld),
        2 => (any::<usize>(), at.clone(), length).prop_map(|(which, at, length)| EditStep::AppendPart(which, at, at + length)),
        2 => (any::<usize>(), at).prop_map(|(which, at)| EditStep::WriteOld { which, at }),
        4 => Just(EditStep::Commit),
    ]
}

const MOST: usize = 200_000;

fn overwrite(model: &mut Model, at: usize, with: &[Byte]) {
    if model.len() < at + with.len() {
        model.resize(at + with.len(), Byte::Hole);
    }
    model[at..at + with.len()].copy_from_slice(with);
}

async fn apply(
    store: &TestStore,
    step: &EditStep,
    number: u32,
    edit: &mut Edit,
    model: &mut Model,
    old: &[(Content, Model)],
) {
    match step {
        EditStep::Write { length, own_extent, .. } | EditStep::Append { length, own_extent } => {
            let at = if let EditStep::Write { at, .. } = step { *at } else { model.len() };
            let bytes = pattern(number.into(), *length);
            let content =
                if *own_extent { store.extent(&bytes).await } else { Content::inline(bytes.clone()) };
            match step {
                EditStep::Append { .. } => edit.append(&content).await.unwrap(),
                _ => edit.write(at as u64, &content).await.unwrap(),
            }
            let with: Model = bytes.iter().map(|byte| Byte::Written(number, *byte)).collect();
            overwrite(model, at, &with);
        }
        EditStep::Clear(from, to) => {
            edit.clear(*from as u64..*to as u64).await.unwrap();
            let to = (*to).min(model.len());
            model[(*from).min(to)..to].fill(Byte::Cleared);
        }
        EditStep::Resize(length) => {
            edit.resize(*length as u64).await.unwrap();
            model.resize(*length, Byte::Hole);
        }
        EditStep::Slice(from, to) => {
            edit.slice(*from as u64..*to as u64).await.unwrap();
            let to = (*to).min(model.len());
            *model = model[(*from).min(to)..to].to_vec();
        }
        EditStep::AppendOld(which) if !old.is_empty() => {
            let (content, with) = &old[which % old.len()];
            if model.len() + with.len() <= MOST {
                edit.append(content).await.unwrap();
                model.extend_from_slice(with);
            }
        }
        EditStep::AppendPart(which, from, to) if !old.is_empty() => {
            let (content, with) = &old[which % old.len()];
            let to = (*to).min(with.len());
            let with = &with[(*from).min(to)..to];
            if model.len() + with.len() <= MOST {
                edit.append_part(content, *from as u64..to as u64).await.unwrap();
                model.extend_from_slice(with);
            }
        }
        EditStep::WriteOld { which, at } if !old.is_empty() => {
            let (content, with) = &old[which % old.len()];
            if at + with.len() <= MOST && !with.is_empty() {
                edit.write(*at as u64, content).await.unwrap();
                overwrite(model, *at, with);
            }
        }
        EditStep::AppendOld(_) | EditStep::AppendPart(..) | EditStep::WriteOld { .. } | EditStep::Commit => {}
    }
    assert_eq!(edit.len(), model.len() as u64, "{step:?}");
}

fn values(model: &Model) -> Vec<u8> {
    model.iter().map(|byte| byte.value().unwrap_or(0)).collect()
}

/// Returns the maximal runs of a model in which `of` is constant and not `None`.
fn runs<T: PartialEq>(length: usize, of: impl Fn(usize) -> Option<T>) -> Vec<(Range<u64>, T)> {
    let mut out: Vec<(Range<u64>, T)> = vec![];
    for at in 0..length {
        let Some(kind) = of(at) else { continue };
        match out.last_mut() {
            Some((range, last)) if range.end == at as u64 && *last == kind => range.end += 1,
            _ => out.push((at as u64..at as u64 + 1, kind)),
        }
    }
    out
}

async fn check_version(store: &TestStore, content: &Content, model: &Model) {
    let expected = values(model);
    assert_eq!(content.len(), expected.len() as u64);
    let allocated = model.iter().filter_map(|byte| byte.value()).count() as u64;
    let in_record = allocated.checked_sub(content.extent_bytes()).expect("no more than is allocated");
    assert!(in_record <= INLINE_BYTES as u64, "only the tail is not in an extent");
    assert!(content.as_inline().is_none_or(|bytes| bytes.len() as u64 == in_record));
    assert!(store.bytes(content, 0..u64::MAX).await == expected, "bytes differ");
    let (from, to) = (expected.len() / 3, expected.len() / 2 + 1);
    let part = store.bytes(content, from as u64..to as u64).await;
    assert_eq!(part, expected[from..to.min(expected.len())]);
    let written: Vec<_> =
        runs(model.len(), |at| model[at].value().map(|_| ())).into_iter().map(|(range, ())| range).collect();
    assert_eq!(store.ranges(content, 0..u64::MAX).await, written);
    let mut stored = vec![];
    content.encode(&mut stored);
    assert!(stored.len() <= 8 + ROOT_ENTRIES * 33 + INLINE_BYTES);
    assert_eq!(Content::decode(stored.into()).as_ref(), Some(content));
}

/// Checks that every differing byte lies in a change of the right kind. Changes may also cover equal bytes.
async fn check_diff(store: &TestStore, (older, a): &(Content, Model), (newer, b): &(Content, Model)) {
    let changes = store.diff(older, newer, 0..u64::MAX).await;
    let length = a.len().max(b.len());
    let mut reported = vec![None; length];
    let mut last: Option<Change> = None;
    for change in changes {
        let (range, kind) = match &change {
            Change::Written(range) => (range.clone(), 'w'),
            Change::Cleared(range) => (range.clone(), 'c'),
        };
        assert!(range.start < range.end);
        match &last {
            Some(Change::Written(before) | Change::Cleared(before)) => assert!(before.end <= range.start),
            None => {}
        }
        reported[range.start as usize..range.end as usize].fill(Some(kind));
        last = Some(change);
    }
    for (at, reported) in reported.iter().enumerate() {
        let is_cleared = a.get(at) == Some(&Byte::Hole) && b.get(at) == Some(&Byte::Cleared);
        let byte = |model: &Model| model.get(at).and_then(|byte| byte.value());
        let (a, b) = (byte(a), byte(b));
        match reported {
            Some('w') => assert!(b.is_some(), "{at}: {a:?} {b:?}"),
            Some(_) => assert!(b.is_none() && (a.is_some() || is_cleared), "{at}: {a:?} {b:?}"),
            None => assert!(a == b && !is_cleared, "{at}: {a:?} {b:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_history_of_edits_agrees_with_a_vector_of_bytes(steps in prop::collection::vec(step(), 1..90)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = store();
            let mut versions: Vec<(Content, Model)> = vec![];
            let (mut content, mut model) = (Content::empty(), Model::new());
            let mut edit = store.edit(&content);
            for (number, step) in steps.iter().enumerate() {
                apply(&store, step, number as u32, &mut edit, &mut model, &versions).await;
                if let EditStep::Commit = step {
                    content = edit.finish().await.unwrap();
                    check_version(&store, &content, &model).await;
                    versions.push((content.clone(), model.clone()));
                    edit = store.edit(&content);
                }
            }
            drop(edit);
            for pair in versions.windows(2) {
                check_diff(&store, &pair[0], &pair[1]).await;
                check_diff(&store, &pair[1], &pair[0]).await;
            }
            if let (Some(first), Some(last)) = (versions.first(), versions.last()) {
                check_diff(&store, first, last).await;
            }
            // Older versions are unchanged.
            for (content, model) in &versions {
                assert!(store.bytes(content, 0..u64::MAX).await == values(model));
            }
        });
    }
}

const PAGE: u64 = 4096;

/// Creates `2^doublings` times 4 MiB of pages, each its own piece, by sharing subtrees instead of writing
/// each page.
async fn huge(store: &TestStore, doublings: u32) -> Content {
    let pages = pattern(77, 1024 * PAGE as usize);
    let extent = store.extent(&pages).await;
    let mut edit = store.edit(&Content::empty());
    for page in (0..1024).rev() {
        let mut one = store.edit(&extent);
        one.slice(page * PAGE..(page + 1) * PAGE).await.unwrap();
        edit.append(&one.finish().await.unwrap()).await.unwrap();
    }
    let mut content = edit.finish().await.unwrap();
    for _ in 0..doublings {
        let mut twice = store.edit(&content);
        twice.append(&content).await.unwrap();
        content = twice.finish().await.unwrap();
    }
    content
}

#[tokio::test]
async fn changing_a_page_of_a_tebibyte_writes_one_node_per_level() {
    let store = store();
    let content = huge(&store, 18).await;
    assert_eq!(content.len(), 1 << 40);
    let page = store.extent(&pattern(1, PAGE as usize)).await;
    for at in [0, 12_345 * PAGE, (1 << 39) - PAGE, 1 << 39, (1 << 40) - PAGE] {
        let before = store.appended();
        let mut edit = store.edit(&content);
        edit.write(at, &page).await.unwrap();
        let changed = edit.finish().await.unwrap();
        let nodes = (store.appended() - before) / PAGE;
        assert!(nodes <= 6, "{nodes} blocks for nodes");
        let found = store.bytes(&changed, at..at + PAGE).await;
        assert_eq!(found, pattern(1, PAGE as usize));
        let changes = store.diff(&content, &changed, 0..u64::MAX).await;
        assert_eq!(changes, [Change::Written(at..at + PAGE)]);
    }
}

#[tokio::test]
async fn large_parts_are_cut_moved_and_compared_without_reading_their_data() {
    let store = store();
    let content = huge(&store, 18).await;
    let before = store.appended();
    let mut edit = store.edit(&content);
    edit.clear(1 << 30..(1 << 39) + 5).await.unwrap();
    edit.resize((1 << 40) - 7).await.unwrap();
    let cleared = edit.finish().await.unwrap();
    let mut edit = store.edit(&cleared);
    edit.slice(1000..(1 << 40) - 1000).await.unwrap();
    edit.append(&content).await.unwrap();
    edit.write(1 << 20, &content).await.unwrap();
    let mixed = edit.finish().await.unwrap();
    assert!(store.appended() - before < 100 * PAGE, "{} bytes of nodes", store.appended() - before);
    assert_eq!(mixed.len(), (1 << 41) - 2000);
    assert_eq!(
        store.diff(&content, &cleared, 0..u64::MAX).await,
        [Change::Cleared(1 << 30..(1 << 39) + 5), Change::Cleared((1 << 40) - 7..1 << 40)]
    );
    assert_eq!(store.ranges(&cleared, 0..1 << 31).await, vec![Range { start: 0, end: 1 << 30 }]);
    let (a, b) =
        (store.bytes(&mixed, 1 << 20..(1 << 20) + 10_000).await, store.bytes(&content, 0..10_000).await);
    assert_eq!(a, b);
    let (a, b) = (store.bytes(&mixed, 0..1 << 20).await, store.bytes(&content, 1000..(1 << 20) + 1000).await);
    assert!(a == b);
}

#[tokio::test]
async fn repeated_cuts_and_joins_keep_a_map_shallow() {
    let store = store();
    let mut content = huge(&store, 4).await;
    let length = content.len();
    for i in 0..300u64 {
        let cut = (i * 7_919_003) % length;
        let mut end = store.edit(&content);
        end.slice(cut..length).await.unwrap();
        let end = end.finish().await.unwrap();
        let mut edit = store.edit(&end);
        let mut start = store.edit(&content);
        start.resize(cut).await.unwrap();
        edit.append(&start.finish().await.unwrap()).await.unwrap();
        content = edit.finish().await.unwrap();
    }
    assert_eq!(content.len(), length);
    let mut stored = vec![];
    content.encode(&mut stored);
    assert!(stored[1] <= 3, "level {}", stored[1]);
}

#[tokio::test]
async fn block_list_of_fifty_thousand_blocks_is_built_in_bounded_space() {
    let store = store();
    let bytes = pattern(3, 500_000);
    let extent = store.extent(&bytes).await;
    let mut blocks = vec![];
    for i in 0..100u64 {
        let mut edit = store.edit(&extent);
        edit.slice(i * 5000..i * 5000 + 4000).await.unwrap();
        blocks.push(edit.finish().await.unwrap());
        blocks.push(Content::inline(bytes.slice(i as usize * 100..i as usize * 100 + 70)));
    }
    let before = store.appended();
    let mut edit = store.edit(&Content::empty());
    for i in 0..50_000 {
        edit.append(&blocks[i % blocks.len()]).await.unwrap();
    }
    let content = edit.finish().await.unwrap();
    assert_eq!(content.len(), 25_000 * 4070);
    // 50,000 pieces of 25 bytes, in nodes at least half full; 1.75 MB of small bytes.
    let written = store.appended() - before;
    assert!(written < 6 << 20, "{written}");
    let found = store.bytes(&content, 4070 * 201..4070 * 202).await;
    assert_eq!(found[..4000], bytes[5000..9000]);
    assert_eq!(found[4000..], bytes[100..170]);
}

#[tokio::test]
async fn small_appends_stay_in_the_record_until_an_extent_is_worthwhile() {
    let store = store();
    let mut content = Content::empty();
    let line = pattern(1, 200);
    let before = store.appended();
    for _ in 0..1000 {
        let mut edit = store.edit(&content);
        edit.append(&Content::inline(line.clone())).await.unwrap();
        content = edit.finish().await.unwrap();
    }
    assert_eq!(content.len(), 200_000);
    let written = store.appended() - before;
    assert!(written <= 400_000, "{written} bytes on disk for 200,000");
    assert!(store.bytes(&content, 0..u64::MAX).await.chunks(200).all(|found| found == line));
}

#[tokio::test]
async fn small_content_stays_inline_through_edits() {
    let store = store();
    let before = store.appended();
    let mut edit = store.edit(&Content::inline("0123456789"));
    edit.write(3, &Content::inline("abc")).await.unwrap();
    edit.append(&Content::inline("xyz")).await.unwrap();
    edit.slice(1..12).await.unwrap();
    let content = edit.finish().await.unwrap();
    assert_eq!(content.as_inline().unwrap(), "12abc6789xy".as_bytes());
    assert_eq!(store.appended(), before, "no extent was written for it");
}

#[tokio::test]
async fn writes_of_one_edit_share_an_extent() {
    let store = store();
    let before = store.appended();
    let mut edit = store.edit(&Content::hole(1 << 30));
    for i in 0..30 {
        edit.write(i << 20, &Content::inline(pattern(i, 512))).await.unwrap();
    }
    let content = edit.finish().await.unwrap();
    assert!(store.appended() - before <= 30 * 512 + PAGE, "{}", store.appended() - before);
    let ranges = store.ranges(&content, 0..u64::MAX).await;
    assert_eq!(ranges, (0..30).map(|i| i << 20..(i << 20) + 512).collect::<Vec<_>>());
}

#[tokio::test]
async fn contiguous_pieces_of_one_extent_merge_again() {
    let store = store();
    let whole = store.extent(&pattern(1, 100_000)).await;
    let mut edit = store.edit(&Content::empty());
    for i in 0..100 {
        let mut part = store.edit(&whole);
        part.slice(i * 1000..i * 1000 + 1000).await.unwrap();
        edit.append(&part.finish().await.unwrap()).await.unwrap();
    }
    assert_eq!(edit.finish().await.unwrap(), whole);
}

#[tokio::test]
async fn pages_of_ranges_and_differences_continue_where_the_last_page_ended() {
    let store = store();
    let mut edit = store.edit(&Content::hole(1 << 20));
    for i in 0..100 {
        edit.write(i * 8192, &store.extent(&pattern(i, 512)).await).await.unwrap();
    }
    let content = edit.finish().await.unwrap();
    let all = store.ranges(&content, 0..u64::MAX).await;
    assert_eq!(all.len(), 100);
    let (mut paged, mut from) = (vec![], 0);
    loop {
        let mut ranges = Ranges::new(&store.extents, &content, from..u64::MAX);
        let Some(range) = ranges.next().await.unwrap() else { break };
        from = range.end;
        paged.push(range);
    }
    assert_eq!(paged, all);
    let hole = Content::hole(1 << 20);
    let (mut paged, mut from) = (vec![], 0);
    while let Some(change) = Diff::new(&store.extents, &hole, &content, from..u64::MAX).next().await.unwrap()
    {
        let Change::Written(range) = change else { panic!("{change:?}") };
        from = range.end;
        paged.push(range);
    }
    assert_eq!(paged, all);
    assert_eq!(
        store.diff(&content, &hole, 100..8192 + 100).await,
        [Change::Cleared(100..512), Change::Cleared(8192..8292)]
    );
}

#[tokio::test]
async fn moved_bytes_are_a_difference_even_if_their_subtrees_are_shared() {
    let store = store();
    let pages = 300;
    let extent = store.extent(&pattern(7, (pages * PAGE) as usize)).await;
    let mut edit = store.edit(&Content::empty());
    for page in (0..pages).rev() {
        let mut one = store.edit(&extent);
        one.slice(page * PAGE..(page + 1) * PAGE).await.unwrap();
        edit.append(&one.finish().await.unwrap()).await.unwrap();
    }
    let older = edit.finish().await.unwrap();
    for at in (0..=pages).map(|page| page * PAGE) {
        let (mut start, mut end) = (store.edit(&older), store.edit(&older));
        start.resize(at).await.unwrap();
        end.slice(at..older.len()).await.unwrap();
        let mut edit = store.edit(&start.finish().await.unwrap());
        edit.append(&Content::hole(PAGE)).await.unwrap();
        edit.append(&end.finish().await.unwrap()).await.unwrap();
        let newer = edit.finish().await.unwrap();
        let mut expected = vec![];
        if at < older.len() {
            expected = vec![Change::Cleared(at..at + PAGE), Change::Written(at + PAGE..older.len() + PAGE)];
        }
        assert_eq!(store.diff(&older, &newer, 0..u64::MAX).await, expected, "a hole at {at}");
    }
}

#[tokio::test]
async fn moving_bytes_from_the_record_to_an_extent_is_not_a_difference() {
    let store = store();
    let older = Content::inline(pattern(1, 1000));
    let mut edit = store.edit(&older);
    edit.resize(1 << 20).await.unwrap();
    edit.write(500, &Content::inline(pattern(2, 10))).await.unwrap();
    let newer = edit.finish().await.unwrap();
    assert!(newer.as_inline().is_none());
    let differs = |at: &usize| pattern(1, 1000)[500 + at] != pattern(2, 10)[*at];
    let expected = (0..10).filter(differs).count() as u64;
    for (a, b) in [(&older, &newer), (&newer, &older)] {
        let mut found = 0;
        for change in store.diff(a, b, 0..u64::MAX).await {
            let Change::Written(range) = change else { panic!("{change:?}") };
            assert!(range.start >= 500 && range.end <= 510, "{range:?}");
            found += range.end - range.start;
        }
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn holes_of_any_length_are_free_and_lengths_are_limited() {
    let store = store();
    let mut edit = store.edit(&Content::empty());
    edit.resize(MAX_CONTENT_BYTES).await.unwrap();
    assert!(edit.append(&Content::inline("x")).await.is_err());
    assert!(edit.write(u64::MAX, &Content::inline("x")).await.is_err());
    assert!(edit.resize(MAX_CONTENT_BYTES + 1).await.is_err());
    let content = edit.finish().await.unwrap();
    assert_eq!(content.len(), MAX_CONTENT_BYTES);
    assert!(store.ranges(&content, 0..u64::MAX).await.is_empty());
    assert_eq!(store.bytes(&content, 1 << 50..(1 << 50) + 300_000).await, vec![0; 300_000]);
    assert!(read_all(&store.extents, &content, 0..u64::MAX, 1000).await.is_err(), "read_all has a limit too");
    let mut pieces = Pieces::new(&store.extents, &content, 5..9);
    assert_eq!(pieces.next().await.unwrap(), Some((5, Piece::Hole(4))));
}

#[tokio::test]
async fn range_outside_of_content_is_empty() {
    let store = store();
    let content = Content::inline("0123456789");
    for (range, expected) in
        [(0..0, ""), (10..20, ""), (20..30, ""), (8..20, "89"), (0..u64::MAX, "0123456789")]
    {
        assert_eq!(store.bytes(&content, range.clone()).await, expected.as_bytes());
        let mut edit = store.edit(&content);
        edit.slice(range.clone()).await.unwrap();
        assert_eq!(edit.finish().await.unwrap().as_inline().unwrap(), expected);
        let mut edit = store.edit(&content);
        edit.clear(range.clone()).await.unwrap();
        assert_eq!(edit.finish().await.unwrap().len(), 10);
    }
}
