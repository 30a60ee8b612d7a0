//! The package of the test `ui`, without code of its own.
