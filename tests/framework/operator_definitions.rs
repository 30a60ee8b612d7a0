//! What defines each operator of the library, once.

use std::collections::BTreeMap;

use autobwd::{OpInfoMap, Result, op::Meaning};

const PACKAGES: [&str; 3] = ["autobwd-core", "autobwd-ops", "autobwd-parallel"];

/// Operators that only their kernels define, each with the reason.
const BY_KERNEL: [(&str, &str); 4] = [
    ("lod_array_length", "tensor arrays exist in programs only"),
    ("pool2d_grad_grad", "the second order of maxima picks elements by position, which no primitive keeps"),
    ("read_from_array", "tensor arrays exist in programs only"),
    ("write_to_array", "tensor arrays exist in programs only"),
];

#[test]
fn every_operator_has_one_meaning() -> Result<()> {
    let mut by_kernel = BTreeMap::from(BY_KERNEL);
    let mut undefined = vec![];
    for info in OpInfoMap::linked()?.iter().filter(|info| PACKAGES.contains(&info.crate_name())) {
        let ty = info.schema().name;
        let is_listed = by_kernel.remove(ty).is_some();
        match info.meaning() {
            Meaning::ByKernel if !is_listed => undefined.push(ty),
            Meaning::ByKernel => {}
            meaning => assert!(!is_listed, "`{ty}` is listed, but defined by its {meaning:?}"),
        }
    }
    assert!(undefined.is_empty(), "neither formula, composition nor primitive: {}", undefined.join(", "));
    assert!(by_kernel.is_empty(), "listed, but not registered: {by_kernel:?}");
    Ok(())
}
