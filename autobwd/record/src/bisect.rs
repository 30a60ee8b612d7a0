//! The bisection of two runs: records first, then steps, then operators.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use autobwd_backward::explain;
use autobwd_core::{BlockId, Program, Result, Tensor, Var, desc::match_ops};
use autobwd_exec::{Executor, Scope};

use crate::{
    bisection::{Bisection, ComparedValue, OperatorDifference, StepDifference},
    digest::Digest,
    operator_trace::{CallCapture, CallPlace, OutputTrace, SlotValue, TracedCall},
    program_place::{described, forward_operator, op_at, source_line},
    recorded_run::RecordedRun,
    stepped_run::SteppedRun,
    value_difference::difference,
};

impl RecordedRun {
    /// Finds where this run and another one start to differ: on another machine, with another version or with a changed
    /// model.
    ///
    /// The records are compared first: programs, values before the first step, data, and states. If a state differs, both
    /// runs are replayed together from their checkpoints before it to the first step that differs, and this step once more,
    /// operator by operator: the first operator with other outputs is named. Operators of two programs are matched by the
    /// variables that they write, as [`diff`](autobwd_core::desc::diff) does. Values that differ before the first step
    /// do not count as a difference of a later step. Neither record is changed.
    ///
    /// A bisection takes at most six replays: two of segments, and four of the step.
    ///
    /// ```
    /// use autobwd::{Builder, DType, Executor, Scope, Tensor};
    /// use autobwd::exec::record::{RecordOptions, RecordedRun, RunRecord};
    /// use autobwd_ops::{Init, Math, optim::{Optimizer, Sgd}};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// // The second model differs by a rounding.
    /// let record = |dir: &str, scale: f64| -> Result<RecordedRun, Box<dyn std::error::Error>> {
    ///     let net = Builder::new();
    ///     let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    ///     let loss = (&w * net.input("x", DType::F32, &[2]) * scale).square().mean();
    ///     Sgd { rate: 0.5 }.minimize(&loss)?.complete()?;
    ///     let (mut executor, mut scope) = (Executor::new(), Scope::new());
    ///     executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    ///     let dir = folder.path().join(dir);
    ///     let mut record = RunRecord::create(&dir, &net.program()?, &scope, RecordOptions::new())?;
    ///     for step in 1..=20 {
    ///         let x = Tensor::from_vec([2], vec![0.1 * step as f32, 1.0])?;
    ///         executor.run(&net.program()?, &mut scope, &[("x", &x)], &[])?;
    ///         record.step(&[("x", &x)], &scope)?;
    ///     }
    ///     record.finish(&scope)?;
    ///     Ok(RecordedRun::open(&dir)?)
    /// };
    /// let (first, second) = (record("a", 1.0)?, record("b", 1.0 + 2e-7)?);
    ///
    /// let bisection = first.bisect(&second, &mut Executor::new())?;
    /// let step = bisection.step.as_ref().expect("the runs differ");
    /// let operator = step.operator.as_ref().expect("an operator differs");
    /// assert_eq!((step.step, operator.ty.as_str()), (1, "scale"));
    /// let element = operator.outputs[0].difference.as_ref().expect("an element differs");
    /// assert_eq!((element.ulps, bisection.replays), (Some(3), 6));
    /// assert!(first.bisect(&first, &mut Executor::new())?.agrees());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A record without its data; a segment that cannot be replayed: its checkpoint, a sample or a step fails; operators
    /// that are not linked; too little memory; the errors of the file system.
    pub fn bisect(&self, other: &RecordedRun, executor: &mut Executor) -> Result<Bisection> {
        let checkpoints = [self.loadable_checkpoints()?, other.loadable_checkpoints()?];
        let comparison = self.compare(other);
        let mut bisection = Bisection {
            steps: [self.steps(), other.steps()],
            differences: comparison.differences,
            last_equal_state: comparison.last_equal_state,
            first_different_state: comparison.first_different_state,
            compared_states: comparison.compared_states,
            step: None,
            unreproduced: [None, None],
            replays: 0,
            replayed_steps: 0,
        };
        let Some(last) = comparison.first_different_state else { return Ok(bisection) };
        let [first, second] = &checkpoints;
        let mut runs = RunPair {
            a: SteppedRun::start(self, first, comparison.last_equal_state, executor)?,
            b: SteppedRun::start(other, second, comparison.last_equal_state, executor)?,
            initial: comparison.initial,
            executor,
            steps: 0,
        };
        bisection.replays = 2;
        if let Some((step, values)) = runs.first_difference(last)? {
            bisection.replays += 2;
            let calls = runs.first_call()?;
            bisection.replays += if calls.is_some() { 2 } else { 0 };
            let operator = calls.map(|calls| runs.operator(&calls)).transpose()?;
            bisection.step = Some(StepDifference { step, values, operator });
        }
        bisection.unreproduced =
            [runs.a.refusal.take(), runs.b.refusal.take()].map(|refusal| refusal.map(Into::into));
        bisection.replayed_steps = runs.steps;
        Ok(bisection)
    }
}

/// Two runs that are replayed together.
struct RunPair<'a, 'e> {
    a: SteppedRun<'a>,
    b: SteppedRun<'a>,
    /// Values that differ before the first step.
    initial: BTreeSet<String>,
    executor: &'e mut Executor,
    /// The steps that have run.
    steps: u64,
}

/// The first call of an operator with other outputs, in both runs.
struct DifferentCall {
    places: [CallPlace; 2],
    /// All operators of the first run with other outputs, in their order.
    different: Vec<(usize, usize)>,
}

impl RunPair<'_, '_> {
    /// Runs both up to the first step that differs, with the values that do; `None` if all steps up to the last one agree.
    fn first_difference(&mut self, last: u64) -> Result<Option<(u64, Vec<String>)>> {
        // One run alone, from an earlier checkpoint.
        while self.a.step() < self.b.step() {
            self.a.advance(self.executor)?;
            self.steps += 1;
        }
        while self.b.step() < self.a.step() {
            self.b.advance(self.executor)?;
            self.steps += 1;
        }
        if !different_values(self.a.state(), self.b.scope(), &self.initial)?.is_empty() {
            // A record that is not reproduced: both have the same state later.
            return Ok(None);
        }
        while self.a.step() < last {
            self.a.advance(self.executor)?;
            self.b.advance(self.executor)?;
            self.steps += 2;
            let names = different_values(self.a.state(), self.b.scope(), &self.initial)?;
            if !names.is_empty() {
                return Ok(Some((self.a.step(), names)));
            }
        }
        Ok(None)
    }

    /// The first call with other outputs in the last step.
    fn first_call(&mut self) -> Result<Option<DifferentCall>> {
        let traces = [Arc::new(OutputTrace::default()), Arc::new(OutputTrace::default())];
        let [first, second] = &traces;
        self.a.observe(self.executor, first.clone())?;
        self.b.observe(self.executor, second.clone())?;
        self.steps += 2;
        let [first, second] = traces.map(|trace| trace.calls());
        let others: HashMap<CallPlace, &TracedCall> = second.iter().map(|call| (call.place, call)).collect();
        let matchings = match_ops(&self.a.run.program, &self.b.run.program);
        let other_place = |place: CallPlace| {
            let index = *matchings.get(place.block)?.to_new.get(place.index)?;
            Some(CallPlace { index: index?, ..place })
        };
        let differs = |call: &TracedCall| {
            let place = other_place(call.place)?;
            (others.get(&place)?.outputs != call.outputs).then_some([call.place, place])
        };
        let mut different = first.iter().filter_map(differs).peekable();
        let Some(places) = different.peek().copied() else { return Ok(None) };
        let different = different.map(|[place, _]| (place.block, place.index)).collect();
        Ok(Some(DifferentCall { places, different }))
    }

    /// The values of a call in the last step.
    fn operator(&mut self, call: &DifferentCall) -> Result<OperatorDifference> {
        let captures = call.places.map(|place| Arc::new(CallCapture::new(place)));
        let [first, second] = &captures;
        self.a.observe(self.executor, first.clone())?;
        self.b.observe(self.executor, second.clone())?;
        self.steps += 2;
        let [first, second] = captures.map(|capture| capture.values());
        let (program, [place, other]) = (&self.a.run.program, call.places);
        let operator = described(program, place.block, place.index);
        let other_operator = described(&self.b.run.program, other.block, other.index);
        let gradient = first_gradient(program, &call.different);
        let CallPlace { block, index, repetition } = place;
        Ok(OperatorDifference {
            source_line: source_line(program, place),
            forward: forward_operator(program, place),
            story: gradient.as_deref().and_then(|gradient| explain(program, gradient).ok()),
            other_operator: Some(other_operator).filter(|text| *text != operator),
            operator,
            inputs: compared(&first.inputs, &second.inputs)?,
            outputs: compared(&first.outputs, &second.outputs)?,
            ty: first.ty,
            block,
            index,
            repetition,
            gradient,
        })
    }
}

/// The first gradient of a parameter that one of these operators writes.
fn first_gradient(program: &Program, ops: &[(usize, usize)]) -> Option<String> {
    let is_gradient = |block: usize, var: Var| {
        let of = program.lookup(BlockId::new(block), var)?.gradient_of?;
        program.root().vars.get(&of).filter(|desc| desc.parameter).map(|_| var)
    };
    let written = ops.iter().find_map(|(block, index)| {
        op_at(program, *block, *index)?.writes().find_map(|var| is_gradient(*block, var))
    })?;
    Some(program.name(written).to_string())
}

/// The values of slots at the same positions in both runs.
fn compared(first: &[SlotValue], second: &[SlotValue]) -> Result<Vec<ComparedValue>> {
    let compare = |(a, b): (&SlotValue, &SlotValue)| {
        Ok(ComparedValue {
            slot: a.slot.into(),
            name: a.name.clone(),
            meta: a.value.meta().to_string(),
            equal: Digest::of_value(&a.value)? == Digest::of_value(&b.value)?,
            difference: difference(&a.value, &b.value),
        })
    };
    first.iter().zip(second).map(compare).collect()
}

/// The names of values in both runs that differ, apart from exceptions.
fn different_values<'a>(
    values: impl Iterator<Item = (&'a str, &'a Tensor)>,
    others: &Scope,
    except: &BTreeSet<String>,
) -> Result<Vec<String>> {
    let mut names = vec![];
    for (name, value) in values.filter(|(name, _)| !except.contains(*name)) {
        let Some(other) = others.find(name) else { continue };
        let has_same_bits = value.meta() == other.meta() && value.bytes() == other.bytes();
        // A NaN may have other bits.
        if !has_same_bits && Digest::of_value(value)? != Digest::of_value(other)? {
            names.push(name.into());
        }
    }
    Ok(names)
}
