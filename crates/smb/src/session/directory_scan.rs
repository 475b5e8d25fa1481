//! The position of a directory listing between two requests.

use lazuli_file::handles::Position;

use crate::pattern::Pattern;

/// The state of a directory listing.
#[derive(Debug, Default)]
pub(crate) struct DirectoryScan {
    /// The names to list. `None` before the first request.
    pub(crate) pattern: Option<Pattern>,
    /// How many of `.` and `..` are done.
    pub(crate) dots: usize,
    pub(crate) position: Position,
}

impl DirectoryScan {
    /// Restarts the listing, with a new pattern if there is one.
    pub(crate) fn restart(&mut self, pattern: Option<Pattern>) {
        let pattern = pattern.or(self.pattern.take());
        let literal = pattern.as_ref().and_then(Pattern::literal);
        // A pattern without wildcards needs only one lookup.
        let position = literal.map_or_else(Position::default, |name| Position::at(&name));
        *self = Self { pattern, position, ..Self::default() };
    }
}
