//! Turns of a connection: one that wakes itself goes on at once, where it is.
//!
//! hyper hands each piece of a request's body from the connection to whoever reads it, both within one task, and wakes
//! the task for it. To the scheduler a task that is woken while it runs is work for another thread: it wakes one up, which
//! takes the task away from the memory that it has just filled. So wakes that arrive during a turn are kept from the
//! scheduler, and the turn is followed by another one, a few times, before others are let in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::AcqRel, Ordering::Acquire};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// Turns in a row: a MiB of a body, in pieces of the usual size.
const IN_A_ROW: usize = 4;

/// The connection is being polled.
const POLLING: u8 = 1;
/// It is to be polled again; while it is not being polled, the scheduler knows.
const WOKEN: u8 = 2;

/// The turns of one connection.
pub(crate) struct Turns {
    state: Arc<State>,
    /// Wakes the connection: that is the state's business.
    waker: Waker,
}

#[derive(Default)]
struct State {
    /// [`POLLING`] and [`WOKEN`].
    flags: AtomicU8,
    /// Wakes the task that the connection is part of.
    task: Mutex<Option<Waker>>,
}

impl Turns {
    pub(crate) fn new() -> Self {
        let state = Arc::new(State::default());
        Self { waker: Waker::from(Arc::clone(&state)), state }
    }

    /// Polls the connection, again if it was woken meanwhile.
    pub(crate) fn poll<T>(
        &self,
        cx: &Context<'_>,
        mut connection: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.state.wakes(cx.waker());
        for _ in 0..IN_A_ROW {
            self.state.flags.swap(POLLING, AcqRel);
            if let Poll::Ready(output) = connection(&mut Context::from_waker(&self.waker)) {
                return Poll::Ready(output);
            }
            if self.state.flags.compare_exchange(POLLING, 0, AcqRel, Acquire).is_ok() {
                return Poll::Pending;
            }
        }
        self.state.flags.swap(WOKEN, AcqRel);
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl State {
    /// Takes note of whom to wake.
    fn wakes(&self, task: &Waker) {
        let mut known = self.task.lock();
        if known.as_ref().is_none_or(|known| !known.will_wake(task)) {
            *known = Some(task.clone());
        }
    }
}

impl Wake for State {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Whatever the flags were, whoever polls next sees what was done before this.
        if self.flags.fetch_or(WOKEN, AcqRel) == 0 {
            let task = self.task.lock().clone();
            if let Some(task) = task {
                task.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_connection_that_wakes_itself_goes_on_without_the_scheduler_but_not_for_ever() {
        for (self_wakes, polls, scheduled) in [(0, 1, 0), (1, 2, 0), (3, 4, 0), (4, 4, 1), (100, 4, 1)] {
            let wakes = Arc::new(Wakes::default());
            let waker = Waker::from(Arc::clone(&wakes));
            let (turns, mut polled) = (Turns::new(), 0);
            let outcome: Poll<()> = turns.poll(&Context::from_waker(&waker), |cx| {
                polled += 1;
                if polled <= self_wakes {
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            });
            assert!(outcome.is_pending());
            assert_eq!((polled, wakes.0.load(Ordering::SeqCst)), (polls, scheduled), "{self_wakes}");
        }
    }

    #[test]
    fn what_wakes_it_between_turns_wakes_the_task_it_was_last_polled_by_once() {
        let tasks = [Arc::new(Wakes::default()), Arc::new(Wakes::default())];
        let (turns, mut kept) = (Turns::new(), None);
        for task in &tasks {
            let waker = Waker::from(Arc::clone(task));
            let outcome: Poll<()> = turns.poll(&Context::from_waker(&waker), |cx| {
                kept = Some(cx.waker().clone());
                Poll::Pending
            });
            assert!(outcome.is_pending());
        }
        let kept = kept.unwrap();
        kept.wake_by_ref();
        kept.wake();
        assert_eq!(tasks.map(|task| task.0.load(Ordering::SeqCst)), [0, 1]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_wake_is_lost_whenever_it_comes() {
        let done = Arc::new(AtomicBool::new(false));
        let steps = Arc::new(AtomicUsize::new(0));
        let waiting: Arc<Mutex<Option<Waker>>> = Arc::default();
        let waking = {
            let (done, steps, waiting) = (Arc::clone(&done), Arc::clone(&steps), Arc::clone(&waiting));
            std::thread::spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    if let Some(waker) = waiting.lock().take() {
                        steps.fetch_add(1, Ordering::SeqCst);
                        waker.wake();
                    }
                }
            })
        };
        let (turns, mut seen) = (Turns::new(), 0);
        poll_fn(|cx| {
            turns.poll(cx, |cx| {
                // One step is taken for each waker that is left, so each has to be answered by another turn.
                let now = steps.load(Ordering::SeqCst);
                if now >= 20_000 {
                    return Poll::Ready(());
                }
                let mut waiting = waiting.lock();
                if now > seen || waiting.is_none() {
                    seen = now;
                    *waiting = Some(cx.waker().clone());
                }
                Poll::Pending
            })
        })
        .await;
        done.store(true, Ordering::SeqCst);
        waking.join().unwrap();
    }
}
