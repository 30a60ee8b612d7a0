//! Every sample row of every operator is a named test: `cargo test -p autobwd-tests --test samples relu`.

use std::collections::HashSet;

use autobwd::{OpInfo, OpInfoMap, Schema, check};
use autobwd_ops as _;
use libtest_mimic::{Arguments, Trial};

fn main() {
    let samples = check::samples();
    let sampled: HashSet<_> = samples.iter().map(check::Sample::op).collect();
    let mut trials = vec![Trial::test("every_operator_has_a_sample", move || complete(&sampled))];
    let mut row = 0;
    let mut last = "";
    for sample in samples {
        row = if sample.op() == last { row + 1 } else { 0 };
        last = sample.op();
        let name = format!("{}::{row}", sample.op());
        trials.push(Trial::test(name, move || {
            check::check_sample(&sample)?;
            Ok(())
        }));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

/// An operator without sample row is not tested. Gradient operators are, through the operators they belong to.
fn complete(sampled: &HashSet<&str>) -> Result<(), libtest_mimic::Failed> {
    let is_gradient = |schema: &Schema| schema.inputs.iter().any(|slot| slot.name.ends_with("@GRAD"));
    let schemas = OpInfoMap::linked()?.iter().map(OpInfo::schema);
    let missing = schemas.filter(|s| !sampled.contains(s.name) && !is_gradient(s)).map(|s| s.name);
    let missing: Vec<_> = missing.collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("no sample rows for {}", missing.join(", ")).into()) }
}
