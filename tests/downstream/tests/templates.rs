//! The sources of `templates`, compiled here rather than as packages of their own, which would build the library once more.

#[path = "../../../templates/training/src/classifier.rs"]
mod classifier;
#[path = "../../../templates/operator/src/lib.rs"]
pub mod operator;

use autobwd::check::{check_sample, samples};

#[test]
fn samples_of_the_operator_template_hold() -> autobwd::Result<()> {
    let own: Vec<_> = samples().into_iter().filter(|sample| sample.op() == "soft_cap").collect();
    assert_eq!(own.len(), 3);
    own.iter().try_for_each(|sample| check_sample(sample).map(drop))
}
