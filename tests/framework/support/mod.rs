//! What tests of this crate share: tests import from here, and not from each other.

pub(crate) mod checks;
pub(crate) mod control_flow;
pub(crate) mod derivatives;
pub(crate) mod import_graph;
pub(crate) mod nets;
pub(crate) mod networks;
pub(crate) mod operators;
pub(crate) mod programs;
pub(crate) mod prose;
pub(crate) mod random_programs;
pub(crate) mod recomputation;
pub(crate) mod reference_differentiator;
pub(crate) mod sources;
pub(crate) mod tape;

pub(crate) use autobwd_tests::compare;

/// Whether an operator is from the core or from `ops`.
pub(crate) fn is_of_library(info: &autobwd::op::OpInfo) -> bool {
    info.crate_name() == "autobwd-ops" || info.schema().file.contains("/operators/")
}

/// The values of a scope without sums of gradients, by name.
pub(crate) fn kept(scope: &autobwd::Scope) -> Vec<(String, Vec<f64>)> {
    let own = scope.iter().filter(|(name, _)| !name.ends_with("@MERGED"));
    let mut all: Vec<_> = own.map(|(name, value)| (name.to_string(), value.to_f64s())).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}
