//! The command `autobwd` with the operator library.

use std::process::ExitCode;

fn main() -> ExitCode {
    autobwd_cli::main_with(env!("CARGO_BIN_NAME"))
}
