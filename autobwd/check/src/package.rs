//! All samples of a package.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write as _},
};

use super::{
    allocations,
    checks::check_sample,
    coverage::{corners, gaps},
    function::failure,
};
use autobwd_core::sample::{OpSamples, Sample, samples, samples_where};
use autobwd_core::{OpInfo, OpInfoMap, Result};

/// What the samples of a package come to.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// How many samples were checked.
    pub samples: usize,
    /// What is no fault, but better known, with operator and rows: [those of the samples](super::Checked::warnings), and
    /// corners that no sample reaches.
    pub warnings: Vec<String>,
}

impl Report {
    /// Writes the warnings to stderr, where a test runner shows them even of tests that pass.
    pub fn tell(&self) {
        let mut stderr = io::stderr().lock();
        for warning in &self.warnings {
            // Whoever has closed it does not want to know.
            _ = writeln!(stderr, "warning: {warning}");
        }
    }
}

/// Checks all samples that a package has declared, and that they leave nothing out: every operator that is no gradient has
/// samples, over which every attribute takes two values and every optional slot is there and not. In the name of the
/// package, `-` and `_` are the same; it may also be that of its library. For [`check_all!`](crate::check_all).
///
/// # Errors
/// Everything that does not hold, one a line, with operator and row.
pub fn check_crate(krate: &str) -> Result<Report> {
    let (ops, package) = (OpInfoMap::linked()?, Package::find(krate)?);
    let Coverage { gaps: mut failures, corners: mut warnings } = package.coverage(ops);
    let (mut row, mut last) = (0, "");
    let mut rows: BTreeMap<(&str, String), Vec<String>> = BTreeMap::new();
    for sample in &package.samples {
        row = if sample.op() == last { row + 1 } else { 0 };
        last = sample.op();
        match check_sample(sample) {
            Err(e) => failures.push(format!("{last}, row {row}: {e}")),
            Ok(checked) => {
                for warning in checked.warnings {
                    rows.entry((last, warning)).or_default().push(row.to_string());
                }
            }
        }
    }
    for ((op, warning), rows) in rows {
        warnings.push(format!("{op}, row {}: {warning}", rows.join(", ")));
    }
    if !allocations::are_counted() {
        warnings.push("allocations of kernels are not checked: no `CountingAllocator` is at work".into());
    }
    if !failures.is_empty() {
        return Err(failure(failures.join("\n")));
    }
    Ok(Report { samples: package.samples.len(), warnings })
}

/// What the samples of a package leave out.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Coverage {
    /// Faults for [`check_crate`]: operators without samples, attributes with one value, optional slots that are always or
    /// never there, shapes in which dimensions could be mixed up.
    pub gaps: Vec<String>,
    /// Warnings: corners that no sample reaches, as far as can be told.
    pub corners: Vec<String>,
}

/// What the samples of a package leave out, without checking them.
///
/// # Errors
/// No package of that name has samples.
pub fn check_coverage(krate: &str) -> Result<Coverage> {
    Ok(Package::find(krate)?.coverage(OpInfoMap::linked()?))
}

struct Package {
    infos: Vec<&'static OpInfo>,
    samples: Vec<Sample>,
}

impl Package {
    fn find(name: &str) -> Result<Package> {
        let same = |other: &str| other.replace('-', "_") == name.replace('-', "_");
        let is_of =
            |samples: &OpSamples| same(samples.krate) || samples.module.split("::").next().is_some_and(same);
        let samples = samples_where(is_of);
        let declared: BTreeSet<&str> = autobwd_core::__private::inventory::iter::<OpSamples>
            .into_iter()
            .filter(|s| is_of(s))
            .map(|s| s.krate)
            .collect();
        let all = || OpInfoMap::linked().into_iter().flat_map(OpInfoMap::iter);
        let own = |info: &&OpInfo| same(info.crate_name()) || declared.contains(info.crate_name());
        let infos: Vec<_> = all().filter(own).collect();
        if samples.is_empty() {
            let packages: BTreeSet<_> =
                autobwd_core::__private::inventory::iter::<OpSamples>.into_iter().map(|s| s.krate).collect();
            let packages: Vec<_> = packages.into_iter().map(|name| format!("`{name}`")).collect();
            let n = infos.len();
            let others = match packages.is_empty() {
                true => "this build has none: release builds need the feature `samples` of autobwd".into(),
                false => format!("packages with samples are {}", packages.join(", ")),
            };
            return Err(failure(format!("package `{name}` has {n} operators and no samples; {others}")));
        }
        Ok(Package { infos, samples })
    }

    fn coverage(&self, ops: &OpInfoMap) -> Coverage {
        let (mut found, samples) = (Coverage::default(), samples());
        for info in self.infos.iter().filter(|info| !info.is_gradient()) {
            let name = info.schema().name;
            // Those that other packages have declared, too.
            let own: Vec<&Sample> = samples.iter().filter(|s| s.op() == name).collect();
            let told = |gap: String| format!("operator `{name}`: {gap}");
            found.gaps.extend(gaps(ops, info, &own).into_iter().map(told));
            found.corners.extend(corners(ops, info, &own).into_iter().map(told));
        }
        found
    }
}

/// Makes a test of all samples of an operator crate: `autobwd::check_all!(my_operators);` as the only line of a file in
/// `tests/`. It also makes a [`CountingAllocator`](crate::CountingAllocator) the allocator of the test binary;
/// where there is another already, call [`check_crate`](crate::check_crate) in a test of your own.
#[macro_export]
macro_rules! check_all {
    ($krate:ident) => {
        // Named, so that it is linked.
        use $krate as _;

        #[global_allocator]
        static ALLOCATOR: $crate::CountingAllocator = $crate::CountingAllocator;

        #[test]
        fn every_sample_holds() {
            match $crate::check_crate(::core::stringify!($krate)) {
                ::core::result::Result::Ok(report) => report.tell(),
                ::core::result::Result::Err(failures) => ::core::panic!("{failures}"),
            }
        }
    };
}
