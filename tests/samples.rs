//! Every sample row of every operator is a named test: `cargo test -p autobwd-tests --test samples relu`.

use std::collections::HashSet;

use autobwd::{OpInfoMap, check};
use autobwd_ops as _;
use libtest_mimic::{Arguments, Trial};

fn main() {
    let samples = check::samples();
    let sampled: HashSet<_> = samples.iter().map(check::Sample::op).collect();
    let mut trials = vec![
        Trial::test("every_operator_has_a_sample", move || complete(&sampled)),
        Trial::test("samples_of_the_library_leave_nothing_out", || {
            Ok(check::check_crate("autobwd-ops").map(drop)?)
        }),
    ];
    let mut row = 0;
    let mut last = "";
    for sample in samples {
        row = if sample.op() == last { row + 1 } else { 0 };
        last = sample.op();
        let name = format!("{}::{row}", sample.op());
        trials.push(Trial::test(name, move || {
            let checked = check::check_sample(&sample)?;
            match (checked.elements, checked.second_order) {
                (1.., 0) => Err("there is no second order to check".into()),
                _ => Ok(()),
            }
        }));
    }
    // Kernels and formulas are chosen for the machine: those for others run here, too.
    if std::env::var_os("AUTOBWD_ISA").is_none() {
        for isa in ["avx2", "baseline"] {
            let again = move || Ok(autobwd_tests::run_again(isa, "::")?);
            trials.push(Trial::test(format!("every_sample_with_{isa}"), again));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

/// An operator without sample row is not tested. Gradient operators are, through the operators they belong to; loops,
/// branches and lists in `framework/control.rs`.
fn complete(sampled: &HashSet<&str>) -> Result<(), libtest_mimic::Failed> {
    let own = OpInfoMap::linked()?
        .iter()
        .filter(|info| !info.is_gradient() && !info.needs_program())
        .map(|info| info.schema().name);
    let missing: Vec<_> = own.filter(|name| !sampled.contains(name)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("no sample rows for {}", missing.join(", ")).into()) }
}
