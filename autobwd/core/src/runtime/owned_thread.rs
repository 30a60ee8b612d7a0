//! Threads that end with their owner, in the process that started them.

use std::{io, process, thread};

/// A thread that its owner joins. A forked child has the owner, but not the thread: there, nothing is joined.
#[derive(Debug)]
pub struct OwnedThread {
    handle: Option<thread::JoinHandle<()>>,
    /// The process that has the thread.
    process: u32,
}

impl OwnedThread {
    /// Starts a thread of that name.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn start(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<OwnedThread> {
        let handle = thread::Builder::new().name(name).spawn(work)?;
        Ok(OwnedThread { handle: Some(handle), process: process::id() })
    }

    /// Whether this process has the thread.
    pub fn is_here(&self) -> bool {
        self.process == process::id()
    }

    /// Waits for the end of the thread, if this process has it.
    ///
    /// # Errors
    /// The payload of a panic of the thread.
    pub fn join(mut self) -> thread::Result<()> {
        match self.handle.take() {
            Some(handle) if self.is_here() => handle.join(),
            // The system refuses to detach a thread that does not exist.
            handle => {
                std::mem::forget(handle);
                Ok(())
            }
        }
    }
}

impl Drop for OwnedThread {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take().filter(|_| !self.is_here()) {
            std::mem::forget(handle);
        }
    }
}
