//! Repeats the poll of a connection that wakes itself, without involving the scheduler.
//!
//! hyper hands each frame of a request's body from the connection to the body's reader. Both are part of one
//! task, which hyper wakes. A task that is woken while it runs looks to the scheduler like work for another
//! thread: another thread starts and takes the task away from the memory that it has just filled. So wakes
//! during a poll are kept from the scheduler. The poll is repeated instead, a few times, before other tasks
//! run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::AcqRel, Ordering::Acquire};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// Polls in a row: enough for 1 MiB of a body in frames of the usual size.
const MAX_POLLS: usize = 4;

/// The connection is being polled.
const POLLING: u8 = 1;
/// The connection has to be polled again. If it is not being polled, the scheduler has been notified.
const WOKEN: u8 = 2;

/// Polls one connection.
pub(crate) struct PollLoop {
    state: Arc<PollState>,
    /// Wakes the connection through the state.
    waker: Waker,
}

#[derive(Default)]
struct PollState {
    /// [`POLLING`] and [`WOKEN`].
    flags: AtomicU8,
    /// Wakes the task that the connection belongs to.
    task: Mutex<Option<Waker>>,
}

impl PollLoop {
    pub(crate) fn new() -> Self {
        let state = Arc::new(PollState::default());
        Self { waker: Waker::from(Arc::clone(&state)), state }
    }

    /// Polls the connection, and again if it was woken meanwhile.
    pub(crate) fn poll<T>(
        &self,
        cx: &Context<'_>,
        mut connection: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.state.set_task(cx.waker());
        for _ in 0..MAX_POLLS {
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

impl PollState {
    /// Remembers the task to wake.
    fn set_task(&self, task: &Waker) {
        let mut known = self.task.lock();
        if known.as_ref().is_none_or(|known| !known.will_wake(task)) {
            *known = Some(task.clone());
        }
    }
}

impl Wake for PollState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The swap orders the wake before the next poll, whatever the flags were.
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
    fn a_connection_that_wakes_itself_is_polled_again_a_limited_number_of_times() {
        for (self_wakes, polls, scheduled) in [(0, 1, 0), (1, 2, 0), (3, 4, 0), (4, 4, 1), (100, 4, 1)] {
            let wakes = Arc::new(Wakes::default());
            let waker = Waker::from(Arc::clone(&wakes));
            let (poll_loop, mut polled) = (PollLoop::new(), 0);
            let outcome: Poll<()> = poll_loop.poll(&Context::from_waker(&waker), |cx| {
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
    fn a_wake_between_polls_wakes_the_last_polling_task_once() {
        let tasks = [Arc::new(Wakes::default()), Arc::new(Wakes::default())];
        let (poll_loop, mut kept) = (PollLoop::new(), None);
        for task in &tasks {
            let waker = Waker::from(Arc::clone(task));
            let outcome: Poll<()> = poll_loop.poll(&Context::from_waker(&waker), |cx| {
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
    async fn concurrent_wakes_are_never_lost() {
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
        let (poll_loop, mut seen) = (PollLoop::new(), 0);
        poll_fn(|cx| {
            poll_loop.poll(cx, |cx| {
                // Each stored waker gets one step, so each step must lead to another poll.
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
