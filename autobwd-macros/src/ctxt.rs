//! Collects the mistakes of one item, so that all of them are reported together.
//!
//! Must not decide what a mistake is.

use std::{cell::RefCell, fmt::Display, thread};

use proc_macro2::Span;
use quote::ToTokens;
use syn::Error;

/// Mistakes found so far. Dropping it without [`check`](ErrorSink::check) is a bug, and panics.
pub(crate) struct ErrorSink {
    /// `None` after the check. A cell, so that readers can report while they borrow the item.
    errors: RefCell<Option<Vec<Error>>>,
}

impl ErrorSink {
    pub(crate) fn new() -> ErrorSink {
        ErrorSink { errors: RefCell::new(Some(Vec::new())) }
    }

    /// Reports a mistake with the caret on these tokens.
    pub(crate) fn error(&self, at: impl ToTokens, message: impl Display) {
        self.push(Error::new_spanned(at, message));
    }

    /// Reports a missing argument with the caret on the whole attribute.
    pub(crate) fn missing(&self, message: impl Display) {
        self.push(Error::new(Span::call_site(), message));
    }

    pub(crate) fn push(&self, error: Error) {
        if let Some(errors) = &mut *self.errors.borrow_mut() {
            errors.push(error);
        }
    }

    /// All mistakes as one error.
    pub(crate) fn check(self) -> syn::Result<()> {
        let errors = self.errors.take().unwrap_or_default();
        let all = errors.into_iter().reduce(|mut all, error| {
            all.combine(error);
            all
        });
        all.map_or(Ok(()), Err)
    }
}
impl Drop for ErrorSink {
    fn drop(&mut self) {
        if !thread::panicking() && self.errors.borrow().is_some() {
            panic!("autobwd bug: the errors of an item were not reported");
        }
    }
}
