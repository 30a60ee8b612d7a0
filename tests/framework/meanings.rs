//! What defines each operator of the library, once.

use std::collections::BTreeMap;

use autobwd::{OpInfoMap, Result, op::Meaning};

/// Operators that only their kernels define, each with the reason.
const BY_KERNEL: [(&str, &str); 0] = [];

#[test]
fn every_operator_has_one_meaning() -> Result<()> {
    let mut by_kernel = BTreeMap::from(BY_KERNEL);
    let mut undefined = vec![];
    for info in OpInfoMap::linked()?.iter().filter(|info| info.crate_name().starts_with("autobwd-")) {
        let ty = info.schema().name;
        let is_listed = by_kernel.remove(ty).is_some();
        match info.meaning() {
            Meaning::Kernel if !is_listed => undefined.push(ty),
            Meaning::Kernel => {}
            meaning => assert!(!is_listed, "`{ty}` is listed, but defined by its {meaning:?}"),
        }
    }
    assert!(undefined.is_empty(), "neither formula, composition nor primitive: {}", undefined.join(", "));
    assert!(by_kernel.is_empty(), "listed, but not registered: {by_kernel:?}");
    Ok(())
}
