//! The runner of tests, and files that tests compare texts with.

mod runner;

pub(crate) use runner::{plugin, run, tests};

/// Compares a text with a file of this folder, or writes it.
#[track_caller]
pub(crate) fn compare(file: &str, text: &str) {
    let path = format!("{}/tests/{file}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, text).expect("tests may write their folder");
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(known == text, "{path} is out of date: run the test with `UPDATE=1`; it should be\n{text}");
}
