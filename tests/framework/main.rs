//! The framework over real operators: programs, backward parts, runs, and what is refused.

mod backward;
mod bad_input;
mod control;
mod draw;
mod edges;
mod explain;
mod finite;
mod fusion;
mod growing;
mod higher;
mod images;
mod kinks;
mod laws;
mod layers;
mod net;
mod net_bad_input;
mod net_laws;
mod norms;
mod numeric;
mod outer;
mod overwritten;
mod pictures;
mod plain;
mod programs;
mod promises;
mod recompute;
mod recurrent;
mod registry;
mod running;
mod sparse;
mod tape;
mod tape_control;
mod tape_laws;
mod tape_models;
mod tape_values;
mod unrolled;

/// Compares with a file that is part of the repository; `UPDATE=1 cargo test` rewrites it.
#[track_caller]
fn compare(path: &str, expected: &str) {
    let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "{path} is out of date: run `UPDATE=1 cargo test -p autobwd-tests --test framework`; it should be\n{expected}"
    );
}
