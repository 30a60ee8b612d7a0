//! Every sample of every operator is a named test: `cargo test -p autobwd-tests --test samples relu`.

use autobwd::check;
use autobwd_ops as _;
use libtest_mimic::{Arguments, Trial};

#[global_allocator]
static ALLOCATOR: check::CountingAllocator = check::CountingAllocator;

/// Expected warnings: operator, and text of the warning.
const KNOWN: &[(&str, &str)] = &[
    // Updates are not differentiated.
    ("adadelta", "the operator declares `NoGrad`"),
    ("adagrad", "the operator declares `NoGrad`"),
    ("adam", "the operator declares `NoGrad`"),
    ("adamax", "the operator declares `NoGrad`"),
    ("adamw", "the operator declares `NoGrad`"),
    ("decayed_adagrad", "the operator declares `NoGrad`"),
    ("lamb", "the operator declares `NoGrad`"),
    ("lars_momentum", "the operator declares `NoGrad`"),
    ("momentum", "the operator declares `NoGrad`"),
    ("rmsprop", "the operator declares `NoGrad`"),
    ("sgd", "the operator declares `NoGrad`"),
    ("matmul_v2_grad_sgd", "the operator declares `NoGrad`"),
    // The rank of the output depends on these dimensions.
    ("gather_nd", "an error where dimensions are unknown"),
    ("squeeze2", "an error where dimensions are unknown"),
    // A variance; small negative ones are possible because of epsilon.
    ("batch_norm", "input `Variance` has no negative numbers"),
];

fn main() {
    let samples = check::samples();
    let mut trials = vec![Trial::test("samples_of_the_library_leave_nothing_out", || {
        let (mut gaps, mut corners) = (vec![], vec![]);
        for package in ["autobwd-core", "autobwd-ops"] {
            let found = check::check_coverage(package)?;
            gaps.extend(found.gaps);
            corners.extend(found.corners);
        }
        let known = |said: &str| {
            KNOWN.iter().any(|(op, text)| said.contains(&format!("`{op}`")) && said.contains(text))
        };
        gaps.extend(corners.into_iter().filter(|corner| !known(corner)));
        if gaps.is_empty() { Ok(()) } else { Err(gaps.join("\n").into()) }
    })];
    let mut row = 0;
    let mut last = "";
    for sample in samples {
        row = if sample.op() == last { row + 1 } else { 0 };
        last = sample.op();
        let name = format!("{}::{row}", sample.op());
        trials.push(Trial::test(name, move || {
            let checked = check::check_sample(&sample)?;
            let new = |warning: &&String| {
                !KNOWN.iter().any(|(op, text)| *op == sample.op() && warning.contains(text))
            };
            match (checked.warnings.iter().find(new), checked.elements, checked.second_order) {
                (Some(warning), ..) => Err(warning.into()),
                (_, 1.., 0) => Err("there is no second order to check".into()),
                _ => Ok(()),
            }
        }));
    }
    // Kernels and formulas are chosen for the machine; this also runs those of other instruction sets.
    if std::env::var_os("AUTOBWD_ISA").is_none() {
        for isa in ["avx2", "baseline"] {
            let again = move || Ok(autobwd_tests::run_again(isa, "::")?);
            trials.push(Trial::test(format!("every_sample_with_{isa}"), again));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}
