//! Pins, holds and writers: they keep content that no record refers to yet, or any longer, from being freed.
//!
//! A sweep frees bytes, and learns from the records which bytes are in use. Two kinds of bytes in use are in
//! no record that the sweep will read, and are registered here.
//!
//! - **A [`Writer`]** has appended extents and not yet committed. They are kept as long as the writer exists.
//! - **A [`Pin`]** announces that a record is being read. [`Pin::hold`] turns it into a [`ContentHold`] on
//!   the content found there. That content is kept as long as the hold exists, even if the record is
//!   overwritten or deleted.
//!
//! Keep a writer until after its commit. Keep a hold until the last byte was sent, or, if the content becomes
//! part of other content, until after *that* commit.
//!
//! Pins, holds and writers are sufficient: a sweep reads the records one at a time while they change. It can
//! miss content only if the content moves from a record not yet read to one already read, and the request
//! that moves it holds it meanwhile. So a sweep marks all content that is held at any moment while it marks
//! ([`HoldRecorder::take`]). Before it frees anything, it waits for the pins that exist at the end of the
//! mark and are not yet holds ([`HoldRecorder::wait_for_pins`]). No other thread ever waits.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::extent::{Error, ExtentId};
use crate::map::Content;

/// Maximum number of newly held contents queued for the running sweep. A sweep that falls further behind
/// aborts.
const MAX_NEW_CONTENTS: usize = 1 << 20;

/// The pins, holds and writers of one extent store.
#[derive(Debug, Default)]
pub struct Pins {
    state: Mutex<PinState>,
    /// Notified when a pin was turned into a hold or dropped.
    pin_resolved: Notify,
}

#[derive(Debug, Default)]
struct PinState {
    next: u64,
    unresolved: BTreeSet<u64>,
    held: HashMap<u64, Vec<Content>>,
    writers: HashMap<u64, Arc<Mutex<Vec<Appended>>>>,
    /// Contents held since the running sweep began, and not yet taken by it; `None` while no sweep runs.
    new_contents: Option<Vec<Content>>,
    overrun: bool,
}

impl PinState {
    fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// An extent that was reserved for a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The position of the extent.
    pub id: ExtentId,
    /// Payload bytes.
    pub length: u32,
}

impl Pins {
    /// Implements [`Extents::pin`](crate::Extents::pin).
    pub fn pin(self: &Arc<Self>) -> Pin {
        let mut state = self.state.lock();
        let id = state.next_id();
        state.unresolved.insert(id);
        Pin { pins: self.clone(), id }
    }

    /// Implements [`Extents::writer`](crate::Extents::writer).
    pub fn writer(self: &Arc<Self>) -> Writer {
        let appended = Arc::new(Mutex::new(vec![]));
        let mut state = self.state.lock();
        let id = state.next_id();
        state.writers.insert(id, appended.clone());
        drop(state);
        Writer(Arc::new(WriterInner { pins: self.clone(), id, appended, held: Mutex::default() }))
    }

    /// Returns the extents of all current writers. For engines: call it when a mark begins.
    pub fn appended(&self) -> Vec<Appended> {
        let writers: Vec<_> = self.state.lock().writers.values().cloned().collect();
        writers.iter().flat_map(|appended| appended.lock().clone()).collect()
    }

    /// Returns the number of pins and holds, and that of writers.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.unresolved.len() + state.held.len(), state.writers.len())
    }

    /// Begins to record holds for a sweep, starting with the current ones. Fails if another sweep is running.
    pub(crate) fn record_holds(self: &Arc<Self>) -> Result<HoldRecorder, Error> {
        let mut state = self.state.lock();
        if state.new_contents.is_some() {
            return Err(Error::Busy("another sweep is running"));
        }
        state.new_contents = Some(state.held.values().flatten().cloned().collect());
        state.overrun = false;
        Ok(HoldRecorder(self.clone()))
    }
}

/// Announces that a record is about to be read. Turn it into a hold as soon as the record is known, or drop
/// it.
#[derive(Debug)]
#[must_use = "a pin is taken before a record is read, and then turned into a hold"]
pub struct Pin {
    pins: Arc<Pins>,
    id: u64,
}

impl Pin {
    /// Keeps the content that was found in the record from being freed.
    pub fn hold<'a>(self, contents: impl IntoIterator<Item = &'a Content>) -> ContentHold {
        // Inline bytes need no protection.
        let contents: Vec<Content> =
            contents.into_iter().filter(|content| content.as_inline().is_none()).cloned().collect();
        let mut state = self.pins.state.lock();
        if let Some(new_contents) = &mut state.new_contents {
            if new_contents.len() + contents.len() <= MAX_NEW_CONTENTS {
                new_contents.extend_from_slice(&contents);
            } else {
                state.overrun = true;
            }
        }
        state.held.insert(self.id, contents);
        drop(state);
        // The pin itself ends when `self` is dropped, after its content was recorded.
        ContentHold { pins: self.pins.clone(), id: self.id }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.pins.state.lock().unresolved.remove(&self.id);
        self.pins.pin_resolved.notify_waiters();
    }
}

/// Keeps content from being freed while it exists.
#[derive(Debug)]
#[must_use = "content is kept only while the hold exists"]
pub struct ContentHold {
    pins: Arc<Pins>,
    id: u64,
}

impl Drop for ContentHold {
    fn drop(&mut self) {
        let removed = self.pins.state.lock().held.remove(&self.id);
        drop(removed);
    }
}

/// A write in progress: keeps the extents that it appends and the content that it builds on. Clones share
/// one writer.
///
/// Keep it until the commit of the record that refers to the extents is decided, whether it succeeds or
/// fails.
#[derive(Clone, Debug)]
#[must_use = "appended extents are kept only while the writer exists"]
pub struct Writer(Arc<WriterInner>);

#[derive(Debug)]
struct WriterInner {
    pins: Arc<Pins>,
    id: u64,
    appended: Arc<Mutex<Vec<Appended>>>,
    held: Mutex<Vec<ContentHold>>,
}

impl Writer {
    /// Keeps content that was found in a record and that will be part of the new content.
    pub fn hold<'a>(&self, pin: Pin, contents: impl IntoIterator<Item = &'a Content>) {
        let held = pin.hold(contents);
        self.0.held.lock().push(held);
    }

    /// Registers an extent that was reserved for this writer. For engines: call it before the extent's id is
    /// visible to any other thread, and not after a later mark has begun.
    pub fn note(&self, appended: Appended) {
        self.0.appended.lock().push(appended);
    }
}

impl Drop for WriterInner {
    fn drop(&mut self) {
        self.pins.state.lock().writers.remove(&self.id);
    }
}

/// Records holds for a running sweep. Dropping it ends the recording.
#[derive(Debug)]
pub(crate) struct HoldRecorder(Arc<Pins>);

impl HoldRecorder {
    /// Takes the contents that came to be held since the last call.
    pub(crate) fn take(&self) -> Result<Vec<Content>, Error> {
        let mut state = self.0.state.lock();
        if state.overrun {
            return Err(Error::Busy("reads outran the sweep"));
        }
        Ok(state.new_contents.as_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Waits until all pins of this moment were turned into holds or dropped. [`take`](Self::take) then
    /// returns their content.
    pub(crate) async fn wait_for_pins(&self, timeout: Duration) -> Result<(), Error> {
        let last = self.0.state.lock().next;
        let all_resolved = async {
            loop {
                let changed = self.0.pin_resolved.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if self.0.state.lock().unresolved.first().is_none_or(|oldest| *oldest > last) {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(timeout, all_resolved)
            .await
            .map_err(|_| Error::Busy("a record is still being read"))
    }
}

impl Drop for HoldRecorder {
    fn drop(&mut self) {
        let new_contents = self.0.state.lock().new_contents.take();
        drop(new_contents);
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
    fn recorder_sees_holds_from_before_and_during_the_sweep_only() {
        let pins = Arc::new(Pins::default());
        let before = pins.pin().hold([&content(1)]);
        drop(pins.pin().hold([&content(9)]));
        let recorder = pins.record_holds().unwrap();
        assert_eq!(recorder.take().unwrap(), [content(1)]);
        drop(pins.pin().hold([&content(2), &Content::inline("small"), &content(3)]));
        assert_eq!(recorder.take().unwrap(), [content(2), content(3)], "although that hold has ended");
        assert!(recorder.take().unwrap().is_empty());
        drop((recorder, before));
        let second = pins.record_holds().unwrap();
        assert!(second.take().unwrap().is_empty());
        assert!(matches!(pins.record_holds(), Err(Error::Busy(_))), "one at a time");
    }

    #[tokio::test]
    async fn sweep_waits_for_existing_pins_but_not_for_later_ones() {
        let pins = Arc::new(Pins::default());
        let recorder = pins.record_holds().unwrap();
        let (one, two) = (pins.pin(), pins.pin());
        let refused = recorder.wait_for_pins(Duration::from_millis(1)).await;
        assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");

        let waiting = recorder.wait_for_pins(Duration::from_secs(60));
        tokio::pin!(waiting);
        tokio::select! { biased; _ = &mut waiting => panic!("two pins are unresolved"), () = std::future::ready(()) => {} }
        let _later = pins.pin();
        drop(one);
        let _held = two.hold([&content(4)]);
        waiting.await.unwrap();
        assert_eq!(recorder.take().unwrap(), [content(4)]);
    }

    #[test]
    fn writer_is_registered_until_its_last_clone_is_dropped() {
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
