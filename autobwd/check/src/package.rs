//! Checks of all samples of a package.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write as _},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use super::{
    allocations,
    checks::{CheckedSample, check_sample},
    coverage::{corners, gaps},
    function::failure,
};
use autobwd_core::sample::{OpSamples, Sample, samples, samples_where};
use autobwd_core::{Error, ErrorKind, OpInfo, OpInfoMap, Result};

/// Longest time that the check of a row may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The result of checking the samples of a package.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CheckReport {
    /// The number of checked samples.
    pub samples: usize,
    /// Observations that are no faults, with operator and rows: [warnings of samples](super::CheckedSample::warnings),
    /// and corners that no sample reaches.
    pub warnings: Vec<String>,
}

impl CheckReport {
    /// Writes the warnings to stderr, where a test runner shows them even of tests that pass.
    pub fn tell(&self) {
        let mut stderr = io::stderr().lock();
        for warning in &self.warnings {
            // Standard error may be closed.
            _ = writeln!(stderr, "warning: {warning}");
        }
    }
}

/// Checks all samples of a package, and their coverage: every operator that is not a gradient has samples, in which
/// every attribute takes two values and every optional slot is filled and empty. In the name of the package, `-` and
/// `_` are the same; it may also be the name of its library. For [`check_all!`](crate::check_all).
///
/// # Errors
/// All violations, one a line, with operator and row, and the warnings after them. A row that takes longer than two
/// minutes is a violation.
pub fn check_crate(krate: &str) -> Result<CheckReport> {
    let (ops, package) = (OpInfoMap::linked()?, Package::find(krate)?);
    let Coverage { gaps: mut failures, corners: mut warnings } = package.coverage(ops);
    let (mut row, mut last) = (0, "");
    let mut rows: BTreeMap<(&str, String), Vec<String>> = BTreeMap::new();
    for sample in &package.samples {
        row = if sample.op() == last { row + 1 } else { 0 };
        last = sample.op();
        match check_within(sample, LIMIT) {
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
        warnings.push("allocations of kernels are not checked: no `CountingAllocator` is installed".into());
    }
    if !failures.is_empty() {
        failures.extend(warnings.iter().map(|warning| format!("warning: {warning}")));
        return Err(failure(failures.join("\n")));
    }
    Ok(CheckReport { samples: package.samples.len(), warnings })
}

/// Checks a sample, as [`check_sample`] does, in a thread of its own that has a limited time.
///
/// # Errors
/// A violated check; a check that takes longer, whose thread goes on.
pub fn check_within(sample: &Sample, limit: Duration) -> Result<CheckedSample> {
    let (sender, receiver) = mpsc::channel();
    let own = sample.clone();
    let check = move || sender.send(check_sample(&own));
    let thread = thread::Builder::new().name(sample.op().into()).spawn(check);
    thread.map_err(|e| Error::new(ErrorKind::Io, format!("cannot start a thread: {e}")).caused_by(e))?;
    match receiver.recv_timeout(limit) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout) => {
            Err(failure(format!("`{}`: the check has not ended after {limit:?}", sample.op())))
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err(failure(format!("`{}`: the thread of the check has ended", sample.op())))
        }
    }
}

/// Gaps in the samples of a package.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Coverage {
    /// Faults for [`check_crate`]: operators without samples, attributes with one value, optional slots that are always
    /// or never filled, shapes in which dimensions could be mixed up.
    pub gaps: Vec<String>,
    /// Warnings: corners that no sample reaches, as far as can be determined.
    pub corners: Vec<String>,
}

/// The gaps in the samples of a package, without running checks.
///
/// # Errors
/// A package without samples.
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
            let packages: BTreeSet<&str> =
                autobwd_core::__private::inventory::iter::<OpSamples>.into_iter().map(|s| s.krate).collect();
            return Err(no_samples(name, infos.len(), &packages));
        }
        Ok(Package { infos, samples })
    }

    fn coverage(&self, ops: &OpInfoMap) -> Coverage {
        let (mut found, samples) = (Coverage::default(), samples());
        for info in self.infos.iter().filter(|info| !info.is_gradient()) {
            let name = info.schema().name;
            // Includes samples of other packages for this operator.
            let own: Vec<&Sample> = samples.iter().filter(|s| s.op() == name).collect();
            let told = |gap: String| format!("operator `{name}`: {gap}");
            found.gaps.extend(gaps(ops, info, &own).into_iter().map(told));
            found.corners.extend(corners(ops, info, &own).into_iter().map(told));
        }
        found
    }
}

/// The error for a package without samples, in a build that has samples of these packages.
fn no_samples(name: &str, operators: usize, packages: &BTreeSet<&str>) -> Error {
    let packages: Vec<_> = packages.iter().map(|name| format!("`{name}`")).collect();
    let others = match packages.is_empty() {
        true => "this build has none: a release build needs the feature `samples`, `cargo test --release --features \
                 autobwd/samples`"
            .into(),
        false => format!("packages with samples are {}", packages.join(", ")),
    };
    failure(format!("package `{name}` has {operators} operators and no samples; {others}"))
}

/// Makes a test of all samples of an operator crate: `autobwd::check_all!(my_operators);` as the only line of a file in
/// `tests/`. It also installs a [`CountingAllocator`](crate::CountingAllocator) in the test binary; if there is another
/// allocator already, call [`check_crate`](crate::check_crate) in a test of your own.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_without_samples_is_an_error_that_names_the_feature() {
        let e = no_samples("my-operators", 3, &BTreeSet::new());
        let text = "package `my-operators` has 3 operators and no samples; this build has none: a release build needs \
                    the feature `samples`, `cargo test --release --features autobwd/samples`";
        assert_eq!((e.kind(), e.to_string().as_str()), (ErrorKind::Check, text));
    }
}
