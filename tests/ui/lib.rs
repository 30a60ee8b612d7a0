//! The package of the test `ui`; it has nothing of its own.
