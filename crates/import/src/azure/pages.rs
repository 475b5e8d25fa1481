//! Listings in pages.

use http::{Method, StatusCode};
use lazuli_client::client::Call;
use lazuli_protocol::ServiceKind;

use super::xml::XmlElement;
use super::{Link, Refused};
use crate::calls::encode;

/// Maximum number of pages without objects, one after the other.
const MAX_EMPTY_PAGES: u32 = 1000;
/// Maximum length of a continuation token.
const MAX_TOKEN: usize = 8 << 10;

/// A listing whose next page begins at a token.
pub(super) struct ListingPages {
    service: ServiceKind,
    path: String,
    query: String,
    tokens: TokenChain,
}

impl ListingPages {
    pub(super) fn new(service: ServiceKind, path: impl Into<String>, query: impl Into<String>) -> Self {
        Self { service, path: path.into(), query: query.into(), tokens: TokenChain::default() }
    }

    /// Returns the objects of the next page; `None` after the last page.
    pub(super) async fn next(&mut self, link: &mut Link) -> Result<Option<Vec<XmlElement>>, Refused> {
        if self.tokens.has_ended {
            return Ok(None);
        }
        let mut query = self.query.clone();
        if let Some(token) = &self.tokens.current {
            query += &format!("&marker={}", encode(token));
        }
        let call = Call::new(Method::GET, self.path.clone(), query);
        let reply = link.send(self.service, &call, &[StatusCode::OK]).await;
        let mut page = XmlElement::parse(&reply.map_err(|failure| failure.to_string())?.body)?;
        let next = page.value("NextMarker").to_owned();
        let list = page.children.iter_mut().find(|child| {
            ["Blobs", "Containers", "Queues", "Shares", "Entries"].contains(&child.name.as_str())
        });
        let objects = list.map(|list| std::mem::take(&mut list.children)).unwrap_or_default();
        self.tokens.advance(vec![next], objects.is_empty())?;
        Ok(Some(objects))
    }
}

/// Continuation tokens of a listing. Refuses those that would never end.
#[derive(Debug, Default)]
pub(super) struct TokenChain {
    /// The token of the next page.
    pub(super) current: Option<String>,
    pub(super) has_ended: bool,
    empty_pages: u32,
}

impl TokenChain {
    /// Takes the token of a page. A token of several parts ends the listing if all are empty.
    pub(super) fn advance(&mut self, parts: Vec<String>, is_page_empty: bool) -> Result<(), Refused> {
        let is_end = parts.iter().all(String::is_empty);
        let next = parts.join("\n");
        if is_end {
            (self.current, self.has_ended) = (None, true);
            return Ok(());
        }
        if next.len() > MAX_TOKEN {
            return Err("the continuation token of the listing is too long".into());
        }
        if self.current.as_ref() == Some(&next) {
            return Err("the listing repeats its continuation token".into());
        }
        self.empty_pages = if is_page_empty { self.empty_pages + 1 } else { 0 };
        if self.empty_pages > MAX_EMPTY_PAGES {
            return Err("the listing has too many empty pages".into());
        }
        self.current = Some(next);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_listings_are_refused() {
        let mut tokens = TokenChain::default();
        tokens.advance(vec!["a".into(), String::new()], false).unwrap();
        assert!(tokens.advance(vec!["a".into(), String::new()], false).is_err());
        assert!(tokens.advance(vec!["x".repeat(MAX_TOKEN + 1)], false).is_err());
        let mut tokens = TokenChain::default();
        let ended = (0..2 * MAX_EMPTY_PAGES).map(|n| tokens.advance(vec![n.to_string()], true));
        assert_eq!(ended.take_while(Result::is_ok).count(), MAX_EMPTY_PAGES as usize);
        let mut tokens = TokenChain::default();
        tokens.advance(vec![String::new(), String::new()], true).unwrap();
        assert!(tokens.has_ended && tokens.current.is_none());
    }
}
