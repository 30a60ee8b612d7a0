//! Bits of results: the same with each instruction set, on any number of threads, and as in the file of hashes.
//!
//! The instruction set is chosen once a process, so each part of the comparison runs in a process of its own for each of
//! them, which prints hashes. `UPDATE=1 cargo test -p autobwd-tests --test bits` rewrites the hashes of the present
//! version of the arithmetic. A result of this library that changes its bits raises
//! [`ARITHMETIC_VERSION`](autobwd::exec::ARITHMETIC_VERSION); the hashes of other versions stay in the file.

mod collection;
mod comparison;
mod formulas;
mod hashes;
mod instruction_sets;
mod models;
mod operators;
mod parts;
mod products;
mod rows;
mod workloads;

use std::process::ExitCode;

use autobwd_ops as _;
use libtest_mimic::{Arguments, Trial};

use comparison::{compare, print_table};
use instruction_sets::InstructionSet;
use parts::{CHILD, PARTS, print_results};

fn main() -> ExitCode {
    if let Some(part) = std::env::var_os(CHILD) {
        return print_results(&part.to_string_lossy());
    }
    let mut trials = vec![];
    for part in PARTS {
        for isa in InstructionSet::ALL {
            let reason = isa.is_missing().or(part.left_out(isa));
            let trial =
                Trial::test(format!("{}::{}", part.name, isa.name()), move || Ok(compare(part, isa)?));
            trials.push(trial.with_ignored_flag(reason.is_some()).with_kind(reason.unwrap_or_default()));
        }
    }
    let outcome = libtest_mimic::run(&Arguments::from_args(), trials);
    print_table();
    outcome.exit_code()
}
