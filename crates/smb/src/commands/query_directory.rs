//! QUERY_DIRECTORY: the entries of a directory.
//!
//! The handle stores the pattern and the position, but no entries. So entries deleted between two requests
//! are not listed, and entries added after the position are.

use lazuli_file::NodeId;
use lazuli_file::handles::{Info, Position};

use crate::call::{Call, CommandReply, CommandResult};
use crate::pattern::Pattern;
use crate::session::directory_scan::DirectoryScan;
use crate::session::open::Open;
use crate::wire::create::access;
use crate::wire::directory::{Entries, EntryClass, QueryDirectoryRequest, flags};
use crate::wire::info::{MAX_TRANSACT, data_response};
use crate::wire::status::Status;

/// Number of entries read from the file service at once.
const BATCH: usize = 256;

/// Executes QUERY_DIRECTORY.
pub(crate) async fn query_directory(call: &Call) -> CommandResult {
    let request = QueryDirectoryRequest::parse(&call.message)?;
    let open = call.open(request.id)?;
    if !open.is_directory || request.max_output > MAX_TRANSACT {
        return Err(Status::INVALID_PARAMETER.into());
    }
    let class = EntryClass::from_code(request.class).ok_or(Status::INVALID_INFO_CLASS)?;
    open.require_any(access::READ_DATA)?;
    let pattern = match request.pattern.as_str() {
        "" => None,
        text => Some(Pattern::parse(text).ok_or(Status::OBJECT_NAME_INVALID)?),
    };
    let mut scan = open.directory_scan.lock().await;
    let is_first = scan.pattern.is_none();
    if is_first || request.flags & (flags::RESTART | flags::REOPEN) != 0 {
        scan.restart(pattern);
    }
    let pattern = scan.pattern.clone().ok_or(Status::OBJECT_NAME_INVALID)?;
    let remaining = if request.flags & flags::SINGLE == 0 { usize::MAX } else { 1 };
    let mut page =
        ListingPage { entries: Entries::new(class, request.max_output as usize), remaining, is_full: false };
    list(call, &open, &pattern, &mut scan, &mut page).await?;
    match (page.entries.is_empty(), page.is_full) {
        (false, _) => Ok(CommandReply::new(data_response(&page.entries.finish()))),
        // There is an entry, but it does not fit.
        (true, true) => Err(Status::INFO_LENGTH_MISMATCH.into()),
        (true, false) if is_first => Err(Status::NO_SUCH_FILE.into()),
        (true, false) => Err(Status::NO_MORE_FILES.into()),
    }
}

/// The entries of one response.
struct ListingPage {
    entries: Entries,
    remaining: usize,
    is_full: bool,
}

impl ListingPage {
    /// Adds an entry. Returns false if the page is full.
    fn add(&mut self, info: &Info, name: &str) -> bool {
        if self.remaining == 0 || !self.entries.add(info, name) {
            self.is_full = true;
            return false;
        }
        self.remaining -= 1;
        true
    }
}

/// Continues a listing until the page is full or the directory ends.
async fn list(
    call: &Call,
    open: &Open,
    pattern: &Pattern,
    scan: &mut DirectoryScan,
    page: &mut ListingPage,
) -> Result<(), Status> {
    let files = &call.server.files;
    let id = open.file()?;
    if scan.dots < 2 && [".", ".."].iter().any(|name| pattern.matches(name)) {
        let current = files.info(id).await?;
        let parent = Info { id: current.parent, parent: NodeId::ROOT, ..current.clone() };
        for (name, info) in [(".", current), ("..", parent)].into_iter().skip(scan.dots) {
            if pattern.matches(name) && !page.add(&info, name) {
                return Ok(());
            }
            scan.dots += 1;
        }
    }
    scan.dots = 2;
    let is_literal = pattern.literal().is_some();
    let limit = if is_literal { 1 } else { BATCH.min(page.remaining.max(1)) };
    loop {
        let before = scan.position.clone();
        let batch = files.enumerate(id, &mut scan.position, limit).await?;
        if batch.is_empty() {
            return Ok(());
        }
        let mut last = None;
        for info in &batch {
            let is_match = pattern.matches(&info.name);
            if is_match && !page.add(info, &info.name) {
                scan.position = last.map_or(before, Position::after);
                return Ok(());
            }
            if is_literal && !is_match {
                return Ok(());
            }
            last = Some(info.name.as_str());
        }
    }
}
