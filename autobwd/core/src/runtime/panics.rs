//! Panics of code that users and authors of operators supply, with their places in the source.
//!
//! A panic in an author's code (shape rule, kernel, gradient rule, composition) becomes an error that names the code.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    fmt,
    panic::{self, AssertUnwindSafe, PanicHookInfo},
    sync::Once,
    thread,
};

use crate::{Error, ErrorKind};

/// A panic that was caught.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panic {
    message: String,
    /// `src/lib.rs:7`, unless another panic hook was installed later.
    place: Option<String>,
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(place) => write!(f, "panicked at {place}: {}", self.message),
            None => write!(f, "panicked: {}", self.message),
        }
    }
}

impl Panic {
    /// The error of this panic; `whose` says whose code it is: `` the data set ``.
    pub fn error(&self, whose: &str) -> Error {
        Error::new(ErrorKind::Panic, format!("{whose} {self}"))
    }

    /// The error of this panic in a part of an operator: its shape rule, say.
    #[cold]
    pub(crate) fn of_operator(&self, name: &str, place: &str, part: &str) -> Error {
        let text = format!("the {part} of `{name}` {self}; the operator, registered by {place}, is at fault");
        Error::new(ErrorKind::Panic, text)
    }
}

/// What the panic hook does with a panic that will be caught.
#[derive(Clone, Copy, Default)]
pub(super) struct Catching {
    /// Whether it notes the place.
    notes: bool,
    /// Whether it reports nothing.
    pub(super) is_silent: bool,
}

impl Catching {
    /// The setting of this thread.
    pub(super) fn current() -> Catching {
        CATCHING.get()
    }

    /// Runs a part of the work of the thread that has this setting.
    pub(super) fn part<T>(self, work: impl FnOnce() -> T) -> Result<T, PartPanic> {
        // A panic that passes may have noted its place.
        let (own, passing) = (CATCHING.replace(self), PLACE.take());
        let outcome = panic::catch_unwind(AssertUnwindSafe(work));
        CATCHING.set(own);
        let place = PLACE.replace(passing);
        outcome.map_err(|payload| PartPanic { payload, place })
    }
}

/// A panic on its way to the thread that catches it.
pub(super) struct PartPanic {
    payload: Box<dyn Any + Send>,
    place: Option<String>,
}

impl PartPanic {
    /// Goes on with the panic in this thread.
    pub(super) fn resume(self) -> ! {
        PLACE.set(self.place);
        panic::resume_unwind(self.payload)
    }
}

thread_local! {
    static CATCHING: Cell<Catching> = const { Cell::new(Catching { notes: false, is_silent: false }) };
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs the code of a user; a panic is reported by the panic hook, and returned.
///
/// # Errors
/// A panic.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    catch(false, work)
}

/// As [`catch_panic`], without the report of the panic hook.
///
/// # Errors
/// A panic.
pub fn catch_panic_silently<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    catch(true, work)
}

fn catch<T>(silent: bool, work: impl FnOnce() -> T) -> Result<T, Panic> {
    install_hook();
    let catching = Catching { notes: true, is_silent: Catching::current().is_silent || silent };
    catching.part(work).map_err(|PartPanic { payload, place }| {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Panic { message: text.unwrap_or_else(|| "without a message".into()), place }
    })
}

/// Adds to the panic hook that it notes the place of panics that will be caught.
fn install_hook() {
    static HOOK: Once = Once::new();
    // The hook of a thread that panics cannot be changed.
    if !HOOK.is_completed() && !thread::panicking() {
        HOOK.call_once(|| {
            let others = panic::take_hook();
            panic::set_hook(Box::new(move |info| note(info, &others)));
        });
    }
}

fn note(info: &PanicHookInfo<'_>, others: &dyn Fn(&PanicHookInfo<'_>)) {
    let catching = Catching::current();
    if catching.notes {
        PLACE.set(info.location().map(|at| format!("{}:{}", at.file(), at.line())));
    }
    if !catching.is_silent {
        others(info);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_has_its_message_and_its_place() {
        let line = line!() + 1;
        let caught = catch_panic_silently(|| catch_panic(|| -> u8 { panic!("on {}", "purpose") }));
        let expected = format!("the test panicked at {}:{line}: on purpose", file!());
        assert_eq!(caught.unwrap().unwrap_err().error("the test").to_string(), expected);
        let payload = catch_panic_silently(|| panic::panic_any(7)).unwrap_err();
        assert!(payload.to_string().ends_with(": without a message"), "{payload}");
        assert_eq!(catch_panic(|| 3), Ok(3));
    }

    #[test]
    fn place_belongs_to_its_panic() {
        struct CatchOnDrop;
        impl Drop for CatchOnDrop {
            fn drop(&mut self) {
                assert!(catch_panic(|| ()).is_ok());
            }
        }
        // One that the work itself has caught is no other's.
        let caught = catch_panic_silently(|| drop(panic::catch_unwind(|| panic!("inner"))));
        assert_eq!(caught, Ok(()));
        let passed = catch_panic_silently(|| panic::resume_unwind(Box::new("outer"))).unwrap_err();
        assert_eq!(passed.to_string(), "panicked: outer");
        // Work that succeeds while a panic passes leaves it its place.
        let line = line!() + 3;
        let passed = catch_panic_silently(|| {
            let _guard = CatchOnDrop;
            panic!("outer")
        });
        assert_eq!(passed.unwrap_err().to_string(), format!("panicked at {}:{line}: outer", file!()));
    }
}
