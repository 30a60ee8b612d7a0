//! The version of the arithmetic.

/// The version of the arithmetic: the bits of a result are a function of program, data, seeds and this version.
///
/// Threads, instruction sets, sizes of caches and the system's mathematical functions change no bit, and neither does
/// the number of rows that a product is computed with. Only the payloads of NaN are not promised. A change of the
/// library that changes a bit of any result raises the version; `tests/bits` compares the results of each operator with
/// the results of the version. Files of training runs contain the version that they were computed with.
pub const ARITHMETIC_VERSION: u32 = 2;
