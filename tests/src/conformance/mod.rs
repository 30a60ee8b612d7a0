//! Compares autobwd with recorded cases of the reference implementation, by the rules of `corpus/README.md`.
//!
//! One file for each step: `corpus` reads cases, `build` replays their calls, `golden` converts the reference's
//! programs into autobwd's form, `structure` compares programs, `values` compares values, if necessary with those of
//! `differences`, and `report` prints. The code must not depend on names of cases.

mod attributes;
mod build;
mod corpus;
mod differences;
mod golden;
mod report;
mod structure;
mod values;

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use autobwd::{OpInfoMap, Program};

pub use corpus::{Answer, CorpusCall, CorpusCase, CorpusEntry, CorpusStep, Refusal, load_folder};
pub use report::{Summary, run};
pub use values::CorpusRun;

use build::{CaseReplay, Expected};

/// The reason why a case fails.
#[derive(Clone, Debug)]
pub struct Difference(String);

impl Difference {
    fn new(text: impl Into<String>) -> Difference {
        Difference(text.into())
    }
}
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Difference {}
impl From<autobwd::Error> for Difference {
    fn from(e: autobwd::Error) -> Difference {
        Difference(e.to_string())
    }
}

/// The comparisons of a passing case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Whether the program was compared.
    pub structure: bool,
    /// Number of recorded values.
    pub recorded: usize,
    /// Number of gradients compared with central differences.
    pub differences: usize,
    /// Whether a call failed, as expected.
    pub refused: bool,
}

/// The result of a case.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Everything agrees.
    Passed(Compared),
    /// The first difference.
    Failed(String),
    /// It cannot be compared yet, with the reason.
    Skipped(String),
}

/// Compares one case.
pub fn check(case: &CorpusCase, ops: &OpInfoMap) -> Outcome {
    match skip_reason(case, ops) {
        Ok(Some(reason)) => return Outcome::Skipped(reason),
        Ok(None) => {}
        Err(e) => return Outcome::Failed(e.to_string()),
    }
    // A panic fails one case, not the whole run.
    match catch_unwind(AssertUnwindSafe(|| compare(case, ops))) {
        Ok(Ok(compared)) => Outcome::Passed(compared),
        Ok(Err(difference)) => Outcome::Failed(difference.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Outcome::Failed(format!("panicked: {text}"))
        }
    }
}

/// The reason why a case cannot be compared yet: a feature that autobwd lacks.
///
/// # Errors
/// A program that cannot be read.
pub fn skip_reason(case: &CorpusCase, ops: &OpInfoMap) -> Result<Option<String>, Difference> {
    let mut missing = vec![];
    let mut before = None;
    for step in case.steps() {
        let forward = build::parse(&step.forward)?;
        missing.extend(
            build::new_ops(&forward, before.as_ref()).filter(|op| ops.get(&op.ty).is_err()).map(|op| op.ty),
        );
        let after = step.backward.as_ref().map(build::parse).transpose()?.unwrap_or(forward);
        before = Some(after);
    }
    missing.sort();
    missing.dedup();
    let names: Vec<_> = missing.iter().map(|ty| format!("`{ty}`")).collect();
    Ok((!names.is_empty()).then(|| format!("not registered: {}", names.join(", "))))
}

/// The program of a case after all calls; `None` if a call must be refused.
///
/// # Errors
/// A case that cannot be read; a call that is refused, but must succeed.
pub fn prepare(case: &CorpusCase, ops: &OpInfoMap) -> Result<Option<CorpusRun>, Difference> {
    let mut replay = CaseReplay::start(ops, &case.first)?;
    for (k, step) in case.steps().enumerate() {
        if k > 0 {
            replay.extend(step)?;
        }
        let derivative = match build::expected(step)? {
            Expected::Refused(_) => return Ok(None),
            Expected::Derivative => true,
            Expected::Recorded => false,
        };
        replay.call(replay.translate(&step.call), step, derivative)?;
    }
    CorpusRun::of(case, replay).map(Some)
}

fn compare(case: &CorpusCase, ops: &OpInfoMap) -> Result<Compared, Difference> {
    let mut compared = Compared::default();
    let mut replay = CaseReplay::start(ops, &case.first)?;
    for (k, step) in case.steps().enumerate() {
        if k > 0 {
            replay.extend(step)?;
        }
        let call = replay.translate(&step.call);
        match build::expected(step)? {
            Expected::Refused(why) => {
                refused(&mut replay, &call, &why)?;
                // Without its backward pass, the program has no values to compare, and later calls have no basis.
                return Ok(Compared { refused: true, ..compared });
            }
            Expected::Derivative => replay.call(call, step, true)?,
            Expected::Recorded => replay.call(call, step, false)?,
        }
        if let Some(golden) = step.backward.as_ref().filter(|_| k == 0)
            && let Some(golden) = comparable(case, golden)?
        {
            same_program(ops, step, &golden, &replay)?;
            compared.structure = true;
        }
    }
    let (recorded, differences) = values::compare(case, &replay)?;
    Ok(Compared { recorded, differences, ..compared })
}

/// Checks that a call fails and leaves the program unchanged.
fn refused(replay: &mut CaseReplay<'_>, call: &CorpusCall, why: &str) -> Result<(), Difference> {
    let before = replay.program.clone();
    match build::run_call(replay.ops(), &mut replay.program, call) {
        Ok(_) => Err(Difference::new(format!("the call was accepted, although {why}"))),
        Err(e) if replay.program != before => {
            Err(Difference::new(format!("the refused call ({e}) has changed the program")))
        }
        Err(_) => Ok(()),
    }
}

/// The reference's program in autobwd's names, if its structure is compared: for a first call, unless a rule of table
/// A3 compares values only.
fn comparable(case: &CorpusCase, golden: &serde_json::Value) -> Result<Option<Program>, Difference> {
    if case.quirk.is_some() || case.first.calls_before > 0 {
        return Ok(None);
    }
    let forward = build::parse(&case.first.forward)?;
    let mut golden = golden::parse(golden)?;
    golden::clean_loops(&mut golden);
    Ok((!golden::by_value_only(&golden, &forward)).then_some(golden))
}

fn same_program(
    ops: &OpInfoMap,
    step: &CorpusStep,
    golden: &Program,
    replay: &CaseReplay<'_>,
) -> Result<(), Difference> {
    let forward = build::parse(&step.forward)?;
    let mut expected = structure::ProgramOutline::of(ops, golden, &forward)?;
    golden::read_zero_fills(&mut expected);
    golden::remove_cut_gradients(&mut expected, &forward, &step.call.no_grad());
    let found = structure::ProgramOutline::of(ops, &replay.program, &forward)?;
    structure::compare(&expected, &found)?;
    structure::compare_answers(&golden::answer(step)?, replay.last_answer())
}
