//! `conformance FOLDER [--filter TEXT]`: compares autobwd with recorded cases of the reference implementation.

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use autobwd::OpInfoMap;
use autobwd_tests::conformance::{Summary, load_folder, run};

const USAGE: &str = "usage: conformance FOLDER [--filter TEXT]";

fn main() -> ExitCode {
    match start() {
        Ok(summary) if summary.failed == 0 => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(2)
        }
    }
}

fn start() -> Result<Summary, Box<dyn std::error::Error>> {
    let (folder, filter) = arguments(std::env::args().skip(1))?;
    let entries = load_folder(&folder, &filter)?;
    let mut out = io::stdout().lock();
    let summary = run(&entries, OpInfoMap::linked()?, &mut out)?;
    out.flush()?;
    Ok(summary)
}

fn arguments(mut given: impl Iterator<Item = String>) -> Result<(PathBuf, String), String> {
    let (mut folder, mut filter) = (None, String::new());
    while let Some(arg) = given.next() {
        match arg.as_str() {
            "--filter" => filter = given.next().ok_or(USAGE)?,
            text if text.starts_with("--filter=") => filter = text["--filter=".len()..].into(),
            text if text.starts_with('-') || folder.is_some() => return Err(USAGE.into()),
            text => folder = Some(PathBuf::from(text)),
        }
    }
    Ok((folder.ok_or(USAGE)?, filter))
}
