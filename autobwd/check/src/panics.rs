//! Conversion of panics into errors with their source lines.

use std::{
    cell::{Cell, RefCell},
    panic::{self, AssertUnwindSafe, PanicHookInfo},
    sync::Once,
};

use super::function::failure;
use autobwd_core::Result;

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static CAUGHT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Converts a panic of this thread into an error with its message and source line; suppresses the report on stderr.
pub(super) fn catch_panic<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| if CATCHING.get() { note(info) } else { others(info) }));
    });
    let outer = CATCHING.replace(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(outer);
    outcome.unwrap_or_else(|_| Err(failure(CAUGHT.take())))
}

fn note(info: &PanicHookInfo<'_>) {
    let message = info.payload_as_str().unwrap_or("a value that is not text");
    let at = info.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
    CAUGHT.set(format!("a panic{at}: {message}"));
}
