//! Tickets: each lets the browser itself download one object, with the cookie of one session.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use http::StatusCode;
use parking_lot::Mutex;

use crate::reply::{Problem, Result};
use crate::session::{hash, random};

/// A ticket can be used for this long.
pub(crate) const TICKET_LIFE: Duration = Duration::from_secs(10 * 60);
/// Maximum number of tickets.
const MAX_TICKETS: usize = 1024;

/// The right to download one object.
#[derive(Clone)]
pub(crate) struct Ticket {
    pub(crate) session: String,
    /// The path below `/storage/`, with its query.
    pub(crate) path: String,
    pub(crate) name: Option<String>,
    pub(crate) until: Instant,
}

/// The tickets that can be used, by their digest.
#[derive(Default)]
pub(crate) struct Tickets(Mutex<HashMap<String, Ticket>>);

impl Tickets {
    /// Adds a ticket and returns its token.
    pub(crate) fn add(&self, ticket: Ticket) -> Result<String> {
        let mut tickets = self.0.lock();
        let now = Instant::now();
        tickets.retain(|_, ticket| ticket.until > now);
        if tickets.len() >= MAX_TICKETS {
            let message = "There are too many downloads at once.";
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "TooManyTickets", message));
        }
        let token = random();
        tickets.insert(hash(&token), ticket);
        Ok(token)
    }

    /// Returns the ticket of a token, unless it has expired.
    pub(crate) fn get(&self, token: &str) -> Option<Ticket> {
        let ticket = self.0.lock().get(&hash(token)).cloned();
        ticket.filter(|ticket| ticket.until > Instant::now())
    }
}
