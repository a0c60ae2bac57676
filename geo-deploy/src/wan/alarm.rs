//! One timer for all tasks of the relays' thread that wait for a point in time.
//!
//! The runtime's own timer has a resolution of a millisecond, which would be a tenth of a short
//! link's delay. Some kernels have a timer for which a task can wait in the same way as for a
//! socket. On such a kernel, the kernel's timer is used instead, because it is exact and needs no
//! second thread.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Instant;

/// Queue that wakes the tasks of one thread at given times.
pub(crate) struct TimerQueue {
    timer: Timer,
    sleepers: RefCell<BinaryHeap<Reverse<Sleeper>>>,
    numbered: Cell<u64>,
}

struct Sleeper {
    due: Instant,
    /// Number that distinguishes this task from other waiting tasks with the same due time.
    number: u64,
    /// Waker of the task; `None` as soon as the task no longer waits.
    waker: Rc<RefCell<Option<Waker>>>,
}

impl TimerQueue {
    pub(crate) fn new() -> io::Result<TimerQueue> {
        Ok(TimerQueue {
            timer: Timer::new()?,
            sleepers: RefCell::default(),
            numbered: Cell::new(0),
        })
    }

    /// Waits until `due`; returns immediately if `due` has passed.
    pub(crate) async fn until(&self, due: Instant) {
        let waker: Rc<RefCell<Option<Waker>>> = Rc::default();
        poll_fn(|context| {
            if Instant::now() >= due {
                return Poll::Ready(());
            }
            let before = waker.borrow_mut().replace(context.waker().clone());
            if before.is_none() {
                self.enter(due, &waker);
            }
            Poll::Pending
        })
        .await;
    }

    /// Wakes each waiting task when it is due. The caller must run this function concurrently with
    /// the waiting tasks, because the function returns only after an error.
    pub(crate) async fn run(&self) -> io::Result<()> {
        loop {
            self.timer.fired().await?;
            self.wake(Instant::now());
            if let Some(Reverse(next)) = self.sleepers.borrow().peek() {
                self.timer.set(next.due)?;
            }
        }
    }

    fn enter(&self, due: Instant, waker: &Rc<RefCell<Option<Waker>>>) {
        let mut sleepers = self.sleepers.borrow_mut();
        let first = sleepers.peek().is_none_or(|Reverse(first)| due < first.due);
        self.numbered.set(self.numbered.get() + 1);
        sleepers.push(Reverse(Sleeper {
            due,
            number: self.numbered.get(),
            waker: waker.clone(),
        }));
        if first && let Err(error) = self.timer.set(due) {
            // Without the timer the sleeper may never wake, so the error is reported.
            tracing::error!(%error, "the network's timer cannot be set");
        }
    }

    fn wake(&self, now: Instant) {
        let mut sleepers = self.sleepers.borrow_mut();
        while sleepers
            .peek()
            .is_some_and(|Reverse(first)| first.due <= now)
        {
            let Some(Reverse(sleeper)) = sleepers.pop() else {
                return;
            };
            if let Some(waker) = sleeper.waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }
}

impl PartialEq for Sleeper {
    fn eq(&self, other: &Sleeper) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Sleeper {}

impl PartialOrd for Sleeper {
    fn partial_cmp(&self, other: &Sleeper) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Sleeper {
    fn cmp(&self, other: &Sleeper) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

#[cfg(target_os = "linux")]
mod timer {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    /// A kernel timer that becomes readable when it fires.
    pub(super) struct KernelTimer(AsyncFd<OwnedFd>);

    impl KernelTimer {
        #[allow(
            deprecated,
            reason = "unsound only for types that lie about their descriptor, which OwnedFd \
                      does not; the successor needs unsafe code"
        )]
        pub(super) fn new() -> io::Result<KernelTimer> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            Ok(KernelTimer(AsyncFd::with_interest(fd, Interest::READABLE)?))
        }

        pub(super) fn set(&self, due: Instant) -> io::Result<()> {
            let wait = due.saturating_duration_since(Instant::now());
            // Zero would switch the timer off.
            let wait = wait.max(Duration::from_nanos(1));
            let zero = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let once = Itimerspec {
                it_interval: zero,
                it_value: Timespec {
                    tv_sec: wait.as_secs() as _,
                    tv_nsec: wait.subsec_nanos() as _,
                },
            };
            timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
            Ok(())
        }

        pub(super) async fn fired(&self) -> io::Result<()> {
            loop {
                let mut ready = self.0.readable().await?;
                let read = |fd: &AsyncFd<OwnedFd>| {
                    let mut expirations = [0; 8];
                    Ok(rustix::io::read(fd.get_ref(), &mut expirations)?)
                };
                if let Ok(result) = ready.try_io(read) {
                    return result.map(drop);
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod timer {
    use std::cell::Cell;
    use std::io;
    use std::time::Instant;

    use tokio::sync::Notify;

    /// Timer of the asynchronous runtime. Its resolution is only a millisecond, but it is available
    /// on every system.
    pub(super) struct RuntimeTimer {
        due: Cell<Option<Instant>>,
        changed: Notify,
    }

    impl RuntimeTimer {
        pub(super) fn new() -> io::Result<RuntimeTimer> {
            Ok(RuntimeTimer {
                due: Cell::new(None),
                changed: Notify::new(),
            })
        }

        pub(super) fn set(&self, due: Instant) -> io::Result<()> {
            self.due.set(Some(due));
            self.changed.notify_one();
            Ok(())
        }

        pub(super) async fn fired(&self) -> io::Result<()> {
            loop {
                let Some(due) = self.due.get() else {
                    self.changed.notified().await;
                    continue;
                };
                tokio::select! {
                    () = tokio::time::sleep_until(due.into()) => {
                        self.due.set(None);
                        return Ok(());
                    }
                    () = self.changed.notified() => {}
                }
            }
        }
    }
}

#[cfg(target_os = "linux")]
use timer::KernelTimer as Timer;
#[cfg(not(target_os = "linux"))]
use timer::RuntimeTimer as Timer;
