//! The search for the first NaN of a run: checkpoints first, then steps, then operators.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    sync::Arc,
};

use autobwd_core::{OpDesc, Program, Result, Tensor, Var};
use autobwd_exec::{Executor, ValueRange};

use crate::{
    finite_trace::{FiniteTrace, origin},
    line::{Rows, TableRows},
    nan_report::{FedSample, LearningRate, MagnitudeHistory, NanOperator, NanReport, NanStep, RangedValue},
    operator_trace::{CallCapture, CallPlace, SlotValue},
    program_place::{described, forward_operator, source_line, upstream},
    recorded_run::RecordedRun,
    stepped_run::SteppedRun,
    value_difference::indices,
};

/// The number of steps of a history of magnitudes.
const HISTORY: usize = 8;
/// The number of histories.
const HISTORIES: usize = 3;
/// The slot of learning rates, in the update operators of all optimizers.
const RATE_SLOT: &str = "LearningRate";

/// The largest magnitudes of the kept values after the last steps.
type Magnitudes = VecDeque<(u64, BTreeMap<String, f64>)>;

impl RecordedRun {
    /// Finds the first NaN or infinity that the run keeps, and walks back to the operator that makes it.
    ///
    /// A NaN in a parameter stays, so the first checkpoint with one is found by a binary search; the steps before it are
    /// replayed to the first step after which a value is not finite, and that step once more, operator by operator. The
    /// report has the operator with the ranges of its inputs, the samples of its row of the batch, the magnitudes of the
    /// kept values that its inputs are computed from, over the last steps, and the learning rates. If all checkpoints are
    /// finite, the last step is searched for a NaN. The record is not changed.
    ///
    /// ```
    /// use autobwd::{Builder, DType, Executor, Scope};
    /// use autobwd::exec::record::{RecordOptions, RecordedRun, RunRecord};
    /// use autobwd_ops::{Init, Math, optim::{Optimizer, Sgd}};
    ///
    /// let net = Builder::new();
    /// let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    /// Sgd { rate: 10.0 }.minimize(&w.square().sum(&[]))?.complete()?;
    /// let (mut executor, mut scope) = (Executor::new(), Scope::new());
    /// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    /// # let folder = tempfile::tempdir()?;
    /// # let dir = folder.path().join("run");
    /// let mut record = RunRecord::create(&dir, &net.program()?, &scope, RecordOptions::new())?;
    /// for _ in 1..=100 {
    ///     executor.run(&net.program()?, &mut scope, &[], &[])?;
    ///     record.step(&[], &scope)?;
    /// }
    /// record.finish(&scope)?;
    ///
    /// let report = RecordedRun::open(&dir)?.why_nan(&mut executor)?;
    /// let step = report.step.as_ref().expect("the rate is too large");
    /// assert_eq!((step.step, &step.values[..]), (30, &["w".to_string()][..]));
    /// let history = &step.histories[0];
    /// assert_eq!((history.name.as_str(), history.magnitudes.len()), ("w", 8));
    /// assert_eq!(step.rates[0].rate, 10.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`bisect`](RecordedRun::bisect).
    pub fn why_nan(&self, executor: &mut Executor) -> Result<NanReport> {
        let checkpoints = self.loadable_checkpoints()?;
        let mut search =
            NanSearch { run: self, checkpoints: &checkpoints, executor, endless: BTreeSet::new() };
        let (first, last) = (search.first_checkpoint()?, self.steps());
        let end = first.map_or(last, |position| checkpoints.get(position).copied().unwrap_or(last));
        let step = match end {
            0 => search.initial()?,
            _ => search.steps_up_to(end)?,
        };
        let unreproduced = first.map(|_| end).filter(|_| step.is_none());
        Ok(NanReport { steps: last, step, unreproduced })
    }
}

struct NanSearch<'a, 'e> {
    run: &'a RecordedRun,
    checkpoints: &'a [u64],
    executor: &'e mut Executor,
    /// Values with infinities before the first step: they are meant, as the best loss so far is.
    endless: BTreeSet<String>,
}

impl<'a> NanSearch<'a, '_> {
    /// The values at the last checkpoint that is not after a step.
    fn start(&mut self, latest: u64) -> Result<SteppedRun<'a>> {
        SteppedRun::start(self.run, self.checkpoints, latest, self.executor)
    }

    /// The position of the first checkpoint with a value that is not finite.
    fn first_checkpoint(&mut self) -> Result<Option<usize>> {
        if self.checkpoints.first() == Some(&0) {
            let ranges = self.start(0)?;
            let ranges = ranges.state().map(|(name, value)| (name, ValueRange::of(value)));
            let is_meant = |range: &ValueRange| range.infinite_count() > 0 && range.nan_count() == 0;
            self.endless = ranges.filter(|(_, range)| is_meant(range)).map(|(name, _)| name.into()).collect();
        }
        let (mut low, mut high) = (0, self.checkpoints.len());
        while let Some(step) = self.checkpoints.get(low + (high - low) / 2).filter(|_| low < high) {
            let middle = low + (high - low) / 2;
            let run = self.start(*step)?;
            match self.not_finite(&run).is_empty() {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        Ok(Some(low).filter(|position| *position < self.checkpoints.len()))
    }

    /// The kept values that are not finite.
    fn not_finite(&self, run: &SteppedRun<'_>) -> Vec<String> {
        let is_it = |(name, value): &(&str, &Tensor)| {
            !self.endless.contains(*name) && !ValueRange::of(value).is_finite()
        };
        run.state().filter(is_it).map(|(name, _)| name.into()).collect()
    }

    /// The values before the first step that are not finite.
    fn initial(&mut self) -> Result<Option<NanStep>> {
        let run = self.start(0)?;
        let values = self.not_finite(&run);
        let found =
            NanStep { step: 0, values, operator: None, samples: vec![], histories: vec![], rates: vec![] };
        Ok(Some(found).filter(|found| !found.values.is_empty()))
    }

    /// Replays the steps from the checkpoint before `end` to the first one after which a value is not finite.
    fn steps_up_to(&mut self, end: u64) -> Result<Option<NanStep>> {
        let mut run = self.start(end - 1)?;
        let mut magnitudes = Magnitudes::from([(run.step(), magnitudes(&run))]);
        loop {
            run.advance(self.executor)?;
            let values = self.not_finite(&run);
            if !values.is_empty() || run.step() >= end {
                let found = self.operator(&mut run, values, magnitudes)?;
                // Of finite values, the last step alone is searched.
                return Ok(found.filter(|found| !found.values.is_empty() || end == self.run.steps()));
            }
            if magnitudes.len() == HISTORY {
                magnitudes.pop_front();
            }
            magnitudes.push_back((run.step(), self::magnitudes(&run)));
        }
    }

    /// The operator that makes the first value of the last step which is not finite.
    fn operator(
        &mut self,
        run: &mut SteppedRun<'a>,
        values: Vec<String>,
        magnitudes: Magnitudes,
    ) -> Result<Option<NanStep>> {
        let program = &self.run.program;
        let rates = rates(program, run);
        let trace = Arc::new(FiniteTrace::default());
        run.observe(self.executor, trace.clone())?;
        let Some(place) = origin(&trace.calls(), &values) else {
            let found = NanStep {
                step: run.step(),
                values,
                operator: None,
                samples: vec![],
                histories: vec![],
                rates,
            };
            return Ok(Some(found).filter(|found| !found.values.is_empty()));
        };
        let capture = Arc::new(CallCapture::new(place));
        run.observe(self.executor, capture.clone())?;
        let call = capture.values();
        let spoilt = call.outputs.iter().find_map(|output| SpoiltElement::of(program, output));
        let SpoiltElement { indices: element, row } = spoilt.unwrap_or_default();
        let samples = row.map_or_else(Vec::new, |(row, rows)| self.samples(run, row, rows));
        let histories = self.histories(&upstream(program, place), magnitudes)?;
        let CallPlace { block, index, repetition } = place;
        let operator = NanOperator {
            operator: described(program, block, index),
            ty: call.ty,
            block,
            index,
            repetition,
            source_line: source_line(program, place),
            forward: forward_operator(program, place),
            inputs: call.inputs.iter().map(ranged).collect(),
            outputs: call.outputs.iter().map(ranged).collect(),
            element,
        };
        let (step, operator) = (run.step(), Some(operator));
        Ok(Some(NanStep { step, values, operator, samples, histories, rates }))
    }

    /// The samples in a row of the feeds that have so many rows.
    fn samples(&self, run: &SteppedRun<'_>, row: usize, rows: usize) -> Vec<FedSample> {
        let feeds = run.inputs().map_or(&[][..], |inputs| &inputs.feeds);
        let sample = |fed: &TableRows| {
            let Rows::Rows(numbers) = &fed.rows else { return None };
            let feed = self.run.history.tables.get(fed.table)?.table.name.clone();
            (numbers.len() == rows).then_some(FedSample { feed, row, sample: *numbers.get(row)? })
        };
        feeds.iter().filter_map(sample).collect()
    }

    /// The histories of these variables that grew most. Checkpoints complete them at their start.
    fn histories(
        &mut self,
        variables: &HashSet<Var>,
        mut known: Magnitudes,
    ) -> Result<Vec<MagnitudeHistory>> {
        let first = known.front().map_or(0, |(step, _)| *step);
        let earlier = self.checkpoints.iter().rev().filter(|step| **step < first);
        for step in earlier.take(HISTORY.saturating_sub(known.len())) {
            let run = self.start(*step)?;
            known.push_front((*step, magnitudes(&run)));
        }
        let names = variables.iter().map(|var| self.run.program.name(*var));
        let history = |name: &str| {
            let of_step = |(step, values): &(u64, BTreeMap<String, f64>)| Some((*step, *values.get(name)?));
            MagnitudeHistory { name: name.into(), magnitudes: known.iter().filter_map(of_step).collect() }
        };
        let mut histories: Vec<MagnitudeHistory> = names.map(history).collect();
        histories.retain(|history| growth(history) > 1.0);
        histories.sort_by(|a, b| a.name.cmp(&b.name));
        // Positive numbers are in the order of their bits.
        histories.sort_by_key(|history| Reverse(growth(history).to_bits()));
        histories.truncate(HISTORIES);
        Ok(histories)
    }
}

/// The first element of a value that is not finite.
#[derive(Default)]
struct SpoiltElement {
    indices: Vec<usize>,
    /// The row of the batch and the number of rows, unless all of several rows have such elements, or the rows are not of
    /// samples.
    row: Option<(usize, usize)>,
}

impl SpoiltElement {
    fn of(program: &Program, SlotValue { name, value, .. }: &SlotValue) -> Option<SpoiltElement> {
        let elements = value.to_f64s();
        let first = elements.iter().position(|x| !x.is_finite())?;
        let indices = indices(first, value.dims());
        let rows = value.dims().first().copied().unwrap_or(0);
        let is_spoilt = |row: &&[f64]| row.iter().any(|x| !x.is_finite());
        let in_rows = elements.chunks(elements.len() / rows.max(1)).filter(is_spoilt).count();
        let is_of_sample = (rows == 1 || in_rows < rows) && !is_of_kept_value(program, name);
        let row = indices.first().copied().filter(|_| is_of_sample).map(|row| (row, rows));
        Some(SpoiltElement { indices, row })
    }
}

/// Whether a variable is kept between runs, or is the gradient of such a one.
fn is_of_kept_value(program: &Program, name: &str) -> bool {
    let desc = |var: &Var| program.root().vars.get(var);
    let of_name = program.find(name).as_ref().and_then(desc);
    let of = of_name.and_then(|desc| desc.gradient_of.as_ref()).and_then(desc);
    of_name.into_iter().chain(of).any(|desc| desc.persistable)
}

/// The ratio of the last magnitude to the first.
fn growth(history: &MagnitudeHistory) -> f64 {
    match &history.magnitudes[..] {
        [(_, first), .., (_, last)] if *first > 0.0 => last / first,
        _ => 0.0,
    }
}

/// The largest magnitudes of the kept values of floating point numbers.
fn magnitudes(run: &SteppedRun<'_>) -> BTreeMap<String, f64> {
    let floats = run.state().filter(|(_, value)| value.dtype().is_float());
    floats.map(|(name, value)| (name.into(), ValueRange::of(value).magnitude())).collect()
}

fn ranged(SlotValue { slot, name, value }: &SlotValue) -> RangedValue {
    let (meta, range) = (value.meta().to_string(), ValueRange::of(value).to_string());
    RangedValue { slot: (*slot).into(), name: name.clone(), meta, range }
}

/// The learning rates among the values of the scope: what update operators read, before it is converted to the dtype and
/// the rank of a parameter.
fn rates(program: &Program, run: &SteppedRun<'_>) -> Vec<LearningRate> {
    let ops = &program.root().ops;
    let source = |var: Var| match program.root().vars.get(&var).is_some_and(|desc| desc.persistable) {
        true => Some(var),
        false => ops.iter().find(|op| op.writes().any(|written| written == var))?.reads().next(),
    };
    let read = ops.iter().flat_map(|op: &OpDesc| op.inputs.get(RATE_SLOT));
    // A conversion of the dtype and one of the rank.
    let sources = read.filter_map(|var| source(source(*var)?));
    let names: BTreeSet<&str> = sources.map(|var| program.name(var)).collect();
    let rate =
        |name: &str| Some(LearningRate { name: name.into(), rate: run.scope().find(name)?.item().ok()? });
    names.into_iter().filter_map(rate).collect()
}
