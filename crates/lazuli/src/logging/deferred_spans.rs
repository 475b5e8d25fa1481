//! Spans that cost little until an event needs them.
//!
//! Each request has a span, and few requests have an event. A formatting subscriber builds the text of every
//! span and changes it with every field. [`DeferredSpans`] keeps the values only, in buffers that later spans
//! use again. If an event occurs inside a span, the formatting subscriber first gets the span and its
//! ancestors, then the event, and the spans end again. So it writes the event as if it had seen all spans.
//!
//! Directives of a filter that select events by their span need to see spans as they begin: see
//! [`needs_spans`]. Values are formatted under a lock, so the `Debug` and `Display` of a span's values must
//! not log.

use std::cell::{Cell, RefCell};
use std::fmt::{Debug, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use tracing::field::{DisplayValue, Field, Value, Visit, display};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Dispatch, Event, Metadata, Subscriber};
use tracing_core::span::Current;
use tracing_subscriber::EnvFilter;

/// Number of locks. Each thread begins its spans under one of them, so threads seldom wait for each other.
const SHARDS: usize = 16;
/// A span's buffer keeps at most this capacity when the span ends, in bytes.
const MAX_KEPT_TEXT: usize = 1024;

thread_local! {
    /// The spans that this thread has entered, innermost last.
    static ENTERED: RefCell<Vec<Id>> = const { RefCell::new(Vec::new()) };
    static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
    /// Whether this thread is in a [`Replay`].
    static REPLAYS: Cell<bool> = const { Cell::new(false) };
}

/// The formatting subscriber has spans until this is dropped. It releases them through the current
/// subscriber, which then passes them on.
struct Replay;

impl Replay {
    fn begin() -> Self {
        REPLAYS.set(true);
        Self
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        REPLAYS.set(false);
    }
}

/// Keeps spans for a subscriber that gets them together with their events.
pub(super) struct DeferredSpans {
    formatting: Dispatch,
    max_level: Option<LevelFilter>,
    shards: [Mutex<Shard>; SHARDS],
}

/// Spans in use and slots to use again.
#[derive(Default)]
struct Shard {
    spans: Vec<SpanSlot>,
    free: Vec<usize>,
}

#[derive(Default)]
struct SpanSlot {
    /// `None` if the slot is free.
    metadata: Option<&'static Metadata<'static>>,
    parent: Option<Id>,
    references: usize,
    values: Values,
}

/// The recorded values of a span. A later value of a field replaces an earlier one.
#[derive(Clone, Default)]
struct Values {
    /// By index of the field.
    fields: Vec<(usize, Recorded)>,
    text: String,
}

/// A recorded value. Texts are ranges of [`Values::text`].
#[derive(Clone)]
enum Recorded {
    Bool(bool),
    I64(i64),
    U64(u64),
    Str(Range<usize>),
    /// The text of a value with `Debug` or `Display`.
    Formatted(Range<usize>),
}

/// A recorded value, as the formatting subscriber gets it.
enum Replayed<'a> {
    Bool(bool),
    I64(i64),
    U64(u64),
    Str(&'a str),
    Formatted(DisplayValue<&'a str>),
}

/// Returns whether a filter has directives that select events by their span.
pub(super) fn needs_spans(filter: &EnvFilter) -> bool {
    filter.to_string().contains('[')
}

impl DeferredSpans {
    pub(super) fn new(formatting: impl Subscriber + Send + Sync + 'static) -> Self {
        let max_level = formatting.max_level_hint();
        Self { formatting: Dispatch::new(formatting), max_level, shards: Default::default() }
    }

    /// Runs `change` on a span's slot. Returns `None` if there is no such span.
    fn with_slot<T>(&self, id: &Id, change: impl FnOnce(&mut SpanSlot) -> T) -> Option<T> {
        let (shard, index) = place(id);
        let mut shard = self.shards[shard].lock();
        shard.spans.get_mut(index).filter(|slot| slot.metadata.is_some()).map(change)
    }

    /// Returns the current span of this thread and its ancestors, outermost first.
    fn current_spans(&self) -> Vec<(&'static Metadata<'static>, Values)> {
        let mut spans = vec![];
        let mut next = entered();
        while let Some(id) = next {
            let span = self.with_slot(&id, |slot| {
                (slot.metadata.map(|metadata| (metadata, slot.values.clone())), slot.parent.clone())
            });
            let (span, parent) = span.unwrap_or_default();
            spans.extend(span);
            next = parent;
        }
        spans.reverse();
        spans
    }
}

/// Returns the innermost span that this thread has entered.
fn entered() -> Option<Id> {
    ENTERED.try_with(|entered| entered.borrow().last().cloned()).ok().flatten()
}

/// Returns the shard and the index of a span.
fn place(id: &Id) -> (usize, usize) {
    let number = id.into_u64() as usize - 1;
    (number % SHARDS, number / SHARDS)
}

/// Returns the shard in which this thread begins spans.
fn shard_of_thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    SHARD.get().unwrap_or_else(|| {
        let shard = THREADS.fetch_add(1, Relaxed) % SHARDS;
        SHARD.set(Some(shard));
        shard
    })
}

impl Subscriber for DeferredSpans {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        self.formatting.register_callsite(metadata)
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.formatting.enabled(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.max_level
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let parent = match attributes.is_contextual() {
            true => entered(),
            false => attributes.parent().cloned(),
        };
        let parent = parent.map(|parent| self.clone_span(&parent));
        let at = shard_of_thread();
        let mut shard = self.shards[at].lock();
        let index = shard.free.pop().unwrap_or_else(|| {
            shard.spans.push(SpanSlot::default());
            shard.spans.len() - 1
        });
        let slot = &mut shard.spans[index];
        (slot.metadata, slot.parent, slot.references) = (Some(attributes.metadata()), parent, 1);
        attributes.record(&mut slot.values);
        Id::from_u64((index * SHARDS + at + 1) as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        self.with_slot(span, |slot| values.record(&mut slot.values));
    }

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let spans = self.current_spans();
        if spans.is_empty() {
            return self.formatting.event(event);
        }
        let formatting = &self.formatting;
        let _replay = Replay::begin();
        let mut open = vec![];
        for (metadata, values) in &spans {
            let replayed = values.replay(metadata.fields().len());
            let fields: Vec<_> = replayed.iter().map(|value| value.as_ref().map(Replayed::get)).collect();
            // A subscriber is asked before it gets a span or an event, and may remember the answer.
            formatting.enabled(metadata);
            let values = metadata.fields().value_set_all(&fields);
            let id = formatting.new_span(&Attributes::new(metadata, &values));
            formatting.enter(&id);
            open.push(id);
        }
        formatting.enabled(event.metadata());
        formatting.event(event);
        for id in open.into_iter().rev() {
            formatting.exit(&id);
            formatting.try_close(id);
        }
    }

    fn enter(&self, span: &Id) {
        // A thread that ends has no list any more, and its events have no span.
        let _ = ENTERED.try_with(|entered| entered.borrow_mut().push(span.clone()));
    }

    fn exit(&self, span: &Id) {
        let _ = ENTERED.try_with(|entered| {
            let mut entered = entered.borrow_mut();
            if let Some(at) = entered.iter().rposition(|id| id == span) {
                entered.remove(at);
            }
        });
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.with_slot(id, |slot| slot.references += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        if REPLAYS.get() {
            return self.formatting.try_close(id);
        }
        let (at, index) = place(&id);
        let mut shard = self.shards[at].lock();
        let Some(slot) = shard.spans.get_mut(index).filter(|slot| slot.metadata.is_some()) else {
            return false;
        };
        slot.references -= 1;
        if slot.references > 0 {
            return false;
        }
        slot.metadata = None;
        slot.values.clear();
        let parent = slot.parent.take();
        shard.free.push(index);
        drop(shard);
        if let Some(parent) = parent {
            self.try_close(parent);
        }
        true
    }

    fn current_span(&self) -> Current {
        let current = entered().and_then(|id| {
            let metadata = self.with_slot(&id, |slot| slot.metadata).flatten()?;
            Some(Current::new(id, metadata))
        });
        current.unwrap_or_else(Current::none)
    }
}

impl Values {
    fn clear(&mut self) {
        self.fields.clear();
        self.text.clear();
        self.text.shrink_to(MAX_KEPT_TEXT);
    }

    /// Returns the values of a span with `count` fields, by index of the field.
    fn replay(&self, count: usize) -> Vec<Option<Replayed<'_>>> {
        let mut values: Vec<_> = (0..count).map(|_| None).collect();
        for (index, value) in &self.fields {
            if let Some(place) = values.get_mut(*index) {
                *place = Some(match value {
                    Recorded::Bool(value) => Replayed::Bool(*value),
                    Recorded::I64(value) => Replayed::I64(*value),
                    Recorded::U64(value) => Replayed::U64(*value),
                    Recorded::Str(text) => Replayed::Str(&self.text[text.clone()]),
                    Recorded::Formatted(text) => Replayed::Formatted(display(&self.text[text.clone()])),
                });
            }
        }
        values
    }
}

impl Visit for Values {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let start = self.text.len();
        // Writing to a String cannot fail, and a value that fails is cut.
        let _ = write!(self.text, "{value:?}");
        self.fields.push((field.index(), Recorded::Formatted(start..self.text.len())));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let start = self.text.len();
        self.text.push_str(value);
        self.fields.push((field.index(), Recorded::Str(start..self.text.len())));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.fields.push((field.index(), Recorded::Bool(value)));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.fields.push((field.index(), Recorded::I64(value)));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.push((field.index(), Recorded::U64(value)));
    }
}

impl Replayed<'_> {
    fn get(&self) -> &dyn Value {
        match self {
            Self::Bool(value) => value,
            Self::I64(value) => value,
            Self::U64(value) => value,
            Self::Str(value) => value,
            Self::Formatted(value) => value,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Waker};

    use tracing::dispatcher::with_default;
    use tracing::{Instrument, Span, field};

    use super::*;

    /// Logs events inside spans of every kind.
    fn log_events() {
        let request = tracing::error_span!(
            "request",
            request_id = %"7\"8",
            account = field::Empty,
            size = field::Empty,
            never = field::Empty,
        );
        let moved = request.in_scope(|| {
            tracing::error!("no account yet");
            request.record("account", "la\"pis");
            request.record("size", 4096_u64);
            tracing::warn!(row = 3, "a row is damaged");
            let part = tracing::error_span!("part", offset = -1, last = true, state = ?Some(1));
            part.in_scope(|| tracing::error!("two spans"));
            tracing::error!("one span");
            part
        });
        drop(request);
        moved.in_scope(|| tracing::error!("the outer span has been left, and is still named"));
        tracing::error!("no span");
        let detached = {
            let _entered = moved.entered();
            async { tracing::error!("detached") }.in_current_span()
        };
        assert!(pin!(detached).poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(Span::current().is_none());
    }

    fn lines(json: bool, deferred: bool) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        let writer = Arc::new(file.reopen().unwrap());
        let text = tracing_subscriber::fmt().with_writer(writer).with_ansi(false).without_time();
        let dispatch = match (json, deferred) {
            (false, false) => Dispatch::new(text.finish()),
            (false, true) => Dispatch::new(DeferredSpans::new(text.finish())),
            (true, false) => Dispatch::new(text.json().finish()),
            (true, true) => Dispatch::new(DeferredSpans::new(text.json().finish())),
        };
        with_default(&dispatch, log_events);
        std::fs::read_to_string(file.path()).unwrap()
    }

    #[test]
    fn events_name_their_spans_as_if_these_had_not_been_deferred() {
        for json in [false, true] {
            let expected = lines(json, false);
            assert_eq!(expected.lines().count(), 7, "{expected}");
            assert_eq!(lines(json, true), expected);
        }
    }

    #[test]
    fn slots_of_ended_spans_are_used_again() {
        let spans = Arc::new(DeferredSpans::new(tracing_subscriber::fmt().finish()));
        with_default(&Dispatch::from(spans.clone()), || {
            for number in 0..100 {
                let outer = tracing::error_span!("outer", number);
                let inner = outer.in_scope(|| tracing::error_span!("inner", text = "x".repeat(4096)));
                drop(outer);
                drop(inner.clone());
            }
        });
        let shards: Vec<_> = spans.shards.iter().map(|shard| shard.lock()).collect();
        let slots: Vec<_> = shards.iter().flat_map(|shard| &shard.spans).collect();
        assert_eq!(slots.len(), 2);
        assert!(slots.iter().all(|slot| slot.metadata.is_none() && slot.parent.is_none()));
        assert!(slots.iter().all(|slot| slot.values.text.capacity() <= MAX_KEPT_TEXT));
    }
}
