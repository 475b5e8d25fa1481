//! Query Directory: the entries of a directory, as many as the client has room for.
//!
//! A handle remembers its pattern and how far it has come. Between two requests it holds no entries, so what is deleted
//! meanwhile is not listed and what is added behind the place is.

use lazuli_file::NodeId;
use lazuli_file::native::{Info, Position};

use crate::call::{Answer, Call, Reply};
use crate::open::{Open, access};
use crate::pattern::Pattern;
use crate::wire::directory::{Class, Entries, QueryDirectoryRequest, flags};
use crate::wire::info::{MAX_TRANSACT, data_response};
use crate::wire::status::Status;

/// Entries that are read at once.
const BATCH: usize = 256;

/// How far a listing has come.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Which names; none before the first request.
    pattern: Option<Pattern>,
    /// How many of `.` and `..` have been looked at.
    dots: usize,
    position: Position,
}

impl Listing {
    /// Begins again, perhaps with another pattern.
    fn restart(&mut self, pattern: Option<Pattern>) {
        let pattern = pattern.or(self.pattern.take());
        let literal = pattern.as_ref().and_then(Pattern::literal);
        // One name is found without reading the whole directory.
        let position = literal.map_or_else(Position::default, |name| Position::at(&name));
        *self = Self { pattern, position, ..Self::default() };
    }
}

/// Query Directory.
pub(crate) async fn query_directory(call: &Call) -> Answer {
    let request = QueryDirectoryRequest::parse(&call.message)?;
    let open = call.open(request.id)?;
    if !open.is_directory || request.room > MAX_TRANSACT {
        return Err(Status::INVALID_PARAMETER.into());
    }
    let class = Class::of(request.class).ok_or(Status::INVALID_INFO_CLASS)?;
    open.needs(access::READ_DATA)?;
    let sent = match request.pattern.as_str() {
        "" => None,
        text => Some(Pattern::parse(text).ok_or(Status::OBJECT_NAME_INVALID)?),
    };
    let mut listing = open.listing.lock().await;
    let is_first = listing.pattern.is_none();
    if is_first || request.flags & (flags::RESTART | flags::REOPEN) != 0 {
        listing.restart(sent);
    }
    let pattern = listing.pattern.clone().ok_or(Status::OBJECT_NAME_INVALID)?;
    let most = if request.flags & flags::SINGLE == 0 { usize::MAX } else { 1 };
    let mut page = Page { entries: Entries::new(class, request.room as usize), most, is_full: false };
    list(call, &open, &pattern, &mut listing, &mut page).await?;
    match (page.entries.is_empty(), page.is_full) {
        (false, _) => Ok(Reply::new(data_response(&page.entries.finish()))),
        // There is something, and no room for it.
        (true, true) => Err(Status::INFO_LENGTH_MISMATCH.into()),
        (true, false) if is_first => Err(Status::NO_SUCH_FILE.into()),
        (true, false) => Err(Status::NO_MORE_FILES.into()),
    }
}

/// The entries of one response.
struct Page {
    entries: Entries,
    most: usize,
    is_full: bool,
}

impl Page {
    /// Adds an entry, or notes that there is no room for it.
    fn add(&mut self, info: &Info, name: &str) -> bool {
        if self.most == 0 || !self.entries.add(info, name) {
            self.is_full = true;
            return false;
        }
        self.most -= 1;
        true
    }
}

/// Goes on with a listing until the page is full or there is no more.
async fn list(
    call: &Call,
    open: &Open,
    pattern: &Pattern,
    listing: &mut Listing,
    page: &mut Page,
) -> Result<(), Status> {
    let files = &call.server.files;
    let id = open.file()?;
    if listing.dots < 2 && [".", ".."].iter().any(|name| pattern.matches(name)) {
        let own = files.info(id).await?;
        let parent = Info { id: own.parent, parent: NodeId::ROOT, ..own.clone() };
        for (name, info) in [(".", own), ("..", parent)].into_iter().skip(listing.dots) {
            if pattern.matches(name) && !page.add(&info, name) {
                return Ok(());
            }
            listing.dots += 1;
        }
    }
    listing.dots = 2;
    let is_literal = pattern.literal().is_some();
    let limit = if is_literal { 1 } else { BATCH.min(page.most.max(1)) };
    loop {
        let before = listing.position.clone();
        let batch = files.enumerate(id, &mut listing.position, limit).await?;
        if batch.is_empty() {
            return Ok(());
        }
        let mut last = None;
        for info in &batch {
            let is_match = pattern.matches(&info.name);
            if is_match && !page.add(info, &info.name) {
                listing.position = last.map_or(before, Position::after);
                return Ok(());
            }
            if is_literal && !is_match {
                return Ok(());
            }
            last = Some(info.name.as_str());
        }
    }
}
