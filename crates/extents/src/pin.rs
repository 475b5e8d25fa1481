//! Who is at work: what must not be freed although no record refers to it, or not yet, or no longer.
//!
//! Bytes are freed by a sweep, which asks the records what lives. Two kinds of bytes are not in any record it will
//! see, and are announced here instead.
//!
//! - **A [`Writer`]** has appended and not yet committed. Everything appended through it lives as long as it does.
//! - **A [`Pin`]** says that a record is being read; [`Pin::hold`] turns it into a [`Held`] on the content found there.
//!   That content lives as long as the `Held` does, although the record may be overwritten or deleted meanwhile.
//!
//! Both are kept until whatever they serve is over: a writer until after its commit, a hold until the last byte was
//! sent, or, when the content becomes part of other content, until after *that* commit. This is why it works: a sweep
//! reads the records one after the other while they change. Content can slip past it only by moving from a record not
//! yet visited to one already visited, and whoever moves it holds it meanwhile. So a sweep counts as alive whatever is
//! held at any moment while it looks ([`Marking::take`]), and before it frees anything it waits for the pins that
//! were taken while it looked and have not yet told what they found ([`Marking::settled`]). Nobody else ever waits.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::extent::{Error, ExtentId};
use crate::map::Content;

/// Content that was held while a sweep looked and that the sweep has not taken yet, at most. A sweep that falls behind
/// so far gives up.
const MAX_UNTAKEN: usize = 1 << 20;

/// Those at work on one place for bytes.
#[derive(Debug, Default)]
pub struct Pins {
    state: Mutex<State>,
    /// A pin was turned into a hold, or dropped.
    settled: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    reading: BTreeSet<u64>,
    held: HashMap<u64, Vec<Content>>,
    writers: HashMap<u64, Arc<Mutex<Vec<Appended>>>>,
    /// What came to be held since a sweep began to look; `None` while none does.
    untaken: Option<Vec<Content>>,
    overrun: bool,
}

impl State {
    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// An extent that a writer has been given a place for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Where.
    pub id: ExtentId,
    /// Payload bytes.
    pub length: u32,
}

impl Pins {
    /// See [`Extents::pin`](crate::Extents::pin).
    pub fn pin(self: &Arc<Self>) -> Pin {
        let mut state = self.state.lock();
        let id = state.id();
        state.reading.insert(id);
        Pin { pins: self.clone(), id }
    }

    /// See [`Extents::writer`](crate::Extents::writer).
    pub fn writer(self: &Arc<Self>) -> Writer {
        let appended = Arc::new(Mutex::new(vec![]));
        let mut state = self.state.lock();
        let id = state.id();
        state.writers.insert(id, appended.clone());
        drop(state);
        Writer(Arc::new(WriterInner { pins: self.clone(), id, appended, held: Mutex::default() }))
    }

    /// What the writers of this moment have appended. For engines: to be called when a mark begins.
    pub fn appended(&self) -> Vec<Appended> {
        let writers: Vec<_> = self.state.lock().writers.values().cloned().collect();
        writers.iter().flat_map(|appended| appended.lock().clone()).collect()
    }

    /// From now on notes what is held, beginning with what is held already. One sweep at a time.
    pub(crate) fn begin_marking(self: &Arc<Self>) -> Result<Marking, Error> {
        let mut state = self.state.lock();
        if state.untaken.is_some() {
            return Err(Error::Busy("another sweep is at work"));
        }
        state.untaken = Some(state.held.values().flatten().cloned().collect());
        state.overrun = false;
        Ok(Marking(self.clone()))
    }
}

/// A record is about to be read. Turn it into a hold as soon as the record is known, or drop it.
#[derive(Debug)]
#[must_use = "taken before a record is read, and then held"]
pub struct Pin {
    pins: Arc<Pins>,
    id: u64,
}

impl Pin {
    /// Keeps the content that was found in the record.
    pub fn hold<'a>(self, contents: impl IntoIterator<Item = &'a Content>) -> Held {
        // What a record holds itself needs no protection.
        let contents: Vec<Content> =
            contents.into_iter().filter(|content| content.as_inline().is_none()).cloned().collect();
        let mut state = self.pins.state.lock();
        if let Some(untaken) = &mut state.untaken {
            if untaken.len() + contents.len() <= MAX_UNTAKEN {
                untaken.extend_from_slice(&contents);
            } else {
                state.overrun = true;
            }
        }
        state.held.insert(self.id, contents);
        drop(state);
        // The pin itself ends when `self` is dropped, after its content was noted.
        Held { pins: self.pins.clone(), id: self.id }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.pins.state.lock().reading.remove(&self.id);
        self.pins.settled.notify_waiters();
    }
}

/// Keeps content readable while it lives.
#[derive(Debug)]
#[must_use = "content is kept only while this lives"]
pub struct Held {
    pins: Arc<Pins>,
    id: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        let gone = self.pins.state.lock().held.remove(&self.id);
        drop(gone);
    }
}

/// A write that is under way: keeps what it appends, and the content it builds on. Clones are the same writer.
///
/// Kept until the commit of the record that refers to it is decided, whichever way.
#[derive(Clone, Debug)]
#[must_use = "what is appended is kept only while this lives"]
pub struct Writer(Arc<WriterInner>);

#[derive(Debug)]
struct WriterInner {
    pins: Arc<Pins>,
    id: u64,
    appended: Arc<Mutex<Vec<Appended>>>,
    held: Mutex<Vec<Held>>,
}

impl Writer {
    /// Keeps content that was found in a record and that will be part of what is written.
    pub fn hold<'a>(&self, pin: Pin, contents: impl IntoIterator<Item = &'a Content>) {
        let held = pin.hold(contents);
        self.0.held.lock().push(held);
    }

    /// Notes a place that was given to this writer. For engines: to be called before anybody can learn of the place,
    /// and not after a later mark has begun.
    pub fn note(&self, appended: Appended) {
        self.0.appended.lock().push(appended);
    }
}

impl Drop for WriterInner {
    fn drop(&mut self) {
        self.pins.state.lock().writers.remove(&self.id);
    }
}

/// A sweep is looking for what lives.
#[derive(Debug)]
pub(crate) struct Marking(Arc<Pins>);

impl Marking {
    /// What came to be held since the last call.
    pub(crate) fn take(&self) -> Result<Vec<Content>, Error> {
        let mut state = self.0.state.lock();
        if state.overrun {
            return Err(Error::Busy("reads outran the sweep"));
        }
        Ok(state.untaken.as_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Waits until all pins of this moment have told what they found. The last of it is then there to be taken.
    pub(crate) async fn settled(&self, patience: Duration) -> Result<(), Error> {
        let last = self.0.state.lock().next;
        let all_told = async {
            loop {
                let changed = self.0.settled.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if self.0.state.lock().reading.first().is_none_or(|oldest| *oldest > last) {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(patience, all_told)
            .await
            .map_err(|_| Error::Busy("a record is still being read"))
    }
}

impl Drop for Marking {
    fn drop(&mut self) {
        let untaken = self.0.state.lock().untaken.take();
        drop(untaken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::ExtentRef;

    fn content(segment: u64) -> Content {
        Content::extent(ExtentRef { id: ExtentId::new(segment, 1), length: 10, crc: 0 })
    }

    #[test]
    fn a_mark_sees_what_is_held_before_and_while_it_looks_and_nothing_afterwards() {
        let pins = Arc::new(Pins::default());
        let before = pins.pin().hold([&content(1)]);
        drop(pins.pin().hold([&content(9)]));
        let marking = pins.begin_marking().unwrap();
        assert_eq!(marking.take().unwrap(), [content(1)]);
        drop(pins.pin().hold([&content(2), &Content::inline("small"), &content(3)]));
        assert_eq!(marking.take().unwrap(), [content(2), content(3)], "though it is over already");
        assert!(marking.take().unwrap().is_empty());
        drop((marking, before));
        let again = pins.begin_marking().unwrap();
        assert!(again.take().unwrap().is_empty());
        assert!(matches!(pins.begin_marking(), Err(Error::Busy(_))), "one at a time");
    }

    #[tokio::test]
    async fn a_mark_waits_for_the_pins_of_its_end_but_not_for_later_ones() {
        let pins = Arc::new(Pins::default());
        let marking = pins.begin_marking().unwrap();
        let (one, two) = (pins.pin(), pins.pin());
        let refused = marking.settled(Duration::from_millis(1)).await;
        assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");

        let settled = marking.settled(Duration::from_secs(60));
        tokio::pin!(settled);
        tokio::select! { biased; _ = &mut settled => panic!("two pins have not told"), () = std::future::ready(()) => {} }
        let _later = pins.pin();
        drop(one);
        let _held = two.hold([&content(4)]);
        settled.await.unwrap();
        assert_eq!(marking.take().unwrap(), [content(4)]);
    }

    #[test]
    fn a_writer_counts_until_its_last_clone_is_gone() {
        let pins = Arc::new(Pins::default());
        let writer = pins.writer();
        let appended = Appended { id: ExtentId::new(1, 1), length: 5 };
        writer.note(appended);
        let in_flight = writer.clone();
        drop(writer);
        assert_eq!(pins.appended(), [appended]);
        drop(in_flight);
        assert!(pins.appended().is_empty());
    }
}
