//! Threads of the operating system that share the work of a run. Each thread serves its own
//! connections and keeps its own measurements, so that no thread waits for another.

use std::io;
use std::thread::{self, JoinHandle};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// A thread of the operating system that sends operations to stores.
#[derive(Clone, Debug, Default)]
pub struct Core {
    /// Index of the thread.
    pub number: usize,
    /// Runtime of the thread; `None` for the runtime of the caller.
    runtime: Option<Handle>,
}

impl Core {
    /// Adds a task to a set. The task runs on this thread.
    pub fn spawn_into<T: Send + 'static>(
        &self,
        tasks: &mut JoinSet<T>,
        task: impl Future<Output = T> + Send + 'static,
    ) {
        match &self.runtime {
            Some(runtime) => tasks.spawn_on(task, runtime),
            None => tasks.spawn(task),
        };
    }
}

/// All threads of a run. When this value is dropped, the threads and their tasks end.
#[derive(Debug)]
pub struct Cores {
    cores: Vec<Core>,
    threads: Vec<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Cores {
    /// Starts `count` threads. If `count` is 1, no thread is started, and the caller's own thread
    /// is used.
    ///
    /// # Errors
    /// If the operating system refuses to start a thread.
    pub fn start(count: usize) -> io::Result<Cores> {
        let mut cores = Cores {
            cores: vec![Core::default()],
            threads: Vec::new(),
        };
        if count > 1 {
            cores.cores.clear();
            (0..count).try_for_each(|number| cores.add(number))?;
        }
        Ok(cores)
    }

    fn add(&mut self, number: usize) -> io::Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name(format!("ycsb-{number}"))
            .spawn(move || {
                // The thread stops on a message, or when the sender of that message is dropped.
                let _ = runtime.block_on(stopped);
            })?;
        self.threads.push((stop, thread));
        self.cores.push(Core {
            number,
            runtime: Some(handle),
        });
        Ok(())
    }

    /// Returns the thread for the connection with the number `turn`. Connections are assigned to
    /// the threads in turn.
    pub fn round_robin(&self, turn: usize) -> &Core {
        &self.cores[turn % self.cores.len()]
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        for (stop, thread) in self.threads.drain(..) {
            let _ = stop.send(());
            // A panic of a task has been passed on already.
            let _ = thread.join();
        }
    }
}
