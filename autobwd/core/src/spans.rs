//! Spans and events of the crate `tracing`, with the feature of this name. Without it, they are nothing: not even their
//! fields are computed.

/// Enters a span that lasts until the end of the block: `span!("plan", operators = count)`.
#[doc(hidden)]
#[macro_export]
#[cfg(feature = "tracing")]
macro_rules! __span {
    ($($span:tt)*) => {
        let _span = $crate::__private::tracing::debug_span!($($span)*).entered();
    };
}

#[doc(hidden)]
#[macro_export]
#[cfg(not(feature = "tracing"))]
macro_rules! __span {
    ($($span:tt)*) => {};
}

/// An event for a text that users should read, if there is one.
#[doc(hidden)]
#[macro_export]
#[cfg(feature = "tracing")]
macro_rules! __warn {
    ($text:expr) => {
        if let Some(text) = $text {
            $crate::__private::tracing::warn!("{text}");
        }
    };
}

#[doc(hidden)]
#[macro_export]
#[cfg(not(feature = "tracing"))]
macro_rules! __warn {
    ($text:expr) => {};
}
