//! Tests across the crates of autobwd. Everything that needs registered operators is tested here: inside `autobwd` the
//! crate is compiled twice, and operators register with the other copy.
