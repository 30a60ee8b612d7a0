//! Tests across the crates of autobwd, for everything that needs registered operators: inside `autobwd`, the crate is
//! compiled twice, and operators register with the other copy.

/// The examples of the README are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

#[cfg(doctest)]
pub mod book;

// Named so that every binary and test that uses this crate links the operators.
use autobwd_ops as _;

pub mod checksum;
pub mod conformance;
pub mod fuzz;
pub mod onnx;
pub mod training_case;
pub mod tutorial;

/// All samples of the library.
///
/// # Panics
/// No samples are linked, so that a test of all of them would pass without any.
#[track_caller]
pub fn linked_samples() -> Vec<autobwd::check::Sample> {
    let samples = autobwd::check::samples();
    assert!(
        !samples.is_empty(),
        "no samples are linked: a release build needs the feature `samples`, `cargo test --release --features autobwd/samples`"
    );
    samples
}

/// Compares with a file of the repository; `UPDATE=1 cargo test` rewrites it.
///
/// # Panics
/// The file differs.
#[track_caller]
pub fn compare(path: &str, expected: &str) {
    let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, expected).expect("tests may write their folder");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "{path} is out of date: run the test with `UPDATE=1`; it should be\n{expected}"
    );
}

/// Reruns the tests of the current binary that have `filter` in their names, with the instruction set `isa`: `baseline`
/// or `avx2`, as in `AUTOBWD_ISA`.
///
/// # Errors
/// Their output, if one of them fails or there are none.
pub fn run_again(isa: &str, filter: &str) -> Result<(), String> {
    let binary = std::env::current_exe().map_err(|e| e.to_string())?;
    let output = std::process::Command::new(binary).arg(filter).env("AUTOBWD_ISA", isa).output();
    let output = output.map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && !text.contains("running 0 tests") {
        return Ok(());
    }
    Err(format!("with {isa}:\n{text}{}", String::from_utf8_lossy(&output.stderr)))
}
