//! What two records say about their runs, without a replay.

use std::collections::BTreeSet;

use autobwd_core::{Program, desc::diff};
use serde::Serialize;

use crate::{
    bisection::{DifferenceSubject, RecordedDifference},
    history::{History, SampleTable},
    line::{Rows, StepInputs, TableRows},
    phrases::{steps, values},
    recorded_run::RecordedRun,
    state::different_names,
};

/// The differences of two records, without a replay.
///
/// [`RecordedRun::compare`] has an example.
#[derive(Clone, Debug, Serialize)]
pub struct RecordComparison {
    /// What differs.
    pub differences: Vec<RecordedDifference>,
    /// Values that differ before the first step.
    #[serde(skip)]
    pub(crate) initial: BTreeSet<String>,
    /// The last step after which both records have the same state. Values that differ before the first step do not count.
    pub last_equal_state: u64,
    /// The first step after which the recorded states differ.
    pub first_different_state: Option<u64>,
    /// The number of steps after which both records have a state with a common value; 0 if the runs have nothing in common.
    pub compared_states: usize,
}

impl RecordedRun {
    /// Compares this record with another one, without a replay: programs, data, changed values, and hashes of states.
    /// [`bisect`](RecordedRun::bisect) also finds the step and the operator.
    ///
    /// ```
    /// # use autobwd::{Builder, DType, Executor, Scope, Tensor};
    /// # use autobwd_ops::{Init, Math, optim::{Optimizer, Sgd}};
    /// use autobwd::exec::record::{RecordOptions, RecordedRun, RunRecord};
    /// # let net = Builder::new();
    /// # let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    /// # Sgd { rate: 0.5 }.minimize(&(&w * net.input("x", DType::F32, &[2])).mean())?.complete()?;
    /// # let (program, folder) = (net.program()?.clone(), tempfile::tempdir()?);
    /// let record = |name: &str, changed: u64| -> autobwd::Result<RecordedRun> {
    ///     let (mut executor, mut scope) = (Executor::new(), Scope::new());
    ///     executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    ///     let dir = folder.path().join(name);
    ///     let mut record = RunRecord::create(&dir, &program, &scope, RecordOptions::new().every(4))?;
    ///     for step in 1..=10 {
    ///         let x = Tensor::from_vec([2], vec![if step == changed { 2.0_f32 } else { 1.0 }, 1.0])?;
    ///         executor.run(&program, &mut scope, &[("x", &x)], &[])?;
    ///         record.step(&[("x", &x)], &scope)?;
    ///     }
    ///     record.finish(&scope)?;
    ///     RecordedRun::open(&dir)
    /// };
    /// let comparison = record("first", 0)?.compare(&record("second", 7)?);
    /// assert_eq!((comparison.last_equal_state, comparison.first_different_state), (4, Some(8)));
    /// assert_eq!(comparison.differences[0].text, "step 7 is fed other data: row 0 of `x`");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compare(&self, other: &RecordedRun) -> RecordComparison {
        let (a, b) = (self, other);
        let mut differences = vec![];
        let mut add = |subject, step, text| differences.push(RecordedDifference { subject, step, text });
        if let Some(text) = program_difference("the programs differ", &a.program, &b.program) {
            add(DifferenceSubject::Program, None, text);
        }
        for (index, (old, new)) in a.startup.iter().zip(&b.startup).enumerate() {
            if let Some(text) = program_difference(&format!("startup program {index} differs"), old, new) {
                add(DifferenceSubject::Startup, None, text);
            }
        }
        if a.startup.len() != b.startup.len() {
            let text =
                format!("{} startup programs, and {} in the second run", a.startup.len(), b.startup.len());
            add(DifferenceSubject::Startup, None, text);
        }
        let (a, b) = (&a.history, &b.history);
        let initial = initial_differences(a, b);
        if !initial.is_empty() {
            let names: Vec<String> = initial.iter().cloned().collect();
            let text = format!("{} before the first step", values(&names, "differs", "differ"));
            add(DifferenceSubject::InitialState, Some(0), text);
        }
        if let Some((step, text)) = input_difference(a, b, |inputs| &inputs.set) {
            let text = format!("step {step} changes other values of the scope: {text}");
            add(DifferenceSubject::ChangedValues, Some(step), text);
        }
        if let Some((step, text)) = input_difference(a, b, |inputs| &inputs.feeds) {
            add(DifferenceSubject::Feeds, Some(step), format!("step {step} is fed other data: {text}"));
        }
        let shorter = a.last_step().min(b.last_step());
        if a.last_step() != b.last_step() {
            let longer = if a.last_step() > shorter { "first" } else { "second" };
            let rest = steps(shorter + 1, a.last_step().max(b.last_step()));
            add(DifferenceSubject::Length, Some(shorter), format!("the {longer} run alone has {rest}"));
        }
        let (mut last_equal_state, mut first_different_state, mut compared_states) = (0, None, 0);
        for (step, state) in &a.states {
            let Some(other) = b.states.get(step) else { continue };
            let is_in_both = |name: &str| state.values.contains_key(name) && other.values.contains_key(name);
            // States of programs without a common value say nothing.
            if !state.values.keys().any(|name| is_in_both(name)) {
                continue;
            }
            compared_states += 1;
            let mut names = different_names(&state.values, &other.values);
            names.retain(|name| is_in_both(name) && !initial.contains(name));
            if first_different_state.is_none() && names.is_empty() {
                last_equal_state = *step;
            } else if first_different_state.is_none() {
                first_different_state = Some(*step);
                let text = format!("{} after step {step}", values(&names, "differs", "differ"));
                add(DifferenceSubject::State, Some(*step), text);
            }
        }
        RecordComparison { differences, initial, last_equal_state, first_different_state, compared_states }
    }
}

/// The first difference of two programs, by the operators that they have in common.
fn program_difference(what: &str, old: &Program, new: &Program) -> Option<String> {
    if old.fingerprint() == new.fingerprint() {
        return None;
    }
    let diff = diff(old, new).to_string();
    let lines: Vec<&str> = diff.lines().filter(|line| line.starts_with("  ")).collect();
    let of_operator =
        lines.iter().find(|line| line.get(4..).is_some_and(|text| text.starts_with("operator ")));
    let line = of_operator.or(lines.first()).map_or("", |line| line.trim_start());
    Some(match lines.len() {
        0 => what.to_string(),
        1 => format!("{what}: {line}"),
        others => format!("{what}: {line}; `autobwd diff` lists {} more differences", others - 1),
    })
}

/// The values that differ before the first step, in the state or among those that the programs only read.
fn initial_differences(a: &History, b: &History) -> BTreeSet<String> {
    let (old, new) = (&a.header.constants, &b.header.constants);
    let mut names = different_names(old, new);
    names.retain(|name| old.contains_key(name) && new.contains_key(name));
    if let (Some(old), Some(new)) = (a.states.get(&0), b.states.get(&0)) {
        let different = different_names(&old.values, &new.values).into_iter();
        names.extend(different.filter(|name| old.values.contains_key(name) && new.values.contains_key(name)));
    }
    names.into_iter().collect()
}

/// The first step with other inputs of a kind, and the first of these.
fn input_difference(
    a: &History,
    b: &History,
    inputs: impl Fn(&StepInputs) -> &[TableRows],
) -> Option<(u64, String)> {
    a.steps.iter().zip(&b.steps).find_map(|(old, new)| {
        let of = |history, step| inputs(step).iter().filter_map(move |rows| NamedRows::of(history, rows));
        let (old_rows, new_rows): (Vec<_>, Vec<_>) = (of(a, old).collect(), of(b, new).collect());
        let only = |run: &str, name: &str| format!("`{name}` in the {run} run alone");
        let missing = |rows: &NamedRows<'_>, others: &[NamedRows<'_>]| {
            others.iter().all(|other| other.name() != rows.name())
        };
        let text = old_rows
            .iter()
            .find_map(|rows| match new_rows.iter().find(|other| other.name() == rows.name()) {
                Some(other) => rows.difference(other),
                None => Some(only("first", rows.name())),
            })
            .or_else(|| {
                let rows = new_rows.iter().find(|rows| missing(rows, &old_rows))?;
                Some(only("second", rows.name()))
            });
        Some((old.step, text?))
    })
}

/// Rows with their table.
struct NamedRows<'a> {
    table: &'a SampleTable,
    rows: &'a Rows,
}

impl<'a> NamedRows<'a> {
    fn of(history: &'a History, rows: &'a TableRows) -> Option<NamedRows<'a>> {
        Some(NamedRows { table: history.tables.get(rows.table)?, rows: &rows.rows })
    }

    fn name(&self) -> &'a str {
        &self.table.table.name
    }

    /// The first difference of rows of the same name.
    fn difference(&self, other: &NamedRows<'_>) -> Option<String> {
        let name = self.name();
        let (own, others) = (self.rows.as_slice(), other.rows.as_slice());
        let is_one = |rows: &Rows| matches!(rows, Rows::Row(_));
        let (table, other_table) = (&self.table.table, &other.table.table);
        let is_same_shape = (&table.dtype, &table.dims) == (&other_table.dtype, &other_table.dims);
        if !is_same_shape || own.len() != others.len() || is_one(self.rows) != is_one(other.rows) {
            return Some(format!("`{name}` has another shape or dtype"));
        }
        let digest = |table: &SampleTable, row: u64| table.digests.get(row as usize).copied();
        let mut pairs = own.iter().zip(others);
        let row = pairs.position(|(a, b)| digest(self.table, *a) != digest(other.table, *b))?;
        Some(match is_one(self.rows) {
            true => format!("`{name}`"),
            false => format!("row {row} of `{name}`"),
        })
    }
}
