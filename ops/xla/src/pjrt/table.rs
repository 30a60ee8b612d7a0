//! Calls of the plugin's functions, and their errors.

#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    fmt, hint,
    ptr::NonNull,
    slice,
    time::{Duration, Instant},
};

use autobwd::{Error, ErrorKind, Result};

use super::sys::{
    Api, ErrorDestroy, ErrorGetCode, ErrorMessage, EventAwait, EventDestroy, EventIsReady, FunctionArguments,
    RawError, RawEvent, code,
};

/// How long a thread asks for an event before it sleeps: to wake it takes longer than a small program.
const SPIN: Duration = Duration::from_micros(50);

/// The function table of a loaded plugin.
#[derive(Clone, Copy)]
pub(super) struct Table(NonNull<Api>);

// SAFETY: the table is not written after the plugin is loaded, and plugins are never unloaded. Its functions may be called
// from several threads: JAX calls them without the lock of its interpreter.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

/// The error of a function: its code and its message.
pub(super) struct PluginError {
    code: u32,
    message: String,
}

impl PluginError {
    /// As an error of autobwd; `doing` says what has failed.
    pub(super) fn error(self, doing: impl fmt::Display) -> Error {
        self.error_of(ErrorKind::Device, doing)
    }

    /// As [`error`](PluginError::error), of this kind unless memory has run out.
    pub(super) fn error_of(self, kind: ErrorKind, doing: impl fmt::Display) -> Error {
        let kind = if self.code == code::RESOURCE_EXHAUSTED { ErrorKind::OutOfMemory } else { kind };
        Error::new(kind, format!("{doing}: {}", self.message.trim_end()))
    }

    /// Whether the plugin lacks the function.
    pub(super) fn is_unimplemented(&self) -> bool {
        self.code == code::UNIMPLEMENTED
    }
}

/// An object of the plugin.
pub(super) struct Handle<T>(NonNull<T>);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Handle<T> {
        *self
    }
}
impl<T> Copy for Handle<T> {}
impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Handle<T>) -> bool {
        self.0 == other.0
    }
}

// SAFETY: objects of the plugin are seen only through its functions, which may be called from several threads (`Table`).
// None is bound to the thread that made it.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// The object that a function has returned.
    pub(super) fn new(pointer: *mut T, what: &str) -> Result<Handle<T>> {
        match NonNull::new(pointer) {
            Some(pointer) => Ok(Handle(pointer)),
            None => Err(Error::new(ErrorKind::Device, format!("the plugin has returned no {what}"))),
        }
    }

    pub(super) fn raw(self) -> *mut T {
        self.0.as_ptr()
    }
}

impl Table {
    /// The table at this address.
    ///
    /// # Safety
    /// The address is one that `GetPjrtApi` of a plugin has returned; the plugin is never unloaded.
    pub(super) unsafe fn new(api: NonNull<Api>) -> Table {
        Table(api)
    }

    /// The address, by which tables are told apart.
    pub(super) fn address(self) -> usize {
        self.0.as_ptr() as usize
    }

    /// Major and minor version of the interface.
    pub(super) fn version(self) -> (i32, i32) {
        // SAFETY: the table begins with its version (`new`), at an offset that is the same in all versions.
        let version = unsafe { &(*self.0.as_ptr()).version };
        (version.major, version.minor)
    }

    /// A function of the table.
    fn function<A: FunctionArguments>(self) -> Result<NonNull<c_void>, PluginError> {
        let table = self.0.as_ptr();
        // SAFETY: the table begins with its size (`new`).
        let bytes = unsafe { (*table).struct_size }.saturating_sub(std::mem::offset_of!(Api, functions));
        let entry = match A::SLOT < bytes / size_of::<*const c_void>() {
            // SAFETY: the table has more than `SLOT` functions behind its head.
            true => unsafe { (&raw const (*table).functions).cast::<*mut c_void>().add(A::SLOT).read() },
            false => std::ptr::null_mut(),
        };
        NonNull::new(entry).ok_or_else(|| PluginError {
            code: code::UNIMPLEMENTED,
            message: format!("the plugin lacks the function {}", A::NAME),
        })
    }

    /// Calls a function.
    ///
    /// # Safety
    /// The handles among the arguments are alive, and every pointer and size among them describes memory that the
    /// function may read, or write where it says so.
    pub(super) unsafe fn call<A: FunctionArguments>(self, arguments: &mut A) -> Result<(), PluginError> {
        // SAFETY: the caller's promise; the function has just returned the error.
        unsafe {
            match NonNull::new(self.call_raw(arguments)?) {
                None => Ok(()),
                Some(error) => Err(self.take(error)),
            }
        }
    }

    /// Calls a function and returns its error, or null.
    ///
    /// # Safety
    /// As [`call`](Table::call).
    unsafe fn call_raw<A: FunctionArguments>(self, arguments: &mut A) -> Result<*mut RawError, PluginError> {
        let function = self.function::<A>()?;
        // SAFETY: `FunctionArguments` says that the function at this slot takes such a struct. All of them return an
        // error but the two that `take` calls otherwise.
        let function: unsafe extern "C" fn(*mut A) -> *mut RawError =
            unsafe { std::mem::transmute(function) };
        // SAFETY: the caller's promise.
        Ok(unsafe { function(arguments) })
    }

    /// Calls a function that returns nothing.
    ///
    /// # Safety
    /// As [`call`](Table::call).
    unsafe fn call_void<A: FunctionArguments>(self, arguments: &mut A) -> Result<(), PluginError> {
        let function = self.function::<A>()?;
        // SAFETY: as in `call_raw`; the two functions for which this is used return nothing.
        let function: unsafe extern "C" fn(*mut A) = unsafe { std::mem::transmute(function) };
        // SAFETY: the caller's promise.
        unsafe { function(arguments) };
        Ok(())
    }

    /// Reads and destroys an error.
    ///
    /// # Safety
    /// The error is alive; it is not used afterwards.
    unsafe fn take(self, error: NonNull<RawError>) -> PluginError {
        let error = error.as_ptr();
        let mut message = ErrorMessage { error, ..Default::default() };
        let mut status = ErrorGetCode { error, ..Default::default() };
        let mut destroy = ErrorDestroy { error, ..Default::default() };
        // SAFETY: the error is alive until it is destroyed, and so is its message, which is copied before.
        unsafe {
            let has_message = self.call_void(&mut message).is_ok();
            // An error about the error leaks, and leaves the code 0.
            let _ = self.call_raw(&mut status);
            let message =
                if has_message { text(message.message, message.message_size) } else { String::new() };
            // Without the function, the error leaks.
            let _ = self.call_void(&mut destroy);
            PluginError { code: status.code, message }
        }
    }

    /// Waits for an event, and destroys it.
    ///
    /// # Safety
    /// The event is alive or null; it is not used afterwards.
    pub(super) unsafe fn await_event(self, event: *mut RawEvent) -> Result<(), PluginError> {
        if event.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe {
            let (start, mut asked) = (Instant::now(), EventIsReady { event, ..Default::default() });
            while self.call(&mut asked).is_ok() && !asked.is_ready && start.elapsed() < SPIN {
                hint::spin_loop();
            }
            let awaited = self.call(&mut EventAwait { event, ..Default::default() });
            let destroyed = self.call(&mut EventDestroy { event, ..Default::default() });
            awaited.and(destroyed)
        }
    }
}

/// A copy of the plugin's text.
///
/// # Safety
/// The pointer is null, or that many bytes are readable.
pub(super) unsafe fn text(pointer: *const u8, bytes: usize) -> String {
    // SAFETY: the caller's promise.
    String::from_utf8_lossy(unsafe { array(pointer, bytes) }).into_owned()
}

/// The elements of the plugin's array.
///
/// # Safety
/// The pointer is null, or that many elements are readable while the result is used.
pub(super) unsafe fn array<'a, T>(pointer: *const T, elements: usize) -> &'a [T] {
    match pointer.is_null() || elements == 0 {
        true => &[],
        // SAFETY: the caller's promise.
        false => unsafe { slice::from_raw_parts(pointer, elements) },
    }
}
