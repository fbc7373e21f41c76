//! The executor: one thread, one virtual clock, tasks in an order that follows from a seed.
//!
//! This is the one file of the workspace that knows madsim. It offers a run on a fresh thread, nodes that can be
//! killed, paused and resumed, time and sleeping; everything else of the simulation is ours.
//!
//! It must never leave a task behind: madsim does not free tasks that are unfinished when a run ends, so every node is
//! killed and a millisecond slept at the end, after a panic too.

use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use seriatim_core::env::Instant;
use seriatim_core::pipeline::is_in_stage;

#[cfg(not(madsim))]
compile_error!(
    "seriatim-sim is built without `--cfg madsim`. The workspace's .cargo/config.toml sets it, but a RUSTFLAGS \
     environment variable replaces the flags of that file: unset RUSTFLAGS, or add `--cfg madsim` to it. A workspace \
     that depends on this crate needs `[build] rustflags = [\"--cfg\", \"madsim\"]` in its own .cargo/config.toml."
);

/// A node of madsim: the tasks that die, pause and resume together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TaskGroup(madsim::task::NodeId);

/// The running executor. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Executor {
    handle: madsim::runtime::Handle,
    clock: madsim::time::TimeHandle,
    groups: Arc<Mutex<Vec<TaskGroup>>>,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Executor")
    }
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

const RUN_THREAD: &str = "seriatim-run";

/// Keeps the message and the place of a panic inside a run, and keeps it off the screen: the run reports it.
fn catch_messages() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name() == Some(RUN_THREAD) {
                // One of a stage is caught, and becomes the failure of its document.
                if is_in_stage() {
                    return;
                }
                PANIC.with(|slot| slot.borrow_mut().get_or_insert_with(|| info.to_string()).truncate(4_000));
            } else {
                previous(info);
            }
        }));
    });
}

/// Runs the future that `make` gives to its end, on a fresh thread, with `seed` ordering the tasks. A panic of any task
/// ends the run and is the `Err`, with its place.
///
/// A fresh thread a run, since std's hash maps keep per-thread state that the first run of a thread seeds.
pub(crate) fn run<T, F, Fut>(seed: u64, make: F) -> Result<T, String>
where
    F: FnOnce(Executor) -> Fut + Send,
    Fut: Future<Output = T>,
    T: Send,
{
    catch_messages();
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(RUN_THREAD.into()).spawn_scoped(scope, || on_thread(seed, make));
        match thread.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err("the run's thread panicked while it was cleaned up".into()),
            Err(error) => Err(format!("no thread for the run: {error}")),
        }
    })
}

fn on_thread<T, F, Fut>(seed: u64, make: F) -> Result<T, String>
where
    F: FnOnce(Executor) -> Fut,
    Fut: Future<Output = T>,
{
    let runtime = madsim::runtime::Runtime::with_seed_and_config(seed, madsim::Config::default());
    let groups = Arc::new(Mutex::new(Vec::new()));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let executor = Executor {
                handle: madsim::runtime::Handle::current(),
                clock: madsim::time::TimeHandle::current(),
                groups: groups.clone(),
            };
            make(executor).await
        })
    }));
    let cleaned = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let handle = madsim::runtime::Handle::current();
            for group in lock(&groups).drain(..) {
                handle.kill(group.0);
            }
            madsim::time::sleep(Duration::from_millis(1)).await;
        });
    }));
    let message = || PANIC.with(|slot| slot.borrow_mut().take()).unwrap_or_else(|| "panic without a message".into());
    match (outcome, cleaned) {
        (Ok(value), Ok(())) => Ok(value),
        (Err(_), _) => Err(message()),
        (Ok(_), Err(_)) => Err(format!("while the run was cleaned up: {}", message())),
    }
}

/// Locks, whether or not a panic of another task poisoned it: after a panic only the cleaning up still runs.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Executor {
    /// Virtual time since the run began.
    pub(crate) fn now(&self) -> Instant {
        Instant::from_micros(u64::try_from(self.clock.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// A new group of tasks.
    pub(crate) fn task_group(&self, name: &str) -> TaskGroup {
        let group = TaskGroup(self.handle.create_node().name(name).build().id());
        lock(&self.groups).push(group);
        group
    }

    /// Runs `task` in `group`. Does nothing when the group was killed.
    pub(crate) fn spawn(&self, group: TaskGroup, task: impl Future<Output = ()> + Send + 'static) {
        if !self.handle.is_exit(group.0)
            && let Some(node) = self.handle.get_node(group.0)
        {
            drop(node.spawn(task));
        }
    }

    /// Stops the tasks of `group` for good. Their futures are dropped soon after, which runs their `Drop`: a handle
    /// must check by itself that its process is dead.
    pub(crate) fn kill(&self, group: TaskGroup) {
        self.handle.kill(group.0);
    }

    /// Stops the tasks of `group` until resumed. What they wait for goes on.
    pub(crate) fn pause(&self, group: TaskGroup) {
        self.handle.pause(group.0);
    }

    /// Resumes the tasks of `group`.
    pub(crate) fn resume(&self, group: TaskGroup) {
        self.handle.resume(group.0);
    }

    /// Completes at `deadline`, at once when that is past. To the microsecond, unlike madsim's own sleep.
    pub(crate) fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep { clock: self.clock.clone(), deadline: Duration::from_micros(deadline.as_micros()), slot: None }
    }

    /// Completes `duration` from now.
    pub(crate) fn sleep(&self, duration: Duration) -> Sleep {
        Sleep { clock: self.clock.clone(), deadline: self.clock.elapsed() + duration, slot: None }
    }
}

/// A sleep that forgets its task when it is dropped. madsim cannot cancel a timer, and one that fires for a task which
/// waits no longer would cost a poll, and hold the task's memory until then.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Sleep {
    clock: madsim::time::TimeHandle,
    deadline: Duration,
    slot: Option<Arc<Slot>>,
}

impl std::fmt::Debug for Sleep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sleep").field("until", &self.deadline).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Slot(Mutex<Option<Waker>>);

impl Wake for Slot {
    fn wake(self: Arc<Self>) {
        let waker = lock(&self.0).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let elapsed = self.clock.elapsed();
        if elapsed >= self.deadline {
            return Poll::Ready(());
        }
        if let Some(slot) = &self.slot {
            *lock(&slot.0) = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let slot = Arc::new(Slot(Mutex::new(Some(cx.waker().clone()))));
        let waker = Waker::from(slot.clone());
        // Polling arms the timer; `reset` takes madsim's floor of a millisecond away.
        let mut timer = self.clock.sleep(Duration::ZERO);
        let deadline = self.clock.now_instant() + (self.deadline - elapsed);
        Pin::new(&mut timer).reset(deadline);
        let armed = Pin::new(&mut timer).poll(&mut Context::from_waker(&waker));
        debug_assert!(armed.is_pending(), "the deadline is ahead");
        self.slot = Some(slot);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot {
            lock(&slot.0).take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_end_at_their_microsecond_and_in_order() {
        let outcome = run(7, |executor| async move {
            let start = executor.now();
            executor.sleep(Duration::from_micros(250)).await;
            let short = executor.now().since(start);
            executor.sleep(Duration::from_secs(3_600)).await;
            (short, executor.now().since(start))
        });
        let (short, long) = outcome.expect("no panic");
        assert!((250..=251).contains(&short.as_micros()), "{short:?}");
        assert_eq!(long.as_secs(), 3_600);
    }

    #[test]
    fn a_panic_of_a_task_is_the_runs_error_with_its_place() {
        let outcome = run(1, |executor| async move {
            let group = executor.task_group("victim");
            executor.spawn(group, async { panic!("the stage fell over") });
            executor.sleep(Duration::from_secs(1)).await;
        });
        let message = outcome.expect_err("it panicked");
        assert!(message.contains("the stage fell over") && message.contains("executor.rs"), "{message}");
    }

    #[test]
    fn a_killed_group_runs_nothing_and_a_paused_one_later() {
        let ticks = run(1, |executor| async move {
            let count = Arc::new(Mutex::new([0; 2]));
            let groups = [executor.task_group("killed"), executor.task_group("paused")];
            for (index, group) in groups.into_iter().enumerate() {
                let (count, inner) = (count.clone(), executor.clone());
                executor.spawn(group, async move {
                    loop {
                        inner.sleep(Duration::from_millis(10)).await;
                        lock(&count)[index] += 1;
                    }
                });
            }
            executor.sleep(Duration::from_millis(55)).await;
            executor.kill(groups[0]);
            executor.pause(groups[1]);
            executor.sleep(Duration::from_secs(1)).await;
            let held = *lock(&count);
            executor.resume(groups[1]);
            executor.sleep(Duration::from_millis(100)).await;
            (held, *lock(&count))
        });
        let (held, after) = ticks.expect("no panic");
        assert_eq!(held, [5, 5]);
        assert!(after[0] == 5 && after[1] > 10, "{after:?}");
    }
}
